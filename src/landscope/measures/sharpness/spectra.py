"""The whole spectrum of a curvature matrix by stochastic Lanczos quadrature (Ghorbani et al. 2019; Granziol 2020).

The value is the largest Ritz value; nodes and weights are in the details, from which
`landscope.spectra.Spectrum.from_dict` makes the object that plots itself. The trace, the Frobenius norm and the
smallest eigenvalue read it instead of computing anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from landscope.core.estimate import Estimate, Status
from landscope.core.probe import Probe
from landscope.measures.base import Measure, register
from landscope.measures.sharpness.matrices import extreme_ritz_value, known_spectrum, shared_spectrum

__all__ = ["FisherSpectrum", "GGNSpectrum", "HessianSpectrum"]

SETTLED = 0.01
"""Relative bound on the largest Ritz value at which the spectrum counts as converged."""
PRODUCT = 2.25
"""Passes of one product in a block of four."""


@dataclass(frozen=True, kw_only=True)
class _Spectrum(Measure):
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
        return PRODUCT * min(self.steps, probe.n_params) * self.probes

    def least(self, probe: Probe) -> float:
        """One probe of twenty steps; nothing where a spectrum of the same matrix is known."""
        if known_spectrum(probe, self.matrix) is not None:
            return 0.0
        return min(self.passes(probe), 20 * PRODUCT)

    def within(self, passes: float, probe: Probe) -> Measure:
        """One that is known already, or fewer probes first, then fewer steps."""
        known = known_spectrum(probe, self.matrix)
        if known is not None:
            return self.with_settings(steps=known.steps, probes=known.probes, seed=known.seed)
        products = max(2, int(passes / PRODUCT))
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

    matrix: ClassVar[str] = "hessian"


@register("ggn_spectrum")
@dataclass(frozen=True, kw_only=True)
class GGNSpectrum(_Spectrum):
    """The spectrum of the generalised Gauss–Newton matrix."""

    matrix: ClassVar[str] = "ggn"


@register("fisher_spectrum")
@dataclass(frozen=True, kw_only=True)
class FisherSpectrum(_Spectrum):
    """The spectrum of the Fisher matrix."""

    matrix: ClassVar[str] = "fisher"
