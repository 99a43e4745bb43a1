"""Extreme eigenvalues of the Hessian, the Gauss–Newton and the Fisher matrix, with a bound on their error.

λ₁ = max_v vᵀ A v over unit v: the curvature along the sharpest direction (Keskar et al. 2017; Granziol 2020). By
restarted Lanczos with full reorthogonalisation; `stderr` is the residual ‖A v − λ v‖, within which a true eigenvalue
lies. The error over the data is that of the Rayleigh quotient vᵀ A_i v (Hessian only).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.curvature.per_sample import eigenvalue_data_error
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.sharpness.matrices import (
    eigenpairs,
    eigenpairs_known,
    extreme_ritz_value,
    is_fisher,
    known_spectrum,
    shared_spectrum,
    small_fisher,
    small_fisher_passes,
)
from landscope.probe.probe import Probe
from landscope.spectra import Eigenpairs

__all__ = [
    "FisherBottomEigenvalue",
    "FisherSpectrum",
    "FisherTopEigenvalue",
    "GGNBottomEigenvalue",
    "GGNSpectrum",
    "GGNTopEigenvalue",
    "HessianBottomEigenvalue",
    "HessianSpectrum",
    "HessianTopEigenvalue",
    "LogVolume",
]


PRODUCT = 3.0
"""Passes of one Hessian product."""
RESOLVED = 20
"""How many times the tolerance an eigenvalue must be to be told from its neighbours."""
USUAL_PRODUCTS = 25
"""Products that a top eigenvalue usually takes."""


@dataclass(frozen=True, kw_only=True)
class _Eigenvalue(Measure):
    family = Family.CURVATURE
    unit = "loss per parameter²"
    better = None
    cost = "about 25 products with the matrix"
    reference = "Keskar et al. 2017; Granziol 2020"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation", "logit_shift"})
    matrix: ClassVar[str]
    which: ClassVar[str]

    k: int = 1
    tol: float = 1e-3
    max_matvecs: int | None = None

    def __post_init__(self) -> None:
        if self.k < 1 or not self.tol > 0:
            raise ValueError(f"k must be at least 1 and tol positive, got k={self.k}, tol={self.tol}")
        if self.max_matvecs is not None and self.max_matvecs < 0:
            raise ValueError(f"max_matvecs must not be negative, got {self.max_matvecs}")

    def passes(self, probe: Probe) -> float:
        """About 25 products for the first eigenvalue, five more for each other one; none where the spectrum is known."""
        known = eigenpairs_known(probe, self.matrix, self.k, self.which, self.tol, self.seed)
        if known or self._from_spectrum(probe) is not None:
            return 0.0
        products = PRODUCT * min(self.max_matvecs or math.inf, USUAL_PRODUCTS + 5 * (self.k - 1), probe.n_params)
        few = small_fisher_passes(probe) if is_fisher(probe, self.matrix) else None
        return products if few is None else min(products, few)

    def least(self, probe: Probe) -> float:
        """Eight products and two for each further eigenvalue: the bound then says something."""
        return min(self.passes(probe), PRODUCT * (8 + 2 * (self.k - 1)))

    def within(self, passes: float, probe: Probe) -> Measure:
        """At most so many products as fit, and at least two for each eigenvalue."""
        return self.with_settings(max_matvecs=max(2 * self.k, int(passes / PRODUCT)))

    def _pairs(self, probe: Probe) -> Eigenpairs:
        return eigenpairs(probe, self.matrix, self.k, self.which, self.tol, self.max_matvecs, self.seed)

    def _from_few_samples(self, probe: Probe) -> Estimate | None:
        """All eigenvalues of the Fisher matrix at once, where there are few samples."""
        found = small_fisher(probe, self.passes(probe)) if is_fisher(probe, self.matrix) else None
        if found is None or self.k > probe.n_params:
            return None
        everything = [*found.tolist(), *[0.0] * min(self.k, probe.n_params - len(found))]
        values = everything[: self.k] if self.which == "LA" else everything[::-1][: self.k]
        return Estimate(values[0], details={"values": values, "from": "gram matrix"})

    def _from_spectrum(self, probe: Probe) -> Estimate | None:
        """The smallest eigenvalue, where the shared spectrum holds it; the top one's vector is worth its own products."""
        known = known_spectrum(probe, self.matrix)
        if known is None or self.k > 1 or self.which != "SA":
            return None
        value, bound = extreme_ritz_value(known, largest=False)
        scale = max(abs(value), abs(extreme_ritz_value(known, largest=True)[0]))
        if bound > self.tol * scale:
            return None
        return Estimate(value, bound, status=Status.CONVERGED, details={"from": f"{self.matrix}_spectrum"})

    def _measure(self, probe: Probe) -> Estimate:
        shared = self._from_few_samples(probe) or self._from_spectrum(probe)
        if shared is not None:
            return shared
        pairs = self._pairs(probe)
        error = eigenvalue_data_error(probe, pairs.vectors[:, 0]) if self.matrix == "hessian" else None
        return Estimate(
            float(pairs.values[0]),
            float(pairs.residuals[0]),
            error,
            Status.CONVERGED if pairs.converged else Status.BUDGET_SPENT,
            "" if pairs.converged else f"not converged to tol={self.tol:g} after {pairs.matvecs} products",
            details={
                "values": pairs.values.tolist(),
                "residuals": pairs.residuals.tolist(),
                "matvecs": pairs.matvecs,
            },
        )


