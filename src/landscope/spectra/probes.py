"""Random probes on a sphere, sketches and exact columns, with the error bar that they carry."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.estimate import student_factor
from landscope.core.parameters import Vectors
from landscope.spectra.lanczos import fresh_rows, orthogonalise
from landscope.spectra.protocol import CountedOperator

# Random probes on a sphere, and the error bar that they carry.
#
# For ω uniform on the sphere ‖ω‖² = n of an n-dimensional subspace and a symmetric B acting in it, x = ωᵀBω has mean tr B
# and, with the part e = Bω − (x/n) ω of the product that points away from ω,
#
#     Var x  =  2 E‖e‖²        exactly, for every B and n.
#
# (From E x² = (t² + 2‖B‖²_F) n/(n + 2), t = tr B: both sides equal 2n/(n + 2) · (‖B‖²_F − t²/n).) So each product
# estimates the variance of its own quadratic form, from n numbers instead of one: one probe already has an error bar, a
# multiple of the identity has exactly none, and as the law depends on the eigenvalues of B alone, so does the coverage.
#
# The estimate ‖e‖² itself scatters most when one eigenvalue dominates: then it is a multiple of χ² with one degree of
# freedom per probe, otherwise with r = ‖B‖⁴_F / tr B⁴ ≥ 1 of them. Bars are widened by Student's factor for that number,
# so that two of them hold the truth with 95 % probability however few the probes.


def sphere_rows(count: int, basis: Tensor, rng: torch.Generator, vectors: Vectors | None = None) -> Tensor:
    """Rows (count, P), uniform on the sphere of squared radius n = P − j orthogonal to the rows of `basis` (j, P)."""
    vectors = vectors or Vectors(basis.shape[1])
    return fresh_rows(count, basis, rng, vectors).mul_(math.sqrt(vectors.size - basis.shape[0]))


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
    inside, _ = orthogonalise(products, basis, op.vectors)
    forms = op.vectors.add_up((rows * inside).sum(1))
    away = inside - (forms / (op.size - basis.shape[0])).unsqueeze(1) * rows
    gram = op.dot(away, away).double().cpu()
    first, second = torch.triu_indices(len(rows), len(rows), offset=1)
    squares = op.vectors.norms(inside).double().cpu().square()
    return Samples(forms.double().cpu(), gram.diagonal().clone(), squares, gram[first, second].square()), products


# Whether a sketch of the range pays, judged from products that are there anyway.
#
# Hutch++ (Meyer, Musco, Musco & Woodruff 2021) spends k products on a sketch Y = AΩ and k more on AQ, Q = orth(Y), to be
# rid of the variance that lies in the range of Q. The yᵢ themselves tell beforehand what would be left: the squared
# distance of yᵢ from the span of the other columns is an unbiased estimate of ‖(I − QQᵀ)A‖²_F for a sketch of size k − 1
# (the leave-one-out idea of XTrace, Epperly, Tropp & Webber 2024). The same for half of the columns gives the rate of
# decay, and a power law through the two extrapolates. Nothing but a k × k Gram matrix is needed.


LEAST_PROBES = 4
"""Fresh probes behind any sketch: fewer say too little about their own variance."""


@dataclass(frozen=True)
class Plan:
    """The best sketch size (0: none), the further products it is predicted to need, and whether they reach the goal."""

    sketch: int
    products: float
    reaches: bool


def orthonormal_rows(rows: Tensor, rounding: float, vectors: Vectors | None = None) -> Tensor:
    """Write an orthonormal basis of the span of `rows` over them; fewer rows where they are dependent.

    >>> orthonormal_rows(torch.tensor([[2.0, 0.0], [3.0, 0.0], [1.0, 1.0]]), 1e-6)
    tensor([[1., 0.],
            [0., 1.]])
    """
    kept, vectors = 0, vectors or Vectors(rows.shape[1])
    for i in range(rows.shape[0]):
        rest, _ = orthogonalise(rows[i : i + 1], rows[:kept], vectors)
        length, before = float(vectors.norms(rest)), float(vectors.norms(rows[i]))
        if length > rounding * before:
            rows[kept] = rest[0] / length
            kept += 1
    return rows[:kept]


def left_over(gram: Tensor) -> float:
    """Mean squared distance of each vector from the span of the others, given their Gram matrix.

    >>> [round(left_over(gram), 6) for gram in (torch.eye(3, dtype=torch.float64), torch.ones((3, 3)).double())]
    [1.0, 0.0]
    """
    values, vectors = torch.linalg.eigh(gram)
    # 1 / (G⁻¹)ᵢᵢ; what rounding leaves of a dependent direction must not turn negative
    floor = torch.finfo(gram.dtype).eps * gram.diagonal().sum()
    return float((1 / (vectors.square() / values.clamp(min=floor)).sum(1)).mean())


def plan(gram: Tensor, variance: float, goal: float, left: int, largest: int) -> Plan:
    """Decide what to do with `left` products after k probes with Gram matrix `gram` of products, forms of `variance`.

    Candidates are no sketch at all and sketches of k … `largest` columns. The cheapest that brings the standard error
    to `goal` wins; if none can, the one that brings it lowest.
    """
    k = gram.shape[0]
    half = k // 2
    now = left_over(gram)
    before = (left_over(gram[:half, :half]) + left_over(gram[half:, half:])) / 2
    rate = max(0.0, math.log2(before / now)) if now > 0 else 0.0
    best = Plan(0, max(variance / goal**2 - k, 0.0), reaches=variance / goal**2 - k <= left)
    lowest = variance / (k + left)
    for size in range(k, largest + 1):
        spent, remaining = 2 * size - k, 2 * now * (size / k) ** -rate
        probes = max(remaining / goal**2, LEAST_PROBES)
        if spent + probes <= left:
            if not best.reaches or spent + probes < best.products:
                best = Plan(size, spent + probes, reaches=True)
        elif not best.reaches and left - spent >= LEAST_PROBES and remaining / (left - spent) < lowest:
            best, lowest = Plan(size, spent + probes, reaches=False), remaining / (left - spent)
    return best


# The matrix itself, a few columns at a time: the exact way, where P products are affordable.


BLOCK = 8
"""Vectors per block of products."""


def diagonal_and_norms(op: CountedOperator) -> tuple[Tensor, Tensor]:
    """All diagonal entries and all column norms, float64 on the CPU; P products, memory for 3 blocks.

    >>> from landscope.spectra.protocol import as_operator
    >>> diagonal_and_norms(as_operator(torch.tensor([[3.0, 4.0], [4.0, 0.0]])))
    (tensor([3., 0.], dtype=torch.float64), tensor([5., 4.], dtype=torch.float64))
    """
    diagonal, norms = torch.empty(op.size, dtype=torch.float64), torch.empty(op.size, dtype=torch.float64)
    for at in range(0, op.size, BLOCK):
        units = op.vectors.units(at, min(at + BLOCK, op.size), op.dtype, op.device)
        products = op.rows(units)
        diagonal[at : at + BLOCK] = op.vectors.add_up((units * products).sum(1)).double().cpu()
        norms[at : at + BLOCK] = op.vectors.norms(products).double().cpu()
    return diagonal, norms
