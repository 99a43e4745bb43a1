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
from landscope.curvature.chunk_traces import ChunkTraces
from landscope.curvature.gram.row_norms import row_norms
from landscope.curvature.multi_affine import is_multi_affine
from landscope.curvature.per_sample import trace_data_error
from landscope.measures.row_measure import PieceValues, RowValues
from landscope.measures.sharpness.early import (
    QUADRATIC_LOAD,
    QUADRATIC_PASSES,
    early_brackets,
    has_row_quadratics,
    leading_vectors,
    row_quadratics,
)
from landscope.measures.sharpness.matrices import (
    MATRICES,
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
from landscope.probe.rows.outputs import uniform_order
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


@partial(shared_stream, every=True)
def _row_traces(probe: Probe) -> Iterator[tuple[RowMean, bool]]:
    """The trace from the rows read so far, and whether a look ends there: one stream for all matrices that have this diagonal."""
    found = fisher_rows(probe)
    assert found is not None, "asked for where it is defined"
    rows, passes = found
    values = RowValues(probe, lambda batch, _: rows(batch), load=4.0, passes=passes, grad=True)
    for mean in values.read():
        yield mean, values.ends_a_look


DEFLATED = 6
"""Leading eigenvectors that are taken out of a trace; worth it where three times as many further probes would be needed."""
CHUNKS = 64
"""Of rows, each of which has probes of its own."""
MANY_ROWS = 80
"""Rows from which on their order is worth something."""
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


CLASS_BY_CLASS = (
    "a squared gradient norm for every class, of the rows that its tolerance needs; 100 products where classes are many"
)


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
        """Row by row: without noise, or with fresh probes for every chunk of rows; otherwise from products on all rows."""
        by_rows = probe.sharding is None and not probe.narrow and self._has_fisher_diagonal(probe)
        if by_rows and fisher_rows(probe) is not None:
            exactly = is_small(probe)
            for mean, ends_a_look in _row_traces(probe):
                ended = ends_a_look and not exactly and mean.meets(self.tol)
                yield self._with_details(probe, mean.estimate(ended))
                if ended:
                    return
        elif (is_small(probe) and not probe.narrow) or probe.sharding is not None:
            yield from self._by_products(probe)
        else:
            yield from self._from_parts(probe)

    def _from_parts(self, probe: Probe) -> Iterator[Estimate | None]:
        """From quadratic forms of single rows, the telling ones first; else from products with chunks of rows, or with all.

        On three networks of the coverage benchmark rows take 8 to 19 passes to 2 % and chunks 18 to 30. Where rows are few, or
        the last layer is large (forward derivatives hold all its outputs), chunks are the faster way.
        """
        name = canonical(probe, self.matrix)
        by_rows = self.matrix != "hessian" or (probe.n_samples >= MANY_ROWS and probe.head is None)
        if by_rows and not probe.narrow and has_row_quadratics(probe, name):
            try:
                yield from self._by_probes(probe, partial(_RowTraces, probe, name, self.seed))
                return
            except DifferentiationError as error:  # rows that go another way than those few that it was tried on
                log.info("the trace from products: %s", error)
        if probe.narrow or (self.matrix == "hessian" and uniform_order(probe) is not None):
            begin = partial(ChunkTraces, probe, MATRICES[name], (probe.space.names,), self.seed, "trace", CHUNKS)
            yield from self._by_probes(probe, begin)
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

    def _by_probes(
        self, probe: Probe, begin: Callable[[Tensor | None], ChunkTraces | _RowTraces]
    ) -> Iterator[Estimate | None]:
        """(1/n) Σ_b Σ_{i∈b} z_bᵀA_i z_b with fresh probes z_b for every chunk b, round after round until the bar is short.

        The noise of a probe then falls with the number of chunks, and the same numbers give both error bars. Where it would take
        many rounds, the leading eigenvectors q of some rows are taken out first: Σ qᵀA_i q exactly, and probes orthogonal to them
        for the rest, which is unbiased for any q that the probes do not depend on. Where P products are no dearer than what the
        accuracy would take, the trace is exact.
        """
        name = canonical(probe, self.matrix)
        most = DEFAULT_BUDGET if self.max_matvecs is None else self.max_matvecs
        traces, deflated, drawn = begin(None), False, 0
        while True:
            for _ in traces.round():
                if not drawn and not (mean := traces.mean).complete:
                    ended = traces.ends_a_look and mean.meets(self.tol)
                    yield self._with_details(probe, mean.estimate(ended))
                    if ended:
                        return
            drawn += traces.at_once
            mean, probes = traces.mean, traces.probes
            goal = self.tol * max(abs(mean.value), traces.norm)
            status = Status.CONVERGED if mean.stderr <= goal else Status.RUNNING
            details: dict[str, Plain] = {"probes": probes, "chunks": traces.chunks}
            found = Estimate(mean.value, mean.stderr, mean.data_stderr, status, details=details)
            if found.status is not Status.RUNNING or drawn >= most:
                yield self._with_details(probe, found if drawn < most else self._spent(found))
                return
            yield self._with_details(probe, found)
            needed = probes * ((mean.stderr / goal) ** 2 - 1) if goal > 0 else 0.0
            if not probe.narrow and 2.1 * probe.n_params <= min(traces.passes * needed, 2.1 * (most - drawn)):
                exact = trace(matrix(probe, self.matrix), tol=1e-12, seed=self.seed, max_matvecs=10 * probe.n_params)
                yield self._with_details(probe, replace(exact, data_stderr=found.data_stderr))
                return
            if not deflated and needed > 3 * DEFLATED and probe.n_params < LONG and not probe.narrow:
                deflated, basis = True, leading_vectors(probe, name, self.seed, DEFLATED)
                yield None
                traces = begin(basis)  # probes drawn before do not know of it

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


class _RowTraces:
    """The trace from quadratic forms of single rows, two probes a round (see `landscope.curvature.chunk_traces.ChunkTraces`)."""

    at_once = 2

    def __init__(self, probe: Probe, name: str, seed: int, basis: Tensor | None) -> None:
        self._probe, self._name, self._seed, self._basis = probe, name, seed, basis
        self.passes = QUADRATIC_PASSES[name]
        self.probes = 0
        self._columns: list[np.ndarray] = []
        self._inside: np.ndarray | float = 0.0
        if basis is not None:
            along = self._values(lambda batch, _: row_quadratics(probe, name, batch, list(basis)), len(basis))
            for _ in along.read():
                pass
            self._inside = along.values.sum(1, keepdims=True)

    def _values(self, function: PieceValues, probes: int, shared: bool = False) -> RowValues:
        load, passes = QUADRATIC_LOAD[self._name], probes * self.passes
        return RowValues(self._probe, function, load=load, passes=passes, shared=shared)

    def round(self) -> Iterator[None]:
        """Two probes for every chunk."""

        def forms(batch: Batch, unit: int) -> Tensor:
            signs = [self._signs(self.probes + which, unit) for which in range(2)]
            return row_quadratics(self._probe, self._name, batch, signs)

        values = self._values(forms, 2, shared=True)
        if not self._columns:
            self._latest = values
        for complete in values.looks():
            if complete:
                self._latest = values
                self._columns.append(self._inside + values.values)
                self.probes += 2
            yield

    def _signs(self, number: int, unit: int) -> Tensor:
        probe = self._probe
        z = hashed_signs(probe.n_params, self._seed, "trace", number, unit, dtype=probe.dtype, device=probe.device)
        return z if self._basis is None else z - (self._basis @ z) @ self._basis

    @property
    def mean(self) -> RowMean:
        """The trace from the rounds that are complete, or from the rows of the first one so far."""
        if not self._columns:
            return self._latest.mean()
        assert self._latest.order is not None
        return row_mean(np.concatenate(self._columns, 1), self._latest.order, self._latest.units, self._latest.counts)

    @property
    def ends_a_look(self) -> bool:
        """Whether the rows read so far are a look of their order."""
        return self._latest.ends_a_look

    @property
    def chunks(self) -> int:
        """How many parts of the rows have probes of their own."""
        return len(np.unique(self._latest.units))

    @property
    def norm(self) -> float:
        """√(½ Σ_b Var_b) of one probe: what stands for ‖A‖_F where positive and negative eigenvalues cancel in the trace."""
        units, values = self._latest.units.astype(int), np.concatenate(self._columns, 1)
        sums = np.stack([np.bincount(units, column) for column in values.T]) / len(values)
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
    yield from frobenius_steps(fastest_matrix(probe, name, "lengths"), tol, seed, max_matvecs)