@register("hessian_top_eigenvalue")
@dataclass(frozen=True, kw_only=True)
class HessianTopEigenvalue(_Eigenvalue):
    """λ₁ of the Hessian; `k` largest in the details."""

    title = "Hessian λ₁"
    turn = (1, 0)
    matrix: ClassVar[str] = "hessian"
    which: ClassVar[str] = "LA"


@register("hessian_bottom_eigenvalue")
@dataclass(frozen=True, kw_only=True)
class HessianBottomEigenvalue(_Eigenvalue):
    """The smallest eigenvalue of the Hessian: below zero where the point is no minimum."""

    title = "Hessian λ_min"
    turn = (1, 2)
    matrix: ClassVar[str] = "hessian"
    which: ClassVar[str] = "SA"


@register("ggn_top_eigenvalue")
@dataclass(frozen=True, kw_only=True)
class GGNTopEigenvalue(_Eigenvalue):
    """λ₁ of the generalised Gauss–Newton matrix."""

    title = "GGN λ₁"
    turn = (3, 0)
    matrix: ClassVar[str] = "ggn"
    which: ClassVar[str] = "LA"


@register("fisher_top_eigenvalue")
@dataclass(frozen=True, kw_only=True)
class FisherTopEigenvalue(_Eigenvalue):
    """λ₁ of the Fisher matrix."""

    title = "Fisher λ₁"
    unit = "nats per parameter²"
    turn = (4, 0)
    matrix: ClassVar[str] = "fisher"
    which: ClassVar[str] = "LA"


@register("ggn_bottom_eigenvalue")
@dataclass(frozen=True, kw_only=True)
class GGNBottomEigenvalue(_Eigenvalue):
    """The smallest eigenvalue of the generalised Gauss–Newton matrix: zero where parameters outnumber the data."""

    title = "GGN λ_min"
    turn = (3, 2)
    matrix: ClassVar[str] = "ggn"
    which: ClassVar[str] = "SA"


@register("fisher_bottom_eigenvalue")
@dataclass(frozen=True, kw_only=True)
class FisherBottomEigenvalue(_Eigenvalue):
    """The smallest eigenvalue of the Fisher matrix."""

    title = "Fisher λ_min"
    unit = "nats per parameter²"
    turn = (4, 2)
    matrix: ClassVar[str] = "fisher"
    which: ClassVar[str] = "SA"


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
    turn = (5, 0)
    matrix: ClassVar[str] = "hessian"
    which: ClassVar[str] = "LA"

    k: int = 10

    def _measure(self, probe: Probe) -> Estimate:
        pairs = self._pairs(probe)
        values, bounds = pairs.values.tolist(), pairs.residuals.tolist()
        positive, missed = sum(v > 0 for v in values), 2 * self.tol * values[0]
        if positive < self.k:
            unknown = values[-1] + bounds[-1] + missed > 0
            known = (
                f"only {positive} of the {self.k} largest eigenvalues are {'known to be ' if unknown else ''}positive"
            )
            raise NotApplicableError(f"{known}; lower {'tol or k' if unknown else 'k'}")
        short, reason = 0.0, ""
        if RESOLVED * self.tol * values[0] > values[-1]:
            short = missed
            reason = (
                f"tol={self.tol:g} is coarse for the {self.k}-th eigenvalue, and the error bar wide: lower tol or k"
            )
        if not pairs.converged:
            reason = f"not converged to tol={self.tol:g} after {pairs.matvecs} products"
        return Estimate(
            sum(map(math.log, values)),
            sum(math.log1p((b + short) / v) for b, v in zip(bounds, values, strict=True)),
            status=Status.CONVERGED if pairs.converged else Status.BUDGET_SPENT,
            reason=reason,
            details={"values": values, "residuals": bounds, "matvecs": pairs.matvecs},
        )


