"""Paper 3, as coded: everything from one Lanczos run of 100 steps from one random vector on the Hessian.

    hessian_top_eigenvalue, hessian_bottom_eigenvalue    the largest and the smallest Ritz value
    hessian_trace                                        Σ_j w_j θ_j   ≈ tr H / P
    hessian_frobenius                                    Σ_j w_j θ_j²  ≈ ‖H‖²_F / P

θ_j are the Ritz values, w_j their weights. That the "Frobenius norm" is the mean squared eigenvalue follows from the paper's own
numbers: λ₁ = 387.8 with 15.3 million parameters allows 0.02 ≥ λ₁²/P = 0.0099, but neither ‖H‖_F ≥ λ₁ nor
‖H‖_F/√P ≥ λ₁/√P = 0.099. The runs share one spectrum: 100 Hessian products in all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from landscope.core.estimate import Estimate, Status
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.sharpness.matrices import extreme_ritz_value, shared_spectrum
from landscope.papers.false_friend.stability import BatchHessianVariance
from landscope.probe.probe import Probe
from landscope.spectra import Spectrum

__all__ = ["BatchHessianVariance", "MeanEigenvalue", "MeanSquaredEigenvalue", "SmallestRitzValue"]


@dataclass(frozen=True, kw_only=True)
class _OneProbe(Measure):
    """A number from the spectrum of one random vector."""

    steps: int = 100

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def _spectrum(self, probe: Probe) -> Spectrum:
        *_, found = shared_spectrum(probe, "hessian", self.steps, 1, self.seed)
        assert isinstance(found, Spectrum)
        return found


@register("false-friend/smallest_ritz_value")
@dataclass(frozen=True, kw_only=True)
class SmallestRitzValue(_OneProbe):
    """The smallest Ritz value; `stderr` is the bound on its distance to an eigenvalue.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")    # H = I
    >>> round(SmallestRitzValue()(probe).value, 6)
    1.0
    """

    title, family, unit, better = "smallest Ritz value", Family.CURVATURE, "", None
    cost = "100 Hessian products for all of them"

    def _measure(self, probe: Probe) -> Estimate:
        value, bound = extreme_ritz_value(self._spectrum(probe), largest=False)
        return Estimate(value, bound, status=Status.CONVERGED)


@dataclass(frozen=True, kw_only=True)
class _SpectralMean(_OneProbe):
    def _of(self, ritz_values: NDArray[np.float64]) -> NDArray[np.float64]:
        raise NotImplementedError

    def _measure(self, probe: Probe) -> Estimate:
        found = self._spectrum(probe).functional(self._of, per_parameter=True)
        return replace(found, settings={}, details={**found.details, "parameters": probe.n_params})


@register("false-friend/mean_eigenvalue")
@dataclass(frozen=True, kw_only=True)
class MeanEigenvalue(_SpectralMean):
    """Σ_j w_j θ_j, an estimate of tr H / P: what the paper's curvature suite prints as the trace.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")    # H = I
    >>> round(MeanEigenvalue()(probe).value, 6)
    1.0
    """

    title, family, unit, better = "mean Ritz value", Family.CURVATURE, "", None
    cost = "100 Hessian products for all of them"

    def _of(self, ritz_values: NDArray[np.float64]) -> NDArray[np.float64]:
        return ritz_values


@register("false-friend/mean_squared_eigenvalue")
@dataclass(frozen=True, kw_only=True)
class MeanSquaredEigenvalue(_SpectralMean):
    """Σ_j w_j θ_j², an estimate of ‖H‖²_F / P: what the paper calls the Frobenius norm."""

    title, family, unit, better = "mean squared Ritz value", Family.CURVATURE, "", None
    cost = "100 Hessian products for all of them"

    def _of(self, ritz_values: NDArray[np.float64]) -> NDArray[np.float64]:
        return ritz_values**2
