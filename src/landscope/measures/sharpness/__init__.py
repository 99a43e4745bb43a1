"""Every sharpness measure, one family per file; importing this package registers them all."""

from landscope.measures.sharpness import (
    eigenvalues,
    fisher_rao,
    gradients,
    igs,
    random_noise,
    relative_flatness,
    traces,
    worst_case,
)

__all__ = [
    "eigenvalues",
    "fisher_rao",
    "gradients",
    "igs",
    "random_noise",
    "relative_flatness",
    "traces",
    "worst_case",
]
