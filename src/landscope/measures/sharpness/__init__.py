"""Every sharpness measure, one idea per file; importing this package registers them all."""

from landscope.measures.sharpness import (
    eigenvalues,
    spectra,
    traces,
)

__all__ = ["eigenvalues", "spectra", "traces"]