# The whole spectrum of a curvature matrix by stochastic Lanczos quadrature (Ghorbani et al. 2019; Granziol 2020).
#
# The value is the largest Ritz value; nodes and weights are in the details, from which
# `landscope.spectra.Spectrum.from_dict` makes the object that plots itself. The trace, the Frobenius norm and the
# smallest eigenvalue read it instead of computing anew.


SETTLED = 0.01
"""Relative bound on the largest Ritz value at which the spectrum counts as converged."""
BLOCK_PRODUCT = 2.25
"""Passes of one product in a block of four."""


@dataclass(frozen=True, kw_only=True)
class _Spectrum(Measure):
    family = Family.CURVATURE
    unit = "loss per parameter²"
    better = None
    cost = "256 products with the matrix"
    reference = "Ghorbani et al. 2019; Granziol 2020"
    matrix: ClassVar[str]
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation", "logit_shift"})

    steps: int = 64
    probes: int = 4

    def __post_init__(self) -> None:
        if self.steps < 1 or self.probes < 1:
            raise ValueError(f"steps and probes must be at least 1, got {self.steps} and {self.probes}")

    def passes(self, probe: Probe) -> float:
        """One product for each step of each probe; none where it is known."""
        known = known_spectrum(probe, self.matrix)
        if known is not None and (known.steps, known.probes, known.seed) == (self.steps, self.probes, self.seed):
            return 0.0
        return BLOCK_PRODUCT * min(self.steps, probe.n_params) * self.probes

    def least(self, probe: Probe) -> float:
        """One probe of twenty steps; nothing where a spectrum of the same matrix is known."""
        if known_spectrum(probe, self.matrix) is not None:
            return 0.0
        return min(self.passes(probe), 20 * BLOCK_PRODUCT)

    def within(self, passes: float, probe: Probe) -> Measure:
        """One that is known already, or fewer probes first, then fewer steps."""
        known = known_spectrum(probe, self.matrix)
        if known is not None:
            return self.with_settings(steps=known.steps, probes=known.probes, seed=known.seed)
        products = max(2, int(passes / BLOCK_PRODUCT))
        probes = max(1, min(self.probes, products // self.steps))
        return self.with_settings(probes=probes, steps=max(2, min(self.steps, products // probes)))

    def _measure(self, probe: Probe) -> Estimate:
        found = shared_spectrum(probe, self.matrix, self.steps, self.probes, self.seed)
        value, bound = extreme_ritz_value(found, largest=True)
        settled = bound <= SETTLED * abs(value)
        status, reason = Status.CONVERGED, ""
        if not settled:
            status, reason = Status.BUDGET_SPENT, f"the largest Ritz value has not settled in {found.steps} steps"
        return Estimate(value, bound, status=status, reason=reason, details=found.to_dict())


@register("hessian_spectrum")
@dataclass(frozen=True, kw_only=True)
class HessianSpectrum(_Spectrum):
    """The spectrum of the Hessian."""

    title = "Hessian spectrum"
    same_value_as = "hessian_top_eigenvalue"
    turn = (1, 1)
    matrix: ClassVar[str] = "hessian"


@register("ggn_spectrum")
@dataclass(frozen=True, kw_only=True)
class GGNSpectrum(_Spectrum):
    """The spectrum of the generalised Gauss–Newton matrix."""

    title = "GGN spectrum"
    same_value_as = "ggn_top_eigenvalue"
    turn = (3, 1)
    matrix: ClassVar[str] = "ggn"


@register("fisher_spectrum")
@dataclass(frozen=True, kw_only=True)
class FisherSpectrum(_Spectrum):
    """The spectrum of the Fisher matrix."""

    title = "Fisher spectrum"
    unit = "nats per parameter²"
    same_value_as = "fisher_top_eigenvalue"
    turn = (4, 1)
    matrix: ClassVar[str] = "fisher"
