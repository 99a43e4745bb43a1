"""Random probes on a sphere, and the error bar that they carry.

For ω uniform on the sphere ‖ω‖² = n of an n-dimensional subspace and a symmetric B acting in it, x = ωᵀBω has mean tr B
and, with the part e = Bω − (x/n) ω of the product that points away from ω,

    Var x  =  2 E‖e‖²        exactly, for every B and n.

(From E x² = (t² + 2‖B‖²_F) n/(n + 2), t = tr B: both sides equal 2n/(n + 2) · (‖B‖²_F − t²/n).) So each product
estimates the variance of its own quadratic form, from n numbers instead of one: one probe already has an error bar, a
multiple of the identity has exactly none, and as the law depends on the eigenvalues of B alone, so does the coverage.

The estimate ‖e‖² itself scatters most when one eigenvalue dominates: then it is a multiple of χ² with one degree of
freedom per probe, otherwise with r = ‖B‖⁴_F / tr B⁴ ≥ 1 of them. Bars are widened by Student's factor for that number,
so that two of them hold the truth with 95 % probability however few the probes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

from landscope.spectra.lanczos import fresh_rows, orthogonalise
from landscope.spectra.protocol import CountedOperator

__all__ = ["Samples", "sample", "sphere_rows", "student_factor"]

TWO_SIGMA = 0.9772498680518208
"""Probability below two standard deviations of a normal variable."""


def student_factor(freedom: float) -> float:
    """How much wider two error bars must be when the variance is known from `freedom` squares only.

    >>> [round(student_factor(n), 2) for n in (1, 4, 20, 1e6)]
    [6.98, 1.43, 1.07, 1.0]
    """
    return float(stdtrit(freedom, TWO_SIGMA)) / 2


def sphere_rows(count: int, basis: Tensor, rng: torch.Generator) -> Tensor:
    """Rows (count, P), uniform on the sphere of squared radius n = P − j orthogonal to the rows of `basis` (j, P)."""
    return fresh_rows(count, basis, rng).mul_(math.sqrt(basis.shape[1] - basis.shape[0]))


@dataclass(frozen=True)
class Samples:
    """Quadratic forms of independent probes, with what is known about their spread.

    `forms` are the xᵢ, `spreads` the ‖eᵢ‖², `squares` the ‖Bωᵢ‖²; `overlaps` the (eᵢ·eⱼ)² of some pairs, whose mean
    estimates tr B⁴. All float64 on the CPU.
    """

    forms: Tensor
    spreads: Tensor
    squares: Tensor
    overlaps: Tensor

    def __add__(self, other: Samples) -> Samples:
        return Samples(*(torch.cat(pair) for pair in zip(self.parts, other.parts, strict=True)))

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four tensors."""
        return self.forms, self.spreads, self.squares, self.overlaps

    @property
    def count(self) -> int:
        """How many probes."""
        return self.forms.numel()

    @property
    def mean(self) -> float:
        """The estimate of tr B."""
        return float(self.forms.mean())

    @property
    def variance(self) -> float:
        """The estimated variance of one quadratic form."""
        return 2 * float(self.spreads.mean())

    @property
    def freedom(self) -> float:
        """Degrees of freedom of that variance."""
        power = float(self.overlaps.mean()) if self.overlaps.numel() else 0.0
        dimension = float(self.spreads.mean()) ** 2 / power if power > 0 else 1.0
        return self.count * max(1.0, dimension)

    @property
    def stderr(self) -> float:
        """The standard error of `mean`, widened for the little that is known of the variance."""
        return student_factor(self.freedom) * math.sqrt(self.variance / self.count)


def sample(op: CountedOperator, rows: Tensor, basis: Tensor) -> tuple[Samples, Tensor]:
    """Quadratic forms of `rows` (b, P) orthogonal to `basis`, and the products A ω themselves; b products."""
    products = op.rows(rows)
    inside, _ = orthogonalise(products, basis)
    forms = (rows * inside).sum(1)
    away = inside - (forms / (basis.shape[1] - basis.shape[0])).unsqueeze(1) * rows
    gram = (away @ away.T).double().cpu()
    first, second = torch.triu_indices(len(rows), len(rows), offset=1)
    squares = torch.linalg.vector_norm(inside, dim=1).double().cpu().square()
    return Samples(forms.double().cpu(), gram.diagonal().clone(), squares, gram[first, second].square()), products
