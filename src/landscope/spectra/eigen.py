"""Extreme eigenpairs by thick-restart Lanczos with deflation, each with a bound on its error.

The subspace grows one product at a time with full reorthogonalisation; when the basis is full, the leading half of the
Ritz vectors is kept and the recurrence continues (Wu & Simon 2000). A Krylov space holds one copy of each eigenvalue
only, so once k > 1 pairs have converged they are locked and their complement is searched from a fresh random vector,
until either another copy shows up (which is then converged and locked in turn) or `certificate.rules_out_hidden` says
that nothing is left. For k = 1 any vector of the top eigenspace will do, and no search is needed.

Each pair carries ρ = ‖A v − λ v‖ from one last product with v itself, not from the recurrence. For symmetric A some
eigenvalue lies within ρ of λ, whatever went wrong before (Parlett 1998, §4.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import OperandError
from landscope.core.registry import Registry
from landscope.core.seeding import generator
from landscope.spectra.certificate import products_to_claim, rules_out_hidden
from landscope.spectra.lanczos import fresh_rows, step
from landscope.spectra.protocol import CountedOperator, MatrixLike, as_operator, check_budget

__all__ = ["Eigenpairs", "RitzValues", "Subspace", "eigsh", "eigsh_steps"]


# The growing subspace of the eigensolver: expansion, Ritz values, thick restarts and locking.
#
# In exact arithmetic A restricted to the rows behind `locked` is the Lanczos recurrence; every coefficient along earlier
# rows is measured instead of assumed, so restarts and deflation need no formulas of their own.


COLUMNS_AT_ONCE = 2**20
"""Width of the strips in which the basis is recombined in place, so that no second basis is held."""


@dataclass
class Subspace:
    """An orthonormal basis (rows), A projected onto it, and the vector that continues it.

    Rows before `locked` are eigenvectors up to residuals with the coordinates `defects`; those behind form a Krylov
    space of A deflated by them.
    """

    rows: Tensor
    projected: Tensor
    defects: Tensor
    filled: int = 0
    locked: int = 0
    steps: int = 0
    beta: float = 0.0
    scale: float = 0.0

    def grow(self, op: CountedOperator, row: Tensor) -> Tensor:
        """Append `row`, multiply it, and return what A adds to the space."""
        j = self.filled
        self.rows[j] = row
        result = step(op, self.rows[: j + 1].unsqueeze(0))
        self.projected[: j + 1, j] = self.projected[j, : j + 1] = result.coefficients[0]
        self.scale = max(self.scale, float(result.size[0]))
        self.filled, self.steps, self.beta = j + 1, self.steps + 1, float(result.beta[0])
        if self.beta <= op.rounding * self.scale:
            self.beta = 0.0
        return result.residual[0]

    def ritz(self, prefer: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Ritz values, coordinates of their vectors (as columns) and residual norms, most wanted first."""
        values, coordinates = torch.linalg.eigh(self.projected[: self.filled, : self.filled])
        self.scale = max(self.scale, float(values.abs().max()))
        order = prefer(values).argsort(descending=True, stable=True)
        values, coordinates = values[order], coordinates[:, order]
        if self.filled == self.rows.shape[1]:
            return values, coordinates, torch.zeros_like(values)
        return values, coordinates, torch.linalg.vector_norm(self.residuals(coordinates), dim=1)

    def residuals(self, coordinates: Tensor) -> Tensor:
        """Return what A adds to the vectors in the columns of `coordinates`, along each direction that left the space.

        One direction per time that vectors were locked and the present one; they are taken for orthogonal.
        """
        old = coordinates[: self.locked].T @ self.defects[: self.locked]
        return torch.cat((old, self.beta * coordinates[-1:].T), dim=1)

    def complement(self) -> tuple[Tensor, Tensor]:
        """Ritz values of the deflated part alone, in ascending order, and their residual norms."""
        part = slice(self.locked, self.filled)
        values, coordinates = torch.linalg.eigh(self.projected[part, part])
        return values, self.beta * coordinates[-1].abs()

    def compress(self, first: int, coordinates: Tensor) -> None:
        """Replace the rows from `first` on by the combinations in the columns of `coordinates`."""
        kept = coordinates.shape[1]
        mix = coordinates.T.to(self.rows)
        for at in range(0, self.rows.shape[1], COLUMNS_AT_ONCE):
            window = self.rows[first : self.filled, at : at + COLUMNS_AT_ONCE]
            self.rows[first : first + kept, at : at + COLUMNS_AT_ONCE] = mix @ window
        old = self.projected[: self.filled, : self.filled]
        change = torch.eye(self.filled, first + kept, dtype=old.dtype)
        change[first:, first:] = coordinates
        self.filled = first + kept
        self.projected[: self.filled, : self.filled] = change.T @ old @ change

    def restart(self, prefer: Callable[[Tensor], Tensor], kept: int) -> None:
        """Keep the `kept` most wanted Ritz vectors of the deflated part."""
        part = slice(self.locked, self.filled)
        values, coordinates = torch.linalg.eigh(self.projected[part, part])
        self.compress(self.locked, coordinates[:, prefer(values).argsort(descending=True, stable=True)[:kept]])

    def lock(self, coordinates: Tensor) -> None:
        """Keep the Ritz vectors in `coordinates` alone, as eigenvectors, and forget the rest."""
        self.defects = self.residuals(coordinates)
        self.compress(0, coordinates)
        self.locked, self.steps, self.beta = self.filled, 0, 0.0

    def forget(self) -> None:
        """Drop the deflated part; the locked vectors are as accurate as they were."""
        self.filled, self.beta = self.locked, 0.0


