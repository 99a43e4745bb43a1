"""What an eigensolver finds: eigenpairs with error bounds, and on the way there Ritz values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Eigenpairs:
    """k eigenvalues with orthonormal vectors and error bounds, most wanted first.

    `values` (k,) and `residuals` (k,) are float64 on the CPU, `vectors` (P, k) live where the operator does. Within
    `residuals[i]` of `values[i]` lies a true eigenvalue; rounding of the products is included. `accurate[i]` says
    whether that bound met the tolerance; `complete` whether a search for further copies of repeated eigenvalues ended
    with nothing found (always true for k = 1). Fewer than k pairs come back only if the budget was below k products.
    `scale` is ‖A‖ as far as products have shown it, which tolerances are relative to. `rounding_only` says that products were no
    more than rounding: not those of a symmetric matrix, or below the smallest normal number. Up to `hidden`, an eigenvalue that
    is not among them may be more wanted than the last of several.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    accurate: Tensor
    complete: bool
    matvecs: int
    scale: float
    rounding_only: bool = False
    hidden: float = 0.0

    @property
    def converged(self) -> bool:
        """Whether every pair is accurate and none can be missing."""
        return self.complete and bool(self.accurate.all())

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{v:.6g} ± {r:.1g}" for v, r in zip(self.values.tolist(), self.residuals.tolist(), strict=True)
        )
        return f"Eigenpairs([{shown}], {'converged' if self.converged else 'not converged'}, {self.matvecs} products)"


@dataclass(frozen=True)
class RitzValues:
    """The k most wanted Ritz values so far with their residuals, after `matvecs` products; the basis stays with the search."""

    values: Tensor
    residuals: Tensor
    matvecs: int
    seen: bool
    """Whether products enough were made to have met an eigenvalue that is more wanted by half."""
    scale: float
