"""Traces of the curvature matrices: the sum of all curvatures, Σ_j λ_j.

tr H / P is the mean curvature along a random direction. By a sketch and random probes (`landscope.spectra.trace`), or from the
shared spectrum where that is accurate enough; the Fisher matrix, and the Gauss–Newton matrix where it is the same, exactly
from one gradient norm per class where there are few classes. The error over the data comes from per-sample numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from landscope.core.estimate import Estimate, Status
from landscope.core.json import Plain
from landscope.core.seeding import generator, rademacher
from landscope.curvature.per_sample import linear_layers, squared_gradient_norms, trace_data_error
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.sharpness.matrices import is_fisher, known_spectrum, matrix, small_fisher, small_fisher_passes
from landscope.probe.batches import Batch
from landscope.probe.loss.losses import Loss
from landscope.probe.probe import Probe
from landscope.probe.shared import mean_and_error, sums
from landscope.spectra import frobenius, trace

__all__ = [
    "FisherFrobenius",
    "FisherTrace",
    "GGNFrobenius",
    "GGNTrace",
    "HessianFrobenius",
    "HessianTrace",
    "fisher_trace",
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


def fisher_trace(probe: Probe, affordable: float = float("inf")) -> tuple[float, float | None] | None:
    """(tr F, its standard error over the data); `None` where it is not defined or takes more than `affordable` passes.

    >>> W = torch.nn.Linear(1, 2, bias=False)
    >>> torch.nn.init.zeros_(W.weight).shape
    torch.Size([2, 1])
    >>> round(fisher_trace(Probe(W, (torch.ones(3, 1), torch.tensor([0, 1, 1]))))[0], 6)
    0.5
    """
    first = next(probe.batches())
    if not first.divisible or probe.loss.likelihood is None:
        return None
    one = next(first.pieces(1))
    with probe.measuring(), torch.no_grad():
        z = probe.outputs(probe.params, one.prepared(probe.ready))
    if not isinstance(z, Tensor) or z.dim() != 2:
        return None
    classes = int(z.shape[1])
    layers = {name.rpartition(".")[0] for name in probe.params}
    norms = LINEAR_NORMS if layers <= set(linear_layers(probe)) else OTHER_NORMS
    if classes * norms > affordable:
        return None

    def seeded(outputs: Tensor, targets: object, column: int) -> Tensor:
        along = (_column(outputs.detach(), column, probe.loss.likelihood) * outputs).sum(1)
        weights = probe.loss.sample_weights(outputs, targets)
        return along if weights is None else along * weights.to(along).sqrt()

    twins = [
        probe.with_loss(Loss(lambda z, y, c=c: seeded(z, y, c), "per_sample", name=f"column {c}"))
        for c in range(classes)
    ]

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        return sums(torch.stack([squared_gradient_norms(twin, batch) for twin in twins]).sum(0))

    total, squares = probe.total(piece, load=4.0, passes=classes * norms)
    return mean_and_error(total, squares, probe.n_samples)


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


PRODUCT = 2.1
"""Passes of one product in a block."""
USUAL_PRODUCTS = 100
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

    def passes(self, probe: Probe) -> float:
        """About a hundred products, or as many as there are parameters; less where there are few samples."""
        products = PRODUCT * min(self.max_matvecs or USUAL_PRODUCTS, USUAL_PRODUCTS, probe.n_params)
        few = small_fisher_passes(probe) if is_fisher(probe, self.matrix) else None
        return products if few is None else min(products, few)

    def _reason(self, estimate: Estimate) -> str:
        spent = estimate.status is Status.BUDGET_SPENT and not estimate.reason
        return f"the error bar has not come down to tol={self.tol:g}" if spent else estimate.reason

    def least(self, probe: Probe) -> float:
        """Sixteen products."""
        return min(self.passes(probe), 16 * PRODUCT)

    def within(self, passes: float, probe: Probe) -> Measure:
        """At most so many products as fit, and at least eight."""
        return self.with_settings(max_matvecs=max(8, int(passes / PRODUCT)))


@dataclass(frozen=True, kw_only=True)
class _Trace(_Sum):
    def _measure(self, probe: Probe) -> Estimate:
        if self.matrix != "hessian":
            affordable = PRODUCT * min(self.max_matvecs or USUAL_PRODUCTS, USUAL_PRODUCTS, probe.n_params)
            exact = fisher_trace(probe, affordable) if is_fisher(probe, self.matrix) else None
            if exact is not None:
                value, data_stderr = exact
                details: dict[str, Plain] = {"per_parameter": value / probe.n_params}
                return Estimate(value, data_stderr=data_stderr, details=details)
        known = known_spectrum(probe, self.matrix)
        estimate = known.functional(lambda x: x) if known is not None else None
        if estimate is None or estimate.stderr is None or estimate.stderr > self.tol * abs(estimate.value):
            estimate = trace(matrix(probe, self.matrix), tol=self.tol, seed=self.seed, max_matvecs=self.max_matvecs)
        error = None
        if self.matrix == "hessian":
            rows = rademacher(
                (DIRECTIONS, probe.n_params), generator(self.seed, "trace data"), probe.dtype, probe.device
            )
            error = trace_data_error(probe, rows)
        details = {**estimate.details, "per_parameter": estimate.value / probe.n_params}
        return replace(estimate, data_stderr=error, details=details, reason=self._reason(estimate))


@register("hessian_trace")
@dataclass(frozen=True, kw_only=True)
class HessianTrace(_Trace):
    """tr H; per parameter in the details."""

    title = "Hessian trace"
    turn = (1, 2)
    matrix: ClassVar[str] = "hessian"


@register("ggn_trace")
@dataclass(frozen=True, kw_only=True)
class GGNTrace(_Trace):
    """tr of the generalised Gauss–Newton matrix."""

    title = "GGN trace"
    cost = "a squared gradient norm for every class; about 100 products where classes are many"
    turn = (3, 2)
    matrix: ClassVar[str] = "ggn"


@register("fisher_trace")
@dataclass(frozen=True, kw_only=True)
class FisherTrace(_Trace):
    """tr F."""

    title = "Fisher trace"
    unit = "nats per parameter²"
    cost = "a squared gradient norm for every class; about 100 products where classes are many"
    turn = (4, 2)
    matrix: ClassVar[str] = "fisher"


@dataclass(frozen=True, kw_only=True)
class _Frobenius(_Sum):
    def _measure(self, probe: Probe) -> Estimate:
        exact = small_fisher(probe, self.passes(probe)) if is_fisher(probe, self.matrix) else None
        if exact is not None:
            value = float(exact.square().sum().sqrt())
            return Estimate(value, details={"from": "gram matrix", "per_parameter": value / probe.n_params})
        known = known_spectrum(probe, self.matrix)
        if known is not None:
            square = known.functional(lambda x: x**2)
            value = square.value**0.5
            error = square.stderr / (2 * value) if value > 0 else 0.0
            if error <= self.tol * value:
                per_parameter = value / probe.n_params
                return Estimate(
                    value, error, status=square.status, details={"from": "spectrum", "per_parameter": per_parameter}
                )
        estimate = frobenius(matrix(probe, self.matrix), tol=self.tol, seed=self.seed, max_matvecs=self.max_matvecs)
        details = {**estimate.details, "per_parameter": estimate.value / probe.n_params}
        return replace(estimate, details=details, reason=self._reason(estimate))


@register("hessian_frobenius")
@dataclass(frozen=True, kw_only=True)
class HessianFrobenius(_Frobenius):
    """‖H‖_F = √Σ λ_j²."""

    title = "Hessian Frobenius norm"
    turn = (1, 2)
    matrix: ClassVar[str] = "hessian"


@register("ggn_frobenius")
@dataclass(frozen=True, kw_only=True)
class GGNFrobenius(_Frobenius):
    """‖GGN‖_F."""

    title = "GGN Frobenius norm"
    turn = (3, 2)
    matrix: ClassVar[str] = "ggn"


@register("fisher_frobenius")
@dataclass(frozen=True, kw_only=True)
class FisherFrobenius(_Frobenius):
    """‖F‖_F."""

    title = "Fisher Frobenius norm"
    unit = "nats per parameter²"
    turn = (4, 2)
    matrix: ClassVar[str] = "fisher"
