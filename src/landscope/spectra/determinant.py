"""The log-determinant of A + shift · I by quadrature."""

from __future__ import annotations

import numpy as np

from landscope.core.estimate import Estimate
from landscope.spectra.protocol import MatrixLike
from landscope.spectra.quadrature import spectrum

__all__ = ["log_det"]


def log_det(
    op: MatrixLike, shift: float = 0.0, steps: int = 64, probes: int = 4, seed: int = 0, max_bytes: int | None = None
) -> Estimate:
    """Estimate log det(A + shift · I) = tr log(A + shift · I) (Ubaru, Chen & Saad 2017); probes · steps products.

    Not applicable where a Ritz value shows that A + shift · I is not positive definite. From a `Spectrum` that is there
    already use `spectrum.functional(lambda x: np.log(x + shift))`, which needs no further product.

    >>> log_det(np.diag([1.0, 2.0, 4.0]), probes=200).details["matvecs"]
    600
    >>> log_det(np.diag([1.0, -2.0]), shift=1.0)
    Estimate(– (not applicable: A + 1·I is not positive definite: it has the Ritz value -1))
    """
    measured = spectrum(op, steps, probes, seed, max_bytes)
    lowest = float(measured.nodes[measured.weights > 0].min()) + shift
    if lowest <= 0:
        return Estimate.not_applicable(
            f"A + {shift:.4g}·I is not positive definite: it has the Ritz value {lowest:.4g}",
            details={"matvecs": measured.matvecs},
        )
    return measured.functional(lambda x: np.log(x + shift))
