"""Every sharpness measure, one idea per file; importing this package registers them all."""

from landscope.measures.sharpness import (
    adaptive_sharpness,
    average_sharpness,
    eigenvalues,
    fisher_rao,
    fisher_rao_homogeneous,
    gradient_noise,
    gradient_norm,
    igs,
    keskar_sharpness,
    l2_norm,
    pac_bayes_sigma,
    random_sharpness,
    relative_flatness,
    sam_sharpness,
    spectra,
    traces,
)

__all__ = [
    "adaptive_sharpness",
    "average_sharpness",
    "eigenvalues",
    "fisher_rao",
    "fisher_rao_homogeneous",
    "gradient_noise",
    "gradient_norm",
    "igs",
    "keskar_sharpness",
    "l2_norm",
    "pac_bayes_sigma",
    "random_sharpness",
    "relative_flatness",
    "sam_sharpness",
    "spectra",
    "traces",
]
