"""The Frobenius norm from products alone, with an error bar.

‖A‖²_F = Σ‖A q‖² + E‖A ω‖² for an orthonormal basis Q of q's and ω uniform on the sphere ‖ω‖² = n = P − k orthogonal to
it. Q starts empty and takes up the products of probes whose scatter is too large: those lean towards the eigenvectors
that dominate the norm, which is where the variance is (a progressive form of Hutch++, Meyer et al. 2021).

The variance of ‖Aω‖² is 2n/(n + 2) · ‖C‖²_F, C = MᵀM − (tr MᵀM / n) I with M = A(I − QQᵀ), and products of two
independent probes estimate it without bias: E (ωᵢᵀ C ωⱼ)² = ‖C‖²_F, where ωᵢᵀ MᵀM ωⱼ = (A ωᵢ)ᵀ(A ωⱼ).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.estimate import Estimate, Status, student_factor
from landscope.core.json import Plain
from landscope.core.seeding import generator
from landscope.spectra.probes import BLOCK, diagonal_and_norms, orthonormal_rows, sphere_rows
from landscope.spectra.protocol import CountedOperator, MatrixLike, as_operator, check_budget, plainly

LEAST_BLOCK = 4
"""Probes drawn together at the least, so that there are pairs among them."""

WORTHWHILE = 0.7
"""A block joins the sketch while the one before has cut the probes needed to this part or less."""


@dataclass(frozen=True)
class Squares:
    """What independent probes tell: `lengths` ‖Aωᵢ‖²; `overlaps`, the mean of (ωᵢᵀ C ωⱼ)² over the others of its block.

    `dimensions` is the effective number of eigenvalues in the Gram matrix of that block.
    """

    lengths: Tensor
    overlaps: Tensor
    dimensions: Tensor

    def __add__(self, other: Squares) -> Squares:
        pairs = (self.lengths, other.lengths), (self.overlaps, other.overlaps), (self.dimensions, other.dimensions)
        return Squares(*map(torch.cat, pairs))

    @property
    def mean(self) -> float:
        """The estimate of ‖A(I − QQᵀ)‖²_F."""
        return float(self.lengths.mean())

    @property
    def variance(self) -> float:
        """Of one square; without a pair the largest possible, that of a matrix of rank one."""
        return 2 * (float(self.overlaps.mean()) if self.overlaps.numel() else self.mean**2)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance.

        An overlap is a product of two χ², so its mean scatters as a variance from a quarter of the probes would, times
        the number of eigenvalues that share in it, which the spectra of the blocks' Gram matrices estimate. An
        eighth instead of a quarter makes up for stopping where the bar happens to look small.
        """
        return max(1.0, self.lengths.numel() / 8 * float(self.dimensions.mean()))

    @property
    def stderr(self) -> float:
        """Of `mean`, widened for the little that is known of the variance."""
        return student_factor(self.freedom) * math.sqrt(self.variance / self.lengths.numel())


def squares(op: CountedOperator, count: int, basis: Tensor, rng: torch.Generator) -> tuple[Squares, Tensor]:
    """`count` probes orthogonal to `basis`, and their products."""
    rows = sphere_rows(count, basis, rng, op.vectors)
    products = op.rows(rows)
    gram, angles = (op.dot(block, block).double().cpu() for block in (products, rows))
    lengths = gram.diagonal().clone()
    centred = (gram - lengths.mean() / (op.size - len(basis)) * angles).square().fill_diagonal_(0.0)
    overlaps = centred.sum(1) / (count - 1) if count > 1 else lengths[:0]
    shares = torch.linalg.eigvalsh(gram).clamp(min=0.0).square()
    dimension = (shares.sum().square() / shares.square().sum()).nan_to_num(nan=1.0)
    return Squares(lengths, overlaps, dimension.expand(count)), products