SAFETY = 0.8
"""Part of the tolerance at which the recurrence stops; the last products then confirm the whole."""

RANDOM_SHARE = 0.1
"""Part of a start vector that is random where another one is given: what that may miss stays within reach."""

SMALL = 2**16
"""Size up to which neither memory nor products matter much: a larger basis is kept for fewer restarts."""
LEAST_PRODUCTS = 24
"""Up to that size a single pair is not believed before this many products: a start vector that is short of the extreme
eigenvector by chance meets the next eigenvalue first (9 of 400 at tol = 1e-2 where the two are 12 % apart)."""

ends: Registry[Callable[[Tensor], Tensor]] = Registry("end of the spectrum")
ends.register("LA")(lambda values: values)
ends.register("SA")(lambda values: -values)
ends.register("LM")(lambda values: values.abs())


@dataclass(frozen=True)
class Eigenpairs:
    """k eigenvalues with orthonormal vectors and error bounds, most wanted first.

    `values` (k,) and `residuals` (k,) are float64 on the CPU, `vectors` (P, k) live where the operator does. Within
    `residuals[i]` of `values[i]` lies a true eigenvalue; rounding of the products is included. `accurate[i]` says
    whether that bound met the tolerance; `complete` whether a search for further copies of repeated eigenvalues ended
    with nothing found (always true for k = 1). Fewer than k pairs come back only if the budget was below k products.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    accurate: Tensor
    complete: bool
    matvecs: int

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


def eigsh(
    op: MatrixLike,
    k: int = 1,
    which: str = "LA",
    tol: float = 1e-3,
    max_matvecs: int | None = None,
    seed: int = 0,
    v0: Tensor | None = None,
    basis_size: int | None = None,
) -> Eigenpairs:
    """Find the k largest ("LA"), smallest ("SA") or largest-in-magnitude ("LM") eigenpairs of a symmetric operator.

    Stops when every error bound is below `tol` · ‖A‖ (as seen in the products so far), or at what the operator's
    rounding allows (then `converged` is False if that is above `tol`), or after `max_matvecs` products (default 1000),
    which are never exceeded. Eigenvalues closer than that to the k-th may stand in for it: the i-th value is the
    i-th eigenvalue to within its bound plus 2 · `tol` · ‖A‖. `v0` is a start vector, to which a random part is added. A
    single pair is believed once products enough were made to have met an eigenvalue larger by half (`products_to_claim`).

    Memory: `basis_size` + 8 vectors of length P (default max(30, 2k + 20), and 100 instead of 30 up to P = 65536); 7k
    at the end, if that is more. Products are single vectors except the last k, which are one block.

    >>> A = torch.diag(torch.tensor([5.0, 5.0, -9.0, 1.0], dtype=torch.float64))
    >>> pairs = eigsh(A, k=2)
    >>> pairs.converged, [round(v, 9) for v in pairs.values.tolist()], round(float(eigsh(A, which="LM").values), 9)
    (True, [5.0, 5.0], -9.0)
    """
    *_, pairs = eigsh_steps(op, k, which, tol, max_matvecs, seed, v0, basis_size)
    assert isinstance(pairs, Eigenpairs)
    return pairs


def eigsh_steps(
    op: MatrixLike,
    k: int = 1,
    which: str = "LA",
    tol: float = 1e-3,
    max_matvecs: int | None = None,
    seed: int = 0,
    v0: Tensor | None = None,
    basis_size: int | None = None,
) -> Iterator[RitzValues | Eigenpairs]:
    """`eigsh` product by product: the Ritz values after each, and the eigenpairs at the end.

    A Ritz value of the largest eigenvalue lies below it, and grows with every product.

    >>> A = torch.diag(torch.arange(1.0, 101.0, dtype=torch.float64))
    >>> *steps, pairs = eigsh_steps(A, tol=1e-6)
    >>> all(float(s.values[0]) <= 100 for s in steps), bool(abs(pairs.values[0] - 100) < 1e-3)
    (True, True)
    """
    counted, prefer, budget = as_operator(op), ends[which], check_budget(max_matvecs)
    if not 1 <= k <= counted.size:
        raise OperandError(f"k must be between 1 and the operator's size {counted.size}, got {k}")
    cheap = 100 if counted.size <= SMALL else 30
    capacity = min(counted.size, max(cheap, 2 * k + 20) if basis_size is None else basis_size)
    if capacity < min(counted.size, k + 4):
        raise ValueError(f"basis_size must be at least k + 4 = {k + 4}, got {basis_size}")
    checked = budget >= 2 * k
    search = Search(k, prefer, tol, budget - k if checked else budget, capacity, 1.0 if v0 is None else RANDOM_SHARE)
    space = search.space(counted)
    for _ in search.steps(counted, space, start_row(counted, v0, seed), generator(seed, "deflation")):
        values, _, defects = space.ritz(prefer)
        yield RitzValues(values[:k], defects[:k], counted.matvecs, search.has_seen(space, counted))
    values, coordinates, defects = space.ritz(prefer)
    found, scale = min(k, space.filled), space.scale
    noise = counted.rounding * scale
    summed_noise = noise * space.filled**0.5  # of the products behind a Ritz vector, in quadrature
    space.compress(0, coordinates[:, :found])
    rows = space.rows[:found].clone()
    del space  # the basis need not be held along with the last block of products
    if checked and defects.numel() < counted.size:
        values, rows, residuals = rayleigh_ritz(counted, rows, prefer)
        bounds = residuals + noise
    else:
        values, bounds = values[:found], defects[:found] + summed_noise
    yield Eigenpairs(
        values=values,
        vectors=rows.T,
        residuals=bounds,
        accurate=bounds <= tol * scale,
        complete=search.complete and found == k,
        matvecs=counted.matvecs,
    )


def start_row(op: CountedOperator, v0: Tensor | None, seed: int) -> Tensor:
    """Make the unit vector (P,) to start from: a random one, or `v0` and a tenth of one."""
    nothing = torch.empty((0, op.size), dtype=op.dtype, device=op.device)
    random = fresh_rows(1, nothing, generator(seed, "eigsh"))[0]
    if v0 is None:
        return random
    row = v0.to(dtype=op.dtype, device=op.device)
    if row.shape != (op.size,) or not float(torch.linalg.vector_norm(row)) > 0:
        raise OperandError(f"v0 must be a non-zero vector of shape ({op.size},), got shape {tuple(v0.shape)}")
    return torch.nn.functional.normalize(torch.nn.functional.normalize(row, dim=0) + RANDOM_SHARE * random, dim=0)


@dataclass
class Search:
    """What is looked for, and whether nothing can have been missed once the steps have ended."""

    k: int
    prefer: Callable[[Tensor], Tensor]
    tol: float
    budget: int
    capacity: int
    share: float
    """The random part of the start vector."""
    complete: bool = False

    def space(self, op: CountedOperator) -> Subspace:
        """Room for the basis."""
        return Subspace(
            rows=torch.empty((self.capacity, op.size), dtype=op.dtype, device=op.device),
            projected=torch.zeros((self.capacity, self.capacity), dtype=torch.float64),
            defects=torch.zeros((0, 0), dtype=torch.float64),
        )

    def has_seen(self, space: Subspace, op: CountedOperator) -> bool:
        """Whether a single pair may be claimed: products enough were made."""
        if op.size <= SMALL and op.matvecs < LEAST_PRODUCTS:
            return False
        values, _, _ = space.ritz(self.prefer)
        wanted = self.prefer(values)
        return op.matvecs >= products_to_claim(op.size, self.share, float(wanted[0]), float(wanted[-1]))

    def steps(self, op: CountedOperator, space: Subspace, row: Tensor, rng: torch.Generator) -> Iterator[None]:
        """Grow a subspace that holds the k wanted eigenvectors, one product a step."""
        k, prefer = self.k, self.prefer
        while True:
            residual = space.grow(op, row)
            yield
            _, coordinates, defects = space.ritz(prefer)
            if space.filled == op.size:
                self.complete = True
                return
            noise = op.rounding * space.scale
            goal = max(SAFETY * self.tol * space.scale - noise, noise)
            accurate = defects <= goal
            enough = space.filled >= k and bool(accurate[:k].all())
            if enough and k == 1 and self.has_seen(space, op):
                self.complete = True
                return
            if space.locked >= k and not exceeded(space, k, prefer, goal):
                if nothing_hidden(space, k, prefer, goal):
                    if not enough:
                        space.forget()
                    self.complete = True
                    return
            elif enough and (k > 1 or space.beta == 0.0):
                leading = int(accurate.long().cumprod(0).sum())
                kept = min(leading, max(k, self.capacity - max(8, self.capacity // 3)))
                # A basis with room for all of A forgets nothing: it ends after P products at the latest.
                space.lock(coordinates if self.capacity == op.size else coordinates[:, :kept])
            elif space.beta == 0.0 and space.filled < k:
                space.lock(coordinates)
            if op.matvecs >= self.budget:
                return
            if space.steps > 0 and space.filled == self.capacity:
                room, needed = self.capacity - space.locked, max(0, k - space.locked)
                space.restart(prefer, max(1, min(room - 2, needed + (room - needed) // 2)))
            row = residual / space.beta if space.beta > 0.0 else fresh_rows(1, space.rows[: space.filled], rng)[0]


def extremes(space: Subspace, prefer: Callable[[Tensor], Tensor]) -> list[tuple[float, float, float]]:
    """(high, low, residual of high) of the deflated part, seen from each end that `prefer` looks at."""
    values, residuals = space.complement()
    top = (float(values[-1]), float(values[0]), float(residuals[-1]))
    bottom = (-float(values[0]), -float(values[-1]), float(residuals[0]))
    one = torch.ones((), dtype=values.dtype)
    looks = ((top, bool(prefer(one) > 0)), (bottom, bool(prefer(-one) > 0)))
    return [end for end, seen in looks if seen]


def exceeded(space: Subspace, k: int, prefer: Callable[[Tensor], Tensor], slack: float) -> bool:
    """Whether the deflated part holds something that belongs among the k wanted."""
    return any(high > kth_locked(space, k, prefer) + slack for high, _, _ in extremes(space, prefer))


def kth_locked(space: Subspace, k: int, prefer: Callable[[Tensor], Tensor]) -> float:
    """Return the preference of the k-th locked Ritz value."""
    return float(prefer(space.projected.diagonal()[: space.locked]).sort(descending=True).values[k - 1])


def nothing_hidden(space: Subspace, k: int, prefer: Callable[[Tensor], Tensor], slack: float) -> bool:
    """Whether the search of the complement may end: its extremes have converged, or steps enough rule out more."""
    level = kth_locked(space, k, prefer) + slack
    return all(
        residual <= slack or rules_out_hidden(space.steps, space.rows.shape[1], low, high, level)
        for high, low, residual in extremes(space, prefer)
    )


def rayleigh_ritz(
    op: CountedOperator, rows: Tensor, prefer: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values, vectors and true residual norms ‖A v − θ v‖ in the span of orthonormal `rows`; one product each."""
    products = op.rows(rows)
    small = (rows @ products.T).double().cpu()
    values, coordinates = torch.linalg.eigh((small + small.T) / 2)
    order = prefer(values).argsort(descending=True, stable=True)
    values, mix = values[order], coordinates[:, order].T.to(rows)
    rows, products = mix @ rows, mix @ products
    defects = products - values.to(rows).unsqueeze(1) * rows
    return values, rows, torch.linalg.vector_norm(defects, dim=1).double().cpu()
