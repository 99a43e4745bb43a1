"""Traces of the curvature matrices: the sum of all curvatures, Σ_j λ_j.

tr H / P is the mean curvature along a random direction. The Fisher matrix, the Gauss–Newton matrix where it is the same, and the
Hessian of a network with rectifiers: exactly, from one gradient norm per class where there are few classes. Others by random
probes, fresh ones for every chunk of rows, or by a sketch and probes (`landscope.spectra.trace`) where rows cannot be taken one
by one. The error over the data comes from per-sample numbers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from landscope.core.errors import DifferentiationError
from landscope.core.estimate import Estimate, Status
from landscope.core.json import Plain
from landscope.core.seeding import generator, hashed_signs
from landscope.curvature.gram.row_norms import row_norms
from landscope.curvature.multi_affine import is_multi_affine
from landscope.curvature.per_sample import trace_data_error
from landscope.measures.row_measure import RowValues
from landscope.measures.sharpness.early import (
    QUADRATIC_LOAD,
    QUADRATIC_PASSES,
    early_brackets,
    has_row_quadratics,
    leading_vectors,
    row_quadratics,
)
from landscope.measures.sharpness.matrices import (
    OfMatrix,
    canonical,
    fastest_matrix,
    for_each_matrix,
    is_fisher,
    matrix,
    outputs_per_sample,
    predicts_once,
    small_fisher,
)
from landscope.probe.batches import Batch
from landscope.probe.points import is_small
from landscope.probe.probe import Probe
from landscope.probe.rows.means import RowMean, row_mean
from landscope.probe.shared import shared_stream
from landscope.spectra import trace
from landscope.spectra.lanczos import LONG
from landscope.spectra.norms import frobenius_steps
from landscope.spectra.protocol import DEFAULT_BUDGET
from landscope.spectra.trace import trace_steps

# The trace of the Fisher matrix, exactly: one squared gradient norm per class and sample.
#
#     tr F = (1/n) Σ_i Σ_c ‖J_iᵀ s_ic‖²,   S_i S_iᵀ = the Fisher matrix at the outputs, s_ic its columns
#     cross-entropy          s_ic = √p_ic (e_c − p_i): the gradient for label c, weighted by its probability
#     binary cross-entropy   s_ic = √(p_ic (1 − p_ic) / C) e_c
#     mean squared error     s_ic = √(2 / C) e_c
#
# About C + 1 gradients, nothing of size C × P held (`landscope.curvature.gram.row_norms`). The Gauss–Newton matrix of these
# losses is the Fisher matrix, and the Hessian of a network with rectifiers has the same diagonal
# (`landscope.curvature.multi_affine`).


log = logging.getLogger(__name__)

MOST_CLASSES = 29
"""Outputs up to which the trace is taken class by class; random probes are the better way beyond."""


def fisher_rows(probe: Probe) -> tuple[Callable[[Batch], Tensor], float] | None:
    """Tr F_i of the rows of a piece, and what it costs for all; `None` where it is not defined, or classes are many.

    >>> W = torch.nn.Linear(1, 2, bias=False)
    >>> torch.nn.init.zeros_(W.weight).shape
    torch.Size([2, 1])
    >>> probe = Probe(W, (torch.ones(3, 1), torch.tensor([0, 1, 1])))
    >>> fisher_rows(probe)[0](next(probe.batches()))
    tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """
    if not next(probe.batches()).divisible or probe.loss.likelihood is None or outputs_per_sample(probe) > MOST_CLASSES:
        return None
    if not predicts_once(probe):
        return None

    def rows(batch: Batch) -> Tensor:
        norms = row_norms(probe, batch, class_outputs, partial(_columns, probe, probe.targets(batch)))
        return torch.stack(list(norms.values())).sum(0)

    def class_outputs(params: Mapping[str, Tensor], piece: Batch) -> Tensor:
        return cast(Tensor, probe.outputs(params, piece))

    return rows, outputs_per_sample(probe) + 1.0


def _columns(probe: Probe, targets: object, z: Tensor) -> Tensor:
    """The columns of S at the outputs z (n, C), each of every sample: (C, n, C)."""
    unit = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)[:, None]
    if probe.loss.likelihood == "categorical":
        p = z.softmax(1)
        columns = p.T.sqrt()[:, :, None] * (unit - p)
    elif probe.loss.likelihood == "bernoulli":
        p = z.sigmoid()
        columns = unit * (p * (1 - p) / z.shape[1]).sqrt()
    else:
        columns = unit * torch.full_like(z, (2 / z.shape[1]) ** 0.5)
    weights = probe.loss.sample_weights(z, targets)
    return columns if weights is None else columns * weights.to(z).sqrt()[:, None]


@shared_stream
def _exact_means(probe: Probe) -> Iterator[RowMean]:
    """The trace from the rows read so far: one stream for all matrices that have this diagonal."""
    found = fisher_rows(probe)
    assert found is not None, "asked for where it is defined"
    rows, passes = found
    yield from RowValues(probe, lambda batch, _: rows(batch), load=4.0, passes=passes, grad=True).read()


DEFLATED = 6
"""Leading eigenvectors that are taken out of a trace; worth it where three times as many further probes would be needed."""
DIRECTIONS = 16
"""Random directions for the error over the data."""


@dataclass(frozen=True, kw_only=True)
class _Sum(OfMatrix):
    cost = "about 100 products with the matrix"

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


CLASS_BY_CLASS = "a squared gradient norm for every class; about 100 products where classes are many"


@for_each_matrix(
    "{}_trace",
    "{} trace",
    hessian={
        "__doc__": "The curvature of the loss, over all directions: tr H; per parameter in the details.",
        "turn": 2,
    },
    ggn={
        "__doc__": "The curvature of the network linearised at its weights, over all directions: tr of the generalised "
        "Gauss–Newton matrix.",
        "cost": CLASS_BY_CLASS,
    },
    fisher={
        "__doc__": "How much predictions change with the weights, over all directions: tr F.",
        "cost": CLASS_BY_CLASS,
    },
)
class _Trace(_Sum):
    def at_once(self, probe: Probe) -> Estimate | None:
        """At least the trace of a block, where no number on the diagonal is negative."""
        bounds = self._block(probe)
        if bounds is None or bounds.trace is None or not self._has_fisher_diagonal(probe):
            return None
        return bounds.at_least(max(bounds.trace, 0.0))

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """Row by row: exactly, or with fresh probes for every chunk of rows; otherwise from products on all rows."""
        if probe.sharding is None and self._has_fisher_diagonal(probe) and fisher_rows(probe) is not None:
            for mean in _exact_means(probe):
                yield self._with_details(probe, mean.estimate())
        elif not is_small(probe) and has_row_quadratics(probe, canonical(probe, self.matrix)):
            try:
                yield from self._by_probes(probe)
            except DifferentiationError as error:  # rows that go another way than those few that it was tried on
                log.info("the trace from products on all rows: %s", error)
                yield from self._by_products(probe)
        else:
            yield from self._by_products(probe)

    def _by_products(self, probe: Probe) -> Iterator[Estimate | None]:
        for found in trace_steps(matrix(probe, self.matrix), self.tol, self.seed, self.max_matvecs):
            running = found.status is Status.RUNNING
            data_stderr = None if running else self._data_error(probe)
            yield self._with_details(probe, replace(found, data_stderr=data_stderr))

    def _has_fisher_diagonal(self, probe: Probe) -> bool:
        if self.matrix == "hessian":
            return is_fisher(probe, "ggn") and is_multi_affine(probe)
        return is_fisher(probe, self.matrix)

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
            if not len(basis) and needed > 3 * DEFLATED and probe.n_params < LONG:
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
        mean = row_mean(columns, values.order, values.units, values.counts)
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
        return trace_data_error(probe, probe.vectors.signs(DIRECTIONS, rng, probe.dtype, probe.device))

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


@for_each_matrix(
    "{}_frobenius",
    "{} Frobenius norm",
    hessian={"__doc__": "The size of the Hessian, ‖H‖_F = √Σ λ_j²: large curvature counts more than in its trace."},
    ggn={
        "__doc__": "The size of the generalised Gauss–Newton matrix, ‖GGN‖_F: large eigenvalues count more than in its trace."
    },
    fisher={"__doc__": "The size of the Fisher matrix, ‖F‖_F: large eigenvalues count more than in its trace."},
)
class _Frobenius(_Sum):
    def at_once(self, probe: Probe) -> Estimate | None:
        """At least the curvature of a block along one direction."""
        bounds = self._block(probe)
        return None if bounds is None else bounds.at_least(max(bounds.top, 0.0))

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """At least the largest eigenvalue, then the norm from products on all rows."""
        exact = small_fisher(probe) if is_fisher(probe, self.matrix) else None
        if exact is not None:
            value = float(exact.square().sum().sqrt())
            yield Estimate(value, details={"from": "gram matrix", "per_parameter": value / probe.n_params})
            return
        for found in early_brackets(probe, canonical(probe, self.matrix), 1.0, self.seed):
            if found is not None:
                yield Estimate(max(found.low, 0.0), status=Status.LOWER_BOUND, reason=f"from {found.rows:,} rows")
        for estimate in _shared_norm(probe, canonical(probe, self.matrix), self.tol, self.seed, self.max_matvecs):
            details = {**estimate.details, "per_parameter": estimate.value / probe.n_params}
            yield replace(estimate, details=details, reason=self._reason(estimate))


@shared_stream
def _shared_norm(probe: Probe, name: str, tol: float, seed: int, max_matvecs: int | None) -> Iterator[Estimate]:
    """The norm of a matrix, found once for all its names."""
    yield from frobenius_steps(fastest_matrix(probe, name), tol, seed, max_matvecs)
