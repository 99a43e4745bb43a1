"""Extreme eigenvalues of the Hessian, the Gauss–Newton and the Fisher matrix, with a bound on their error.

λ₁ = max_v vᵀ A v over unit v: the curvature along the sharpest direction (Keskar et al. 2017; Granziol 2020). By
restarted Lanczos with full reorthogonalisation; `stderr` is the residual ‖A v − λ v‖, within which a true eigenvalue
lies. The error over the data is that of the Rayleigh quotient vᵀ A_i v (Hessian only).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.curvature.per_sample import eigenvalue_data_error
from landscope.measures.base import register
from landscope.measures.sharpness.early import EarlyBracket, early_brackets, leading_direction
from landscope.measures.sharpness.matrices import (
    OfMatrix,
    canonical,
    cheap_matrix,
    extreme_ritz_value,
    for_each_matrix,
    is_fisher,
    matrix,
    outputs_per_sample,
    shared_spectrum,
    small_fisher,
)
from landscope.probe.probe import Probe
from landscope.probe.shared import loss_value, shared_stream
from landscope.spectra import Eigenpairs, Spectrum, eigsh_steps
from landscope.spectra.pairs import RitzValues
from landscope.spectra.subspace import Krylov

ROUNDED = 20
"""In machine epsilons: a loss of probabilities that is rounding, because 1 − p of the labels is, and with it the curvature."""
RESOLVED = 20
"""How many times the tolerance an eigenvalue must be to be distinguished from its neighbours."""


def _ended(probe: Probe, pairs: Eigenpairs, tol: float) -> tuple[Status, str]:
    """How a search ended, and why where it has not converged."""
    eps = torch.finfo(probe.dtype).eps
    small = probe.loss.likelihood in ("categorical", "bernoulli") and bool((pairs.values.abs() < eps**0.5).all())
    if small and loss_value(probe) < ROUNDED * eps:
        return Status.SATURATED, f"the loss is zero to the rounding of {str(probe.dtype).removeprefix('torch.')}"
    if pairs.rounding_only:
        return Status.SATURATED, "all curvature is below the rounding of the products"
    if pairs.converged:
        return Status.CONVERGED, ""
    return Status.BUDGET_SPENT, f"not converged to tol={tol:g} after {pairs.matvecs} products"


def _of_bracket(found: EarlyBracket, sign: float = 1.0) -> Estimate:
    """What some of the rows say: of λ₁, or with sign −1 of λ_min."""
    reason = f"from {found.rows:,} rows"
    if not found.reliable:
        return Estimate(sign * found.low, status=Status.LOWER_BOUND if sign > 0 else Status.UPPER_BOUND, reason=reason)
    low, high = sorted((sign * found.low, sign * found.high))
    return Estimate(sign * found.point, (high - low) / 4, status=Status.RUNNING, reason=reason, bracket=(low, high))


@dataclass(frozen=True, kw_only=True)
class _Eigenvalue(OfMatrix):
    cost = "about 25 products with the matrix"
    reference = "Keskar et al. 2017; Granziol 2020"
    which: ClassVar[str]

    k: int = 1
    tol: float = 1e-3
    max_matvecs: int | None = None

    def __post_init__(self) -> None:
        if self.k < 1 or not self.tol > 0:
            raise ValueError(f"k must be at least 1 and tol positive, got k={self.k}, tol={self.tol}")
        if self.max_matvecs is not None and self.max_matvecs < 0:
            raise ValueError(f"max_matvecs must not be negative, got {self.max_matvecs}")

    @property
    def _sign(self) -> float:
        return 1.0 if self.which == "LA" else -1.0

    def at_once(self, probe: Probe) -> Estimate | None:
        """What a block of the matrix says: its extreme eigenvalues lie inside those of the whole."""
        bounds = self._block(probe)
        if bounds is None:
            return None
        return bounds.at_least(self._possible(bounds.top)) if self.which == "LA" else bounds.at_most(bounds.bottom)

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """A bracket from some of the rows, then product by product on all of them."""
        few = self._from_few_samples(probe)
        if few is not None:
            yield few
            return
        if self.k > probe.n_params:
            raise NotApplicableError(f"k = {self.k} eigenvalues were asked for; the matrix has {probe.n_params}")
        early: EarlyBracket | None = None
        if self.matrix == "hessian" or self.which == "LA":
            for found in early_brackets(probe, canonical(probe, self.matrix), self._sign, self.seed):
                early = early if found is None else found
                yield None if found is None else _of_bracket(found, self._sign)
        name = canonical(probe, self.matrix)
        start = None if early is None else leading_direction(probe, name, self.seed)
        for step in _shared_pairs(probe, name, self.k, self.which, self.tol, self.max_matvecs, self.seed, start):
            if isinstance(step, Eigenpairs):
                yield self._final(probe, step)
            else:
                yield self._so_far(step, early)

    def _so_far(self, step: RitzValues, early: EarlyBracket | None) -> Estimate | None:
        """An eigenvalue at least this large, until products enough were made to have met a larger one.

        A Ritz value of all rows lies below λ₁: it is the lower end of the bracket that some rows gave, where it is higher, and
        refutes that where it lies above.
        """
        value, residual = float(step.values[0]), float(step.residuals[0])
        reason = f"after {step.matvecs} products"
        narrower = None if early is None else early.above(self._sign * value)
        if narrower is not None and (not step.seen or residual > narrower.high - narrower.low):
            return _of_bracket(narrower, self._sign) if narrower is not early else None
        if not step.seen:
            side = Status.LOWER_BOUND if self._sign > 0 else Status.UPPER_BOUND
            return Estimate(value, status=side, reason=reason)
        low, high = sorted((value, value + self._sign * residual))
        return Estimate(value, residual, status=Status.RUNNING, reason=reason, bracket=(low, high))

    def _from_few_samples(self, probe: Probe) -> Estimate | None:
        """Eigenvalues of the Fisher matrix without products: 0 beyond its rank, and all of them where there are few samples."""
        rank = probe.n_samples * outputs_per_sample(probe)
        if self.which == "SA" and is_fisher(probe, self.matrix) and probe.n_params - rank >= self.k:
            return Estimate(0.0, details={"values": [0.0] * self.k, "from": f"its rank, {rank} at most"})
        found = small_fisher(probe) if is_fisher(probe, self.matrix) else None
        if found is None or self.k > probe.n_params:
            return None
        everything = [*found.tolist(), *[0.0] * min(self.k, probe.n_params - len(found))]
        values = everything[: self.k] if self.which == "LA" else everything[::-1][: self.k]
        return Estimate(values[0], details={"values": values, "from": "gram matrix"})

    def _final(self, probe: Probe, pairs: Eigenpairs) -> Estimate:
        known = self.matrix == "hessian" and pairs.vectors.shape[1] > 0
        error = eigenvalue_data_error(probe, pairs.vectors[:, 0]) if known else None
        return Estimate(
            float(pairs.values[0]),
            float(pairs.residuals[0]),
            error,
            *_ended(probe, pairs, self.tol),
            details={
                "values": pairs.values.tolist(),
                "residuals": pairs.residuals.tolist(),
                "matvecs": pairs.matvecs,
            },
        )


@shared_stream
def _shared_pairs(
    probe: Probe, name: str, k: int, which: str, tol: float, max_matvecs: int | None, seed: int, start: Tensor | None
) -> Iterator[RitzValues | Eigenpairs]:
    """The eigenpairs of a matrix, found once for all its names; both ends of its spectrum from the same products."""
    cheap = cheap_matrix(probe, name) if k == 1 else None
    krylov = cast(Krylov, probe.results.setdefault(("krylov", name, seed), Krylov()))
    yield from eigsh_steps(matrix(probe, name), k, which, tol, max_matvecs, seed, start, cheap=cheap, krylov=krylov)


@for_each_matrix(
    "{}_top_eigenvalue",
    "{} λ₁",
    hessian={
        "__doc__": "The curvature of the loss along its sharpest direction: λ₁ of the Hessian; `k` largest in the details.",
        "turn": 2,
    },
    ggn={
        "__doc__": "The sharpest direction of the network linearised at its weights: λ₁ of the generalised Gauss–Newton matrix."
    },
    fisher={
        "__doc__": "How much predictions change along the direction in which they change most: λ₁ of the Fisher matrix."
    },
)
class _TopEigenvalue(_Eigenvalue):
    which = "LA"


@for_each_matrix(
    "{}_bottom_eigenvalue",
    "{} λ_min",
    hessian={"__doc__": "The smallest eigenvalue of the Hessian: below zero where the point is not a minimum."},
    ggn={
        "__doc__": "The smallest eigenvalue of the generalised Gauss–Newton matrix: zero where parameters outnumber the data."
    },
    fisher={"__doc__": "The smallest eigenvalue of the Fisher matrix."},
)
class _BottomEigenvalue(_Eigenvalue):
    flatter = None
    which = "SA"


@register("log_volume")
@dataclass(frozen=True, kw_only=True)
class LogVolume(_Eigenvalue):
    """Σ_{j≤k} log λ_j of the Hessian: the log volume of the minimum along its k sharpest directions (Wu et al. 2017).

    Values θ_j from a subspace lie below the λ_j, all of them, so that their errors add up instead of cancelling: `stderr` is
    Σ_j log(1 + ρ_j/θ_j) with the residuals ρ_j, and the volume is at least the value. Where `tol`·λ₁ is more than a twentieth of
    θ_k, one near θ_k may be missing from the k largest: every θ_j may then be short by 2·`tol`·λ₁ more, and `reason` says so.
    """

    title = "log volume"
    unit = ""
    cost = "about 70 products with the Hessian"
    reference = "Wu et al. 2017"
    matrix = "hessian"
    which = "LA"

    k: int = 10

    def at_once(self, probe: Probe) -> Estimate | None:
        """At least the volume of the last layer's block, where that has k eigenvalues above zero."""
        bounds = self._block(probe)
        known = bounds is not None and 1 <= self.k <= len(bounds.volumes)
        return bounds.at_least(bounds.volumes[self.k - 1]) if bounds is not None and known else None

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """Ritz values of all rows lie below the eigenvalues: at least their volume, product by product."""
        if self.k > probe.n_params:
            raise NotApplicableError(f"k = {self.k} eigenvalues were asked for; the matrix has {probe.n_params}")
        op, cheap = matrix(probe, self.matrix), cheap_matrix(probe, self.matrix)
        for step in eigsh_steps(op, self.k, self.which, self.tol, self.max_matvecs, self.seed, cheap=cheap):
            if isinstance(step, Eigenpairs):
                yield self._final(probe, step)
            elif len(step.values) == self.k and float(step.values.min()) > 0:
                at_least = float(step.values.log().sum())
                yield Estimate(at_least, status=Status.LOWER_BOUND, reason=f"after {step.matvecs} products")
            else:
                yield None

    def _final(self, probe: Probe, pairs: Eigenpairs) -> Estimate:
        values, bounds = pairs.values.tolist(), pairs.residuals.tolist()
        positive = sum(v > 0 for v in values)
        if positive < self.k:
            unknown = values[-1] + bounds[-1] + pairs.hidden > 0
            known = (
                f"only {positive} of the {self.k} largest eigenvalues are {'known to be ' if unknown else ''}positive"
            )
            raise NotApplicableError(f"{known}; lower {'tol or k' if unknown else 'k'}")
        short, (status, reason) = 0.0, _ended(probe, pairs, self.tol)
        if RESOLVED / 2 * pairs.hidden > values[-1]:
            short = pairs.hidden
            reason = reason or (
                f"tol={self.tol:g} is coarse for the {self.k}-th eigenvalue, and the error bar wide: lower tol or k"
            )
        return Estimate(
            sum(map(math.log, values)),
            sum(math.log1p((b + short) / v) for b, v in zip(bounds, values, strict=True)),
            status=status,
            reason=reason,
            details={"values": values, "residuals": bounds, "matvecs": pairs.matvecs},
        )


