"""Traces of the curvature matrices: the sum of all curvatures, Σ_j λ_j.

tr H / P is the mean curvature along a random direction. By a sketch and random probes (`landscope.spectra.trace`), or from the
shared spectrum where that is accurate enough; the Fisher matrix, and the Gauss–Newton matrix where it is the same, exactly
from one gradient norm per class where there are few classes. The error over the data comes from per-sample numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from landscope.core.estimate import Estimate, Status
from landscope.core.json import Plain
from landscope.core.seeding import generator, hashed_signs, rademacher
from landscope.curvature.per_sample import linear_layers, squared_gradient_norms, trace_data_error
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.row_measure import RowValues
from landscope.measures.sharpness.early import (
    QUADRATIC_LOAD,
    QUADRATIC_PASSES,
    early_brackets,
    has_row_quadratics,
    leading_vectors,
    row_quadratics,
)
from landscope.measures.sharpness.matrices import canonical, is_fisher, matrix, small_fisher
from landscope.probe.batches import Batch
from landscope.probe.loss.losses import Loss
from landscope.probe.points import is_small
from landscope.probe.probe import Probe
from landscope.probe.rows.means import row_mean
from landscope.spectra import trace
from landscope.spectra.norms import frobenius_steps
from landscope.spectra.protocol import DEFAULT_BUDGET
from landscope.spectra.trace import trace_steps

__all__ = [
    "FisherFrobenius",
    "FisherTrace",
    "GGNFrobenius",
    "GGNTrace",
    "HessianFrobenius",
    "HessianTrace",
    "fisher_rows",
]


# The trace of the Fisher matrix, exactly: one squared gradient norm per class and sample.
#
#     tr F = (1/n) Σ_i Σ_c ‖J_iᵀ s_ic‖²,   S_i S_iᵀ = the Fisher matrix at the outputs, s_ic its columns
#     cross-entropy          s_ic = √p_ic (e_c − p_i): the gradient for label c, weighted by its probability
#     binary cross-entropy   s_ic = √(p_ic (1 − p_ic) / C) e_c
#     mean squared error     s_ic = √(2 / C) e_c
#
# C times the cost of per-sample gradient norms (`per_sample_gradients`), nothing of size C × P held.


LINEAR_NORMS, OTHER_NORMS = 1.0, 3.0
"""Passes of the gradient norms of all samples, where all layers are linear and otherwise."""
EXACT_PASSES = 30.0
"""Passes up to which the trace is taken class by class; random probes are the better way beyond."""


def fisher_rows(probe: Probe) -> tuple[Callable[[Batch], Tensor], float] | None:
    """Tr F_i of the rows of a piece, and what it costs for all; `None` where it is not defined, or classes are many.

    >>> W = torch.nn.Linear(1, 2, bias=False)
    >>> torch.nn.init.zeros_(W.weight).shape
    torch.Size([2, 1])
    >>> probe = Probe(W, (torch.ones(3, 1), torch.tensor([0, 1, 1])))
    >>> fisher_rows(probe)[0](next(probe.batches()))
    tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """
    first = next(probe.batches())
    if not first.divisible or probe.loss.likelihood is None:
        return None
    one = next(first.pieces(1)).prepared(probe.ready)
    with probe.measuring(), torch.no_grad():
        z = probe.outputs(probe.params, one)
    if not isinstance(z, Tensor) or z.dim() != 2:
        return None
    classes = int(z.shape[1])
    layers = {name.rpartition(".")[0] for name in probe.params}
    passes = classes * (LINEAR_NORMS if layers <= set(linear_layers(probe)) else OTHER_NORMS)
    if passes > EXACT_PASSES:
        return None

    def seeded(outputs: Tensor, targets: object, column: int) -> Tensor:
        along = (_column(outputs.detach(), column, probe.loss.likelihood) * outputs).sum(1)
        weights = probe.loss.sample_weights(outputs, targets)
        return along if weights is None else along * weights.to(along).sqrt()

    twins = [
        probe.with_loss(Loss(lambda z, y, c=c: seeded(z, y, c), "per_sample", name=f"column {c}"))
        for c in range(classes)
    ]
    return lambda batch: torch.stack([squared_gradient_norms(twin, batch) for twin in twins]).sum(0), passes


def _column(z: Tensor, c: int, likelihood: str | None) -> Tensor:
    """s_c at the outputs z (n, C)."""
    unit = torch.zeros_like(z)
    unit[:, c] = 1
    if likelihood == "categorical":
        p = z.softmax(1)
        return p[:, c : c + 1].sqrt() * (unit - p)
    if likelihood == "bernoulli":
        p = z.sigmoid()
        return unit * (p * (1 - p) / z.shape[1]).sqrt()
    return unit * (2 / z.shape[1]) ** 0.5


DEFLATED = 6
"""Leading eigenvectors that are taken out of a trace; worth it where three times as many further probes would be needed."""
DIRECTIONS = 16
"""Random directions for the error over the data."""


@dataclass(frozen=True, kw_only=True)
class _Sum(Measure):
    family = Family.CURVATURE
    unit = "loss per parameter²"
    better = None
    cost = "about 100 products with the matrix"
    matrix: ClassVar[str]
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation", "logit_shift"})

    tol: float = 0.02
    max_matvecs: int | None = None

    def __post_init__(self) -> None:
        if not self.tol > 0:
            raise ValueError(f"tol must be positive, got {self.tol}")
        if self.max_matvecs is not None and self.max_matvecs < 0:
            raise ValueError(f"max_matvecs must not be negative, got {self.max_matvecs}")

    def _reason(self, estimate: Estimate) -> str:
        spent = estimate.status is Status.BUDGET_SPENT and not estimate.reason
        return f"the error bar has not come down to tol={self.tol:g}" if spent else estimate.reason


@dataclass(frozen=True, kw_only=True)
class _Trace(_Sum):
    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """Row by row: exactly, or with fresh probes for every chunk of rows; otherwise from products on all rows."""
        exact = fisher_rows(probe) if is_fisher(probe, self.matrix) else None
        if exact is not None:
            rows, passes = exact
            values = RowValues(probe, lambda batch, _: rows(batch), load=4.0, passes=passes, grad=True)
            for mean in values.read():
                yield self._with_details(probe, mean.estimate())
        elif not is_small(probe) and has_row_quadratics(probe, canonical(probe, self.matrix)):
            yield from self._by_probes(probe)
        else:
            for found in trace_steps(matrix(probe, self.matrix), self.tol, self.seed, self.max_matvecs):
                running = found.status is Status.RUNNING
                data_stderr = None if running else self._data_error(probe)
                yield self._with_details(probe, replace(found, data_stderr=data_stderr))

    def _by_probes(self, probe: Probe) -> Iterator[Estimate | None]:
        """(1/n) Σ_b Σ_{i∈b} z_bᵀA_i z_b with two fresh probes z_b for every chunk b, pass after pass until the bar is short.

        The noise of a probe then falls with the number of chunks, and their spread gives both error bars from the same
        numbers. Where it would take many passes, the leading eigenvectors q of some rows are taken out first: Σ qᵀA_i q
        exactly, and probes orthogonal to them for the rest, which is unbiased for any q that the probes do not depend on.
        Where P products are no dearer than what the accuracy would take, the trace is exact.
        """
        name = canonical(probe, self.matrix)
        most = DEFAULT_BUDGET if self.max_matvecs is None else self.max_matvecs
        columns: list[np.ndarray] = []
        basis, inside, drawn = probe.vector().new_zeros((0, probe.n_params)), np.zeros((1, 1)), 0
        while True:
            signs = partial(self._probe_of, probe, basis, drawn)
            values = RowValues(
                probe,
                lambda batch, unit, signs=signs: row_quadratics(probe, name, batch, [signs(unit, 0), signs(unit, 1)]),  # type: ignore[misc]
                load=QUADRATIC_LOAD[name],
                passes=2 * QUADRATIC_PASSES[name],
                shared=True,
            )
            for mean in values.read():
                if not drawn and not mean.complete:
                    yield self._with_details(probe, mean.estimate())
            drawn += 2
            columns.append(inside + values.values)
            found, needed = self._from_columns(np.concatenate(columns, 1), values)
            if found.status is not Status.RUNNING or drawn >= most:
                yield self._with_details(probe, found if drawn < most else self._spent(found))
                return
            yield self._with_details(probe, found)
            if 2.1 * probe.n_params <= min(QUADRATIC_PASSES[name] * needed, 2.1 * (most - drawn)):
                exact = trace(matrix(probe, self.matrix), tol=1e-12, seed=self.seed, max_matvecs=10 * probe.n_params)
                yield self._with_details(probe, replace(exact, data_stderr=found.data_stderr))
                return
            if not len(basis) and needed > 3 * DEFLATED:
                basis = leading_vectors(probe, name, self.seed, DEFLATED)
                yield None
                along = RowValues(
                    probe,
                    lambda batch, _, basis=basis: row_quadratics(probe, name, batch, list(basis)),  # type: ignore[misc]
                    load=QUADRATIC_LOAD[name],
                    passes=len(basis) * QUADRATIC_PASSES[name],
                )
                for _ in along.read():
                    pass
                inside, columns = along.values.sum(1, keepdims=True), []  # probes drawn before do not know of it

    def _from_columns(self, columns: np.ndarray, values: RowValues) -> tuple[Estimate, float]:
        """What all probes so far say, and how many more would meet the tolerance."""
        assert values.order is not None
        mean = row_mean(columns, values.order, values.units)
        goal = self.tol * max(abs(mean.value), chunk_norm(columns, values.units))
        probes = columns.shape[1]
        needed = probes * ((mean.stderr / goal) ** 2 - 1) if goal > 0 else 0.0
        status = Status.CONVERGED if mean.stderr <= goal else Status.RUNNING
        details: dict[str, Plain] = {"probes": probes, "chunks": len(np.unique(values.units))}
        return Estimate(mean.value, mean.stderr, mean.data_stderr, status, details=details), needed

    def _probe_of(self, probe: Probe, basis: Tensor, drawn: int, unit: int, which: int) -> Tensor:
        stream = ("trace", drawn + which, unit)
        z = hashed_signs(probe.n_params, self.seed, *stream, dtype=probe.dtype, device=probe.device)
        return z - (basis @ z) @ basis if len(basis) else z

    def _data_error(self, probe: Probe) -> float | None:
        if self.matrix != "hessian":
            return None
        rng = generator(self.seed, "trace data")
        return trace_data_error(probe, rademacher((DIRECTIONS, probe.n_params), rng, probe.dtype, probe.device))

    def _spent(self, estimate: Estimate) -> Estimate:
        return replace(estimate, status=Status.BUDGET_SPENT)

    def _with_details(self, probe: Probe, estimate: Estimate) -> Estimate:
        details = {**estimate.details, "per_parameter": estimate.value / probe.n_params}
        return replace(estimate, details=details, reason=self._reason(estimate))


def chunk_norm(values: np.ndarray, units: np.ndarray) -> float:
    """√(½ Σ_b Var_b) of one probe: what stands for ‖A‖_F where positive and negative eigenvalues cancel in the trace."""
    n = len(values)
    sums = np.stack([np.bincount(units.astype(int), column) for column in values.T]) / n
    return math.sqrt(float(sums.var(0, ddof=1).sum()) / 2)


@register("hessian_trace")
@dataclass(frozen=True, kw_only=True)
class HessianTrace(_Trace):
    """tr H; per parameter in the details."""

    title = "Hessian trace"
    turn = 2
    matrix: ClassVar[str] = "hessian"


@register("ggn_trace")
@dataclass(frozen=True, kw_only=True)
class GGNTrace(_Trace):
    """tr of the generalised Gauss–Newton matrix."""

    title = "GGN trace"
    cost = "a squared gradient norm for every class; about 100 products where classes are many"
    turn = 3
    matrix: ClassVar[str] = "ggn"


@register("fisher_trace")
@dataclass(frozen=True, kw_only=True)
class FisherTrace(_Trace):
    """tr F."""

    title = "Fisher trace"
    unit = "nats per parameter²"
    cost = "a squared gradient norm for every class; about 100 products where classes are many"
    turn = 3
    matrix: ClassVar[str] = "fisher"


@dataclass(frozen=True, kw_only=True)
class _Frobenius(_Sum):
    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """At least the largest eigenvalue, then the norm from products on all rows."""
        exact = small_fisher(probe) if is_fisher(probe, self.matrix) else None
        if exact is not None:
            value = float(exact.square().sum().sqrt())
            yield Estimate(value, details={"from": "gram matrix", "per_parameter": value / probe.n_params})
            return
        for found in early_brackets(probe, canonical(probe, self.matrix), 1.0, self.seed):
            if found is not None:
                yield Estimate(found.low, status=Status.LOWER_BOUND, reason=f"from {found.rows:,} rows")
        for estimate in frobenius_steps(matrix(probe, self.matrix), self.tol, self.seed, self.max_matvecs):
            details = {**estimate.details, "per_parameter": estimate.value / probe.n_params}
            yield replace(estimate, details=details, reason=self._reason(estimate))


@register("hessian_frobenius")
@dataclass(frozen=True, kw_only=True)
class HessianFrobenius(_Frobenius):
    """‖H‖_F = √Σ λ_j²."""

    title = "Hessian Frobenius norm"
    turn = 2
    matrix: ClassVar[str] = "hessian"


@register("ggn_frobenius")
@dataclass(frozen=True, kw_only=True)
class GGNFrobenius(_Frobenius):
    """‖GGN‖_F."""

    title = "GGN Frobenius norm"
    turn = 3
    matrix: ClassVar[str] = "ggn"


@register("fisher_frobenius")
@dataclass(frozen=True, kw_only=True)
class FisherFrobenius(_Frobenius):
    """‖F‖_F."""

    title = "Fisher Frobenius norm"
    unit = "nats per parameter²"
    turn = 3
    matrix: ClassVar[str] = "fisher"
