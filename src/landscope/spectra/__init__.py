"""What matrix–vector products can tell about a symmetric matrix.

    eigsh        extreme eigenpairs, each with a bound on its error
    trace        tr A          ┐
    frobenius    ‖A‖_F         ├ with a standard error that is true
    log_det      log det(A+s)  ┘
    diagonal     diag A, a standard error for every entry
    spectrum     all eigenvalues at once: quadrature, density, tr f(A)

All are pure functions of anything with `shape` and `@`: Landscope's operators, torch, NumPy and SciPy matrices,
`LinearOperator`s. They count products, take a seed, and leave the operator alone.
"""

from landscope.spectra.eigen import eigsh, eigsh_steps
from landscope.spectra.norms import frobenius
from landscope.spectra.pairs import Eigenpairs
from landscope.spectra.quadrature import Spectrum, log_det, spectrum
from landscope.spectra.trace import DiagonalEstimate, diagonal, trace

__all__ = [
    "DiagonalEstimate",
    "Eigenpairs",
    "Spectrum",
    "diagonal",
    "eigsh",
    "eigsh_steps",
    "frobenius",
    "log_det",
    "spectrum",
    "trace",
]
