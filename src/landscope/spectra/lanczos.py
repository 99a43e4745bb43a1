"""The Lanczos decomposition A Q = Q T + r eᵀ with full reorthogonalisation, for many starts in lock-step.

One step multiplies the newest basis vector by A and removes its components along all earlier ones, twice ("twice is
enough", Giraud, Langou & Rozložník 2005), so the basis stays orthonormal to machine precision and no ghost eigenvalues
appear (Paige 1972; Golub & Van Loan §10.3). `step` is the only recurrence in the package: quadrature runs it through
`lanczos`, the eigensolver adds restarts and deflation around it.

Cost of `steps` steps from b starts: b · steps products, issued as blocks of b; O(b · steps² · P) further flops;
b · (steps + 2) vectors of length P.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from landscope.core.errors import OperandError
from landscope.core.parameters import STRIP, Vectors
from landscope.core.seeding import generator
from landscope.spectra.protocol import CountedOperator, MatrixLike, as_operator


@dataclass(frozen=True)
class Step:
    """What one product adds: coefficients along the basis (b, j), what is left (b, P), its norm and that of A q."""

    coefficients: Tensor
    residual: Tensor
    beta: Tensor
    size: Tensor


@dataclass(frozen=True)
class Lanczos:
    """b decompositions A Qᵢ = Qᵢ Tᵢ + rᵢ eᵀ.

    `basis` (b, m, P) holds the vectors of each Qᵢ as rows; `diagonal` (b, m) and `offdiagonal` (b, m − 1) are Tᵢ in
    float64 on the CPU; `residual` (b, P) is rᵢ. `matvecs` counts products. m is smaller than the steps asked for when
    every start has spanned an invariant subspace; a start that did so earlier than the others continues from a fresh
    random vector behind a zero in its `offdiagonal`, which leaves the decomposition valid.
    """

    basis: Tensor
    diagonal: Tensor
    offdiagonal: Tensor
    residual: Tensor
    matvecs: int

    def tridiagonal(self) -> Tensor:
        """Assemble the matrices Tᵢ (b, m, m)."""
        off = torch.diag_embed(self.offdiagonal, 1)
        return torch.diag_embed(self.diagonal) + off + off.mT


def orthogonalise(rows: Tensor, basis: Tensor, vectors: Vectors | None = None) -> tuple[Tensor, Tensor]:
    """`rows` (b, P) less their components along a common `basis` (j, P) or each its own (b, j, P), and these (b, j).

    >>> rest, along = orthogonalise(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
    >>> rest, along
    (tensor([[0., 4.]]), tensor([[3.]]))
    """
    total = rows.new_zeros((rows.shape[0], basis.shape[-2]))
    if not total.numel():
        return rows, total
    add_up = (vectors or Vectors(rows.shape[-1])).add_up
    for _ in range(2):
        if basis.ndim == 2:
            along = add_up(rows @ basis.T)
            rows = torch.addmm(rows, along, basis, alpha=-1)
        else:
            along = add_up((basis @ rows.unsqueeze(-1)).squeeze(-1))
            rows = rows - (along.unsqueeze(-2) @ basis).squeeze(-2)
        total = total + along
    return rows, total


def fresh_rows(count: int, basis: Tensor, rng: torch.Generator, vectors: Vectors | None = None) -> Tensor:
    """Random unit rows (count, P), orthogonal to the rows of a `basis` (j, P)."""
    vectors = vectors or Vectors(basis.shape[-1])
    draws = [vectors.normal(rng, basis.dtype, basis.device) for _ in range(count)]
    rows, _ = orthogonalise(torch.stack(draws), basis, vectors)
    return unit_rows(rows, vectors)


def unit_rows(rows: Tensor, vectors: Vectors) -> Tensor:
    """The rows at length 1; zeros where there is nothing."""
    return rows / vectors.norms(rows).clamp(min=1e-12).to(rows.dtype)[:, None]


def step(op: CountedOperator, basis: Tensor) -> Step:
    """Multiply the last row of `basis` (b, j, P) by A and orthogonalise against all rows; b products."""
    product = op.rows(basis[:, -1])
    residual, along = orthogonalise(product, basis, op.vectors)
    beta, size = (op.vectors.norms(rows).double().cpu() for rows in (residual, product))
    return Step(along.double().cpu(), residual, beta, size)


def lanczos(op: MatrixLike | CountedOperator, start: Tensor, steps: int, seed: int = 0) -> Lanczos:
    """Take `steps` Lanczos steps from one vector (P,) or from each column of a block (P, b); never more than P.

    >>> A = torch.diag(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
    >>> d = lanczos(A, torch.ones(3, dtype=torch.float64), steps=3)
    >>> torch.linalg.eigvalsh(d.tridiagonal())
    tensor([[1.0000, 2.0000, 5.0000]], dtype=torch.float64)
    """
    *_, last = lanczos_steps(op, start, steps, seed)
    return last


def lanczos_steps(op: MatrixLike | CountedOperator, start: Tensor, steps: int, seed: int = 0) -> Iterator[Lanczos]:
    """`lanczos` step by step: the decomposition after each."""
    counted = op if isinstance(op, CountedOperator) else as_operator(op)
    counted.refuse_narrow("a basis of Lanczos vectors")
    columns = start.unsqueeze(1) if start.ndim == 1 else start
    length = counted.vectors.length
    if columns.ndim != 2 or columns.shape[0] != length:
        raise OperandError(f"start must be ({length},) or ({length}, b), got {tuple(start.shape)}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    before, steps, count = counted.matvecs, min(steps, counted.size), columns.shape[1]
    rng = generator(seed, "lanczos", "breakdown")
    basis = counted.empty(count, steps)
    rows = columns.T.to(dtype=counted.dtype, device=counted.device)
    lengths = counted.vectors.norms(rows)[:, None]
    if not bool((lengths > 0).all()):
        raise OperandError("every start vector must be non-zero")
    basis[:, 0] = rows / lengths
    diagonal: list[Tensor] = []
    offdiagonal: list[Tensor] = []
    scale = torch.zeros(count, dtype=torch.float64)
    for j in range(steps):
        result = step(counted, basis[:, : j + 1])
        diagonal.append(result.coefficients[:, j])
        scale = torch.maximum(scale, result.size)
        invariant = result.beta <= counted.rounding * scale
        reached = j + 1
        yield Lanczos(
            basis[:, :reached],
            torch.stack(diagonal, 1),
            torch.stack(offdiagonal, 1) if offdiagonal else torch.empty((count, 0), dtype=torch.float64),
            result.residual,
            counted.matvecs - before,
        )
        if reached == steps or bool(invariant.all()):
            return
        offdiagonal.append(result.beta.masked_fill(invariant, 0.0))
        safe = result.beta.masked_fill(invariant, 1.0).to(basis)
        basis[:, j + 1] = result.residual / safe.unsqueeze(1)
        for i in invariant.nonzero().flatten().tolist():
            basis[i, j + 1] = fresh_rows(1, basis[i, : j + 1], rng, counted.vectors)[0]


# The same with three vectors: what is behind the last two is not held, and not orthogonalised against.
#
# Orthogonality is then lost once a Ritz value has converged to the square root of the rounding: copies of it appear, and no other
# eigenvalue is false (Paige 1980). Its weight in a quadrature is shared among the copies, so that densities stay right.


LONG = 2**26
"""Length from which on vectors are too long for a basis to be held as a matter of course."""


def inner(a: Tensor, b: Tensor, vectors: Vectors) -> float:
    """⟨a, b⟩ of two long vectors, added up in float64.

    >>> inner(torch.ones(3), torch.arange(3.0), Vectors(3))
    3.0
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    width = STRIP if wide == a.dtype else max(1, min(STRIP, len(a) // 16))  # which are widened
    strips = zip(a.split(width), b.split(width), strict=True)
    parts = [torch.dot(x.to(wide), y.to(wide)).double() for x, y in strips]
    return float(vectors.add_up(torch.stack(parts).sum()))


@dataclass
class Recurrence:
    """T after some steps of the recurrence with three vectors, and what the last step has left."""

    diagonal: list[float]
    offdiagonal: list[float]
    sizes: list[float]
    """‖A q‖ of every vector q of the basis."""
    beta: float = 0.0
    asymmetry: float = 0.0
    """How far A was from symmetric, as coefficients along the vector before show."""

    @property
    def scale(self) -> float:
        """The largest ‖A q‖ so far."""
        return max(self.sizes)

    def ritz(self) -> tuple[Tensor, Tensor]:
        """Ritz values in ascending order, and their coordinates as columns, in float64."""
        off = torch.tensor(self.offdiagonal, dtype=torch.float64)
        values, coordinates = torch.linalg.eigh(
            torch.diag(torch.tensor(self.diagonal, dtype=torch.float64)) + torch.diag(off, 1) + torch.diag(off, -1)
        )
        return values, coordinates


def recurrence(op: CountedOperator, row: Tensor, note: Callable[[Tensor], None]) -> Iterator[Recurrence]:
    """Step after step from a unit vector (P,); `note` is given every vector of the basis in turn."""
    found, before = Recurrence([], [], []), None
    dot = partial(inner, vectors=op.vectors)
    if op.narrow:  # a length that was rounded
        row.div_(dot(row, row) ** 0.5)
    while True:
        note(row)
        rest = op.rows(row[None])[0]
        found.sizes.append(dot(rest, rest) ** 0.5)
        if before is not None:
            found.asymmetry = max(found.asymmetry, abs(dot(rest, before) - found.beta))
            found.offdiagonal.append(found.beta)
            rest.add_(before, alpha=-found.beta)
        along = 0.0
        for _ in range(1 if op.narrow else 2):  # what a second time would take out is less than rounding puts in
            more = dot(rest, row)
            rest.add_(row, alpha=-more)
            along += more
        found.diagonal.append(along)
        found.beta = dot(rest, rest) ** 0.5
        yield found
        before, row = row, rest.div_(max(found.beta, torch.finfo(torch.float32).tiny))


def recurrence_steps(op: CountedOperator, start: Tensor, steps: int) -> Iterator[Lanczos]:
    """`lanczos_steps` from one vector with three: no basis comes back, and of what is left its norm alone."""
    before = op.matvecs
    runs = recurrence(op, start / inner(start, start, op.vectors) ** 0.5, lambda _: None)
    del start
    for found in runs:
        yield Lanczos(
            op.empty(1, 0),
            torch.tensor([found.diagonal], dtype=torch.float64),
            torch.tensor([found.offdiagonal], dtype=torch.float64),
            torch.tensor([[found.beta]], dtype=torch.float64),
            op.matvecs - before,
        )
        if len(found.diagonal) == min(steps, op.size) or found.beta <= op.rounding * found.scale:
            return