def frobenius(
    op: MatrixLike, tol: float = 0.01, seed: int = 0, max_matvecs: int | None = None, max_sketch: int = 64
) -> Estimate:
    """Estimate ‖A‖_F, with its standard error (delta method: that of the square, divided by 2‖A‖_F).

    Stops when the error is below `tol` · ‖A‖_F, or after `max_matvecs` products (default 1000); exact from P unit
    vectors where that is no dearer. Memory: `max_sketch` + 40 vectors of length P at most.

    Two standard errors held the truth in 92.2 … 99.8 % of 1000 runs each, 97.1 % on average, in 100 cases:
    the 21 spectra that `hutchinson` lists, P = 300, tol = 0.2, 0.05, 0.01 and budgets of 60 and 24.

    >>> frobenius(torch.diag(torch.tensor([3.0, 4.0]))).value
    5.0
    """
    with plainly(op):
        *_, found = frobenius_steps(op, tol, seed, max_matvecs, max_sketch)
    return found


def frobenius_steps(
    op: MatrixLike, tol: float = 0.01, seed: int = 0, max_matvecs: int | None = None, max_sketch: int = 64
) -> Iterator[Estimate]:
    """`frobenius` block by block: what the probes so far say, and the norm at the end."""
    if not tol > 0:
        raise ValueError(f"tol must be positive, got {tol}")
    counted, budget, rng = as_operator(op), check_budget(max_matvecs), generator(seed, "frobenius")
    counted.refuse_narrow("a Frobenius norm")
    settings: dict[str, Plain] = {"tol": tol, "seed": seed, "max_matvecs": budget, "max_sketch": max_sketch}
    basis = counted.empty(0)
    captured, before, wanted = 0.0, math.inf, 0.0
    probes: Squares | None = None
    while True:
        left = budget - counted.matvecs
        if counted.size <= min(left, max(wanted, 2 * BLOCK)):
            yield from_columns(counted, settings)
            return
        count = min(left, BLOCK if probes is None else min(BLOCK, max(LEAST_BLOCK, math.ceil(wanted))))
        more, products = squares(counted, count, basis, rng)
        probes = more if probes is None else probes + more
        total, left = captured + probes.mean, budget - counted.matvecs
        norm = math.sqrt(total)
        sampling = probes.stderr / (2 * norm) if norm > 0 else 0.0
        stderr = math.hypot(sampling, counted.rounding * norm)
        ended = stderr <= tol * norm or left == 0
        if ended or math.isfinite(stderr):
            status = Status.CONVERGED if stderr <= tol * norm else Status.BUDGET_SPENT if ended else Status.RUNNING
            details: dict[str, Plain] = {
                "matvecs": counted.matvecs,
                "sketch": len(basis),
                "probes": len(probes.lengths),
            }
            yield Estimate(norm, stderr, status=status, settings=settings, details=details)
        if ended:
            return
        needed = probes.variance / (2 * tol * total) ** 2
        wanted = student_factor(probes.freedom) ** 2 * needed - len(probes.lengths)
        # Taking a block into the sketch costs its products and new probes; `left` must pay for both.
        pays = wanted > 2 * BLOCK and needed <= WORTHWHILE * before and left >= 2 * BLOCK
        if pays and len(basis) + BLOCK <= max_sketch:
            grown = orthonormal_rows(torch.cat((basis, products)), counted.rounding, counted.vectors)
            more_of_it = counted.rows(grown[len(basis) :]).square().sum(dtype=torch.float64)
            captured += float(counted.vectors.add_up(more_of_it))
            basis, before, wanted, probes = grown, needed, 0.0, None


def from_columns(op: CountedOperator, settings: Mapping[str, Plain]) -> Estimate:
    """Take the exact norm from P products with unit vectors."""
    norm = float(torch.linalg.vector_norm(diagonal_and_norms(op)[1]))
    details: dict[str, Plain] = {"matvecs": op.matvecs, "sketch": 0, "probes": 0}
    return Estimate(norm, op.rounding * norm, status=Status.EXACT, settings=settings, details=details)
