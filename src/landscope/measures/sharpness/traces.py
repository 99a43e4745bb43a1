"""Traces of the curvature matrices: the sum of all curvatures, Σ_j λ_j.

tr H / P is the mean curvature along a random direction. By a sketch and random probes (`landscope.spectra.trace`), or from the
shared spectrum where that is accurate enough; the Fisher matrix, and the Gauss–Newton matrix where it is the same, exactly
from one gradient norm per class where there are few classes. The error over the data comes from per-sample numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from landscope.core.estimate import Estimate, Plain, Status
from landscope.core.probe import Probe
from landscope.core.seeding import generator, rademacher
from landscope.measures.base import Measure, register
from landscope.measures.sharpness.directional import trace_data_error
from landscope.measures.sharpness.fisher_trace import fisher_trace
from landscope.measures.sharpness.matrices import is_fisher, known_spectrum, matrix
from landscope.measures.sharpness.small_fisher import small_fisher, small_fisher_passes
from landscope.spectra import frobenius, trace

__all__ = ["FisherFrobenius", "FisherTrace", "GGNFrobenius", "GGNTrace", "HessianFrobenius", "HessianTrace"]

PRODUCT = 2.1
"""Passes of one product in a block."""
USUAL_PRODUCTS = 100
DIRECTIONS = 16
"""Random directions for the error over the data."""


@dataclass(frozen=True, kw_only=True)
class _Sum(Measure):
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

    matrix: ClassVar[str] = "hessian"


@register("ggn_trace")
@dataclass(frozen=True, kw_only=True)
class GGNTrace(_Trace):
    """tr of the generalised Gauss–Newton matrix."""

    matrix: ClassVar[str] = "ggn"


@register("fisher_trace")
@dataclass(frozen=True, kw_only=True)
class FisherTrace(_Trace):
    """tr F."""

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

    matrix: ClassVar[str] = "hessian"


@register("ggn_frobenius")
@dataclass(frozen=True, kw_only=True)
class GGNFrobenius(_Frobenius):
    """‖GGN‖_F."""

    matrix: ClassVar[str] = "ggn"


@register("fisher_frobenius")
@dataclass(frozen=True, kw_only=True)
class FisherFrobenius(_Frobenius):
    """‖F‖_F."""

    matrix: ClassVar[str] = "fisher"