# The whole spectrum of a curvature matrix by stochastic Lanczos quadrature (Ghorbani et al. 2019; Granziol 2020).
#
# The value is the largest Ritz value; nodes and weights are in the details, from which
# `landscope.spectra.Spectrum.from_dict` makes the object that plots itself.


SETTLED = 0.01
"""Relative bound on the largest Ritz value at which the spectrum counts as converged."""


@for_each_matrix(
    "{}_spectrum",
    "{} spectrum",
    hessian={
        "__doc__": "The spectrum of the Hessian: how many directions have which curvature.",
        "same_value_as": "hessian_top_eigenvalue",
    },
    ggn={
        "__doc__": "The spectrum of the generalised Gauss–Newton matrix: how many directions have which curvature.",
        "same_value_as": "ggn_top_eigenvalue",
    },
    fisher={
        "__doc__": "The spectrum of the Fisher matrix: in how many directions predictions change by how much.",
        "same_value_as": "fisher_top_eigenvalue",
    },
)
@dataclass(frozen=True, kw_only=True)
class _Spectrum(OfMatrix):
    cost = "256 products with the matrix"
    reference = "Ghorbani et al. 2019; Granziol 2020"

    steps: int = 64
    probes: int = 4

    def __post_init__(self) -> None:
        if self.steps < 1 or self.probes < 1:
            raise ValueError(f"steps and probes must be at least 1, got {self.steps} and {self.probes}")

    def at_once(self, probe: Probe) -> Estimate | None:
        """At least the largest eigenvalue of a block."""
        bounds = self._block(probe)
        return None if bounds is None else bounds.at_least(self._possible(bounds.top))

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """A bracket of the largest eigenvalue from some of the rows, then the spectrum."""
        early: EarlyBracket | None = None
        for found in early_brackets(probe, canonical(probe, self.matrix), 1.0, self.seed):
            early = early if found is None else found
            yield None if found is None else _of_bracket(found)
        for step in shared_spectrum(probe, self.matrix, self.steps, self.probes, self.seed):
            if isinstance(step, Spectrum):
                yield self._final(step)
                continue
            narrower = None if early is None else early.above(step)
            if narrower is None:
                yield Estimate(step, status=Status.LOWER_BOUND, reason="Lanczos steps are under way")
            else:
                yield _of_bracket(narrower) if narrower is not early else None

    def _final(self, found: Spectrum) -> Estimate:
        value, bound = extreme_ritz_value(found, largest=True)
        settled = bound <= SETTLED * abs(value)
        status, reason = Status.CONVERGED, ""
        if not settled:
            status, reason = Status.BUDGET_SPENT, f"the largest Ritz value has not settled in {found.steps} steps"
        return Estimate(value, bound, status=status, reason=reason, details=found.to_dict())
