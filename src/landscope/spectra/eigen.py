"""Extreme eigenpairs by thick-restart Lanczos with deflation, each with a bound on its error.

The subspace grows one product at a time with full reorthogonalisation; when the basis is full, the leading half of the
Ritz vectors is kept and the recurrence continues (Wu & Simon 2000). A Krylov space holds one copy of each eigenvalue
only, so once k > 1 pairs have converged they are locked and their complement is searched from a fresh random vector,
until either another copy shows up (which is then converged and locked in turn) or `certificate.rules_out_hidden` says
that nothing is left. For k = 1 any vector of the top eigenspace will do, and no search is needed.

Each pair carries ρ = ‖A v − λ v‖ from one last product with v itself. Where a single pair comes from one recurrence, that
product is spared: the recurrence holds ρ to rounding, because every vector is orthogonalised against all others, and its
coefficients show whether A is symmetric. For symmetric A some eigenvalue lies within ρ of λ, whatever went wrong before
(Parlett 1998, §4.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from landscope.core.errors import OperandError
from landscope.core.registry import Registry
from landscope.core.seeding import generator
from landscope.spectra.certificate import products_to_claim, rules_out_hidden
from landscope.spectra.lanczos import fresh_rows, orthogonalise, unit_rows
from landscope.spectra.long_pairs import Basis, long_pairs
from landscope.spectra.pairs import Eigenpairs, RitzValues
from landscope.spectra.probes import orthonormal_rows
from landscope.spectra.protocol import CountedOperator, MatrixLike, as_operator, check_budget, plainly
from landscope.spectra.subspace import Krylov, Subspace

SAFETY = 0.8
"""Part of the tolerance at which the recurrence stops; the last products then confirm the whole."""

RANDOM_SHARE = 0.5**0.5
"""Part of a start vector that is random where another one is given: what that may miss stays within reach. Random parts lie
mostly along small eigenvalues and vanish with the first product: 0.1 to 0.8 of them took the same number of products to 1e-2 and
1e-3 in six trials (conv net on digits, 72,000 parameters), and a larger one lets the top eigenvalue be claimed earlier."""

SMALL = 2**16
"""Size up to which neither memory nor products matter much: a larger basis is kept for fewer restarts."""
LONG_PAIR = 2**24
"""Length from which on three vectors do for a single pair: full reorthogonalisation takes a quarter of the time of a product."""
FIRST_ROWS = 16
"""Of the basis, held from the start: λ₁ to 1e-3 takes about a dozen products."""
ASYMMETRIC = 0.05
"""Part of its size by which a matrix may miss being symmetric: more is not the rounding of a Hessian but a Hessian of rounding,
such as that of a cross-entropy below 1e-16, whose p − y is 0 for the label and not for the other classes."""
LEAST_PRODUCTS = 24
"""Up to that size a single pair is not believed before this many products: a start vector that is short of the extreme
eigenvector by chance meets the next eigenvalue first (9 of 400 at tol = 1e-2 where the two are 12 % apart)."""

ends: Registry[Callable[[Tensor], Tensor]] = Registry("end of the spectrum")
ends.register("LA")(lambda values: values)
ends.register("SA")(lambda values: -values)
ends.register("LM")(lambda values: values.abs())


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
    at the end, if that is more; three for a single pair of 17 million entries and more (`landscope.spectra.long_pairs`).
    Products are single vectors except the last k > 1, which are one block.

    >>> A = torch.diag(torch.tensor([5.0, 5.0, -9.0, 1.0], dtype=torch.float64))
    >>> pairs = eigsh(A, k=2)
    >>> pairs.converged, [round(v, 9) for v in pairs.values.tolist()], round(float(eigsh(A, which="LM").values), 9)
    (True, [5.0, 5.0], -9.0)
    """
    with plainly(op):
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
    cheap: MatrixLike | None = None,
    krylov: Krylov | None = None,
) -> Iterator[RitzValues | Eigenpairs]:
    """`eigsh` product by product: the Ritz values after each, and the eigenpairs at the end.

    A Ritz value of the largest eigenvalue lies below it, and grows with every product. With `cheap`, the same matrix less
    exactly, a single pair is searched for there, to what its rounding allows, and then corrected and certified by products of
    `op` itself: the value is a Rayleigh quotient of `op`, the residual that of `op`. Searches for a single pair that are given
    one `krylov`, and start from the same vector, share their products.

    >>> A = torch.diag(torch.arange(1.0, 101.0, dtype=torch.float64))
    >>> *steps, pairs = eigsh_steps(A, tol=1e-6)
    >>> all(float(s.values[0]) <= 100 for s in steps), bool(abs(pairs.values[0] - 100) < 1e-3)
    (True, True)
    """
    if cheap is not None and (k > 1 or Basis.place(as_operator(cheap)) is not None):
        yield from _certified(op, cheap, k, which, tol, max_matvecs, seed, v0, basis_size, krylov)
        return
    counted, prefer, budget = as_operator(op), ends[which], check_budget(max_matvecs)
    if k == 1 and basis_size is None and (counted.size >= LONG_PAIR or counted.narrow):
        yield from long_pairs(
            counted, prefer, tol, budget, start_row(counted, v0, seed), 1.0 if v0 is None else RANDOM_SHARE
        )
        return
    counted.refuse_narrow("more than one pair" if k > 1 else "a basis of a given size")
    if not 1 <= k <= counted.size:
        raise OperandError(f"k must be between 1 and the operator's size {counted.size}, got {k}")
    usual = 100 if counted.size <= SMALL else 30
    capacity = min(counted.size, max(usual, 2 * k + 20) if basis_size is None else basis_size)
    if capacity < min(counted.size, k + 4):
        raise ValueError(f"basis_size must be at least k + 4 = {k + 4}, got {basis_size}")
    checked = budget >= 2 * k
    search = PairSearch(
        k, prefer, tol, budget - k if checked else budget, capacity, 1.0 if v0 is None else RANDOM_SHARE
    )
    start = start_row(counted, v0, seed)
    space = search.space(counted, krylov if krylov is not None and k == 1 and krylov.begins_with(start) else None)
    for _ in search.steps(counted, space, start, generator(seed, "deflation")):
        values, _, defects = space.ritz(prefer)
        yield RitzValues(values[:k], defects[:k], counted.matvecs, search.has_seen(space, counted), space.scale)
    values, coordinates, defects = space.ritz(prefer)
    found, scale = min(k, space.filled), space.scale
    noise = counted.rounding * scale
    bounds = defects[:found] + noise * space.filled**0.5  # of the products behind a Ritz vector, in quadrature
    certain = len(defects) == counted.size
    tiny = torch.finfo(counted.dtype).tiny
    lost = space.asymmetry if k == 1 and space.asymmetry > ASYMMETRIC * scale else 0.0
    if 0 < scale < tiny / counted.rounding:
        lost = tiny
    if k == 1 and space.is_krylov:
        certain = certain or bool(bounds + space.asymmetry <= tol * scale)
        bounds = bounds + space.asymmetry
    values, rows = values[:found], space.combined(coordinates[:, :found])
    del space  # the basis need not be held along with the last block of products
    if checked and not certain:
        values, rows, residuals = rayleigh_ritz(counted, rows, prefer)
        bounds = residuals + counted.rounding * scale  # which those products may have raised
    bounds = bounds + (scale + lost if lost else 0.0)
    yield Eigenpairs(
        values=values,
        vectors=rows.T,
        residuals=bounds,
        accurate=bounds <= tol * scale,
        complete=search.complete and found == k,
        matvecs=counted.matvecs,
        scale=scale,
        rounding_only=lost > 0.0,
        hidden=2 * max(tol, counted.rounding) * scale,
    )


def _certified(
    op: MatrixLike,
    cheap: MatrixLike,
    k: int,
    which: str,
    tol: float,
    max_matvecs: int | None,
    seed: int,
    v0: Tensor | None,
    basis_size: int | None,
    krylov: Krylov | None,
) -> Iterator[RitzValues | Eigenpairs]:
    """Pairs found with cheap products; their residuals by exact ones, and the span extended by these until they are small.

    An extension has a small part in its pair, so that cheap products do for it: their rounding is counted times that part.
    """
    exact, coarse, prefer, budget = as_operator(op), as_operator(cheap), ends[which], check_budget(max_matvecs)
    near: Eigenpairs | None = None
    for found in eigsh_steps(cheap, k, which, tol, max(budget - k - 1, 1), seed, v0, basis_size, krylov=krylov):
        if isinstance(found, Eigenpairs):
            near = found
        else:  # on this side of the eigenvalue whatever the rounding was
            off = coarse.rounding * found.scale
            inside = found.values - off * prefer(torch.ones_like(found.values))
            yield replace(found, values=inside, residuals=found.residuals + 2 * off)
    assert near is not None, "eigenpairs come last"
    if near.rounding_only:
        yield near
        return
    if near.matvecs + near.vectors.shape[1] > budget:
        yield replace(near, accurate=torch.zeros_like(near.accurate))
        return
    rows, scale = near.vectors.T.to(exact.dtype).contiguous(), near.scale
    first = len(rows)
    rough = 0.0  # the rounding of a cheap product: what it states, or what the first exact ones show
    products, doubt = exact.rows(rows), torch.full((first,), exact.rounding, dtype=torch.float64)
    while True:
        small = exact.dot(rows, products).double().cpu()
        # of an entry and its mirror image, the one from the better product
        small = torch.where(
            doubt < doubt[:, None], small, torch.where(doubt > doubt[:, None], small.T, (small + small.T) / 2)
        )
        values, coordinates = torch.linalg.eigh(small)
        best = prefer(values).argsort(descending=True, stable=True)[:first]
        values, mix = values[best], coordinates[:, best].T
        vectors, images = mix.to(rows) @ rows, mix.to(rows) @ products
        away = images - values.to(rows)[:, None] * vectors
        doubts = mix.abs() @ doubt * scale
        residuals = exact.vectors.norms(away).double().cpu() + doubts
        matvecs = near.matvecs + exact.matvecs + coarse.matvecs
        accurate = residuals <= tol * scale
        left = max(0, budget - matvecs)
        again = (doubt > exact.rounding).nonzero()[:left, 0].to(rows.device)
        if len(again) and bool(
            (doubts > tol * scale / 2)[~accurate].any()
        ):  # exact products take the place of cheap ones
            products[again], doubt[again.cpu()] = exact.rows(rows[again]), exact.rounding
            continue
        rest = away[(~accurate).nonzero()[:left, 0].to(away.device)]
        if len(rest):
            rest, _ = orthogonalise(rest, rows, exact.vectors)
            rest = orthonormal_rows(rest, exact.rounding, exact.vectors)
        if not len(rest) or len(rows) == exact.size:
            break
        inside = values - doubts * prefer(torch.ones_like(values))
        yield RitzValues(inside, residuals + doubts, matvecs, near.complete, scale)
        largest = float(residuals.max())
        rough = max(rough, 2 * coarse.rounding, 2 * largest / scale if len(rows) == first else 0.0)
        way, rounding = (coarse, rough) if 2 * rough * largest < tol * scale else (exact, exact.rounding)
        rows, products = torch.cat((rows, rest)), torch.cat((products, way.rows(rest)))
        doubt = torch.cat((doubt, doubt.new_full((len(rest),), rounding)))
    yield Eigenpairs(
        values=values,
        vectors=vectors.T,
        residuals=residuals,
        accurate=accurate,
        complete=near.complete,
        matvecs=matvecs,
        scale=scale,
        hidden=near.hidden,
    )


def start_row(op: CountedOperator, v0: Tensor | None, seed: int) -> Tensor:
    """Make the unit vector (P,) to start from: a random one, or equal parts of `v0` and a random one."""
    random = fresh_rows(1, op.empty(0), generator(seed, "eigsh"), op.vectors)[0]
    if v0 is None:
        return random
    row = v0.to(dtype=op.dtype, device=op.device)
    if row.shape != random.shape or not float(op.vectors.norms(row)) > 0:
        raise OperandError(f"v0 must be a non-zero vector of shape {tuple(random.shape)}, got shape {tuple(v0.shape)}")
    given = (1 - RANDOM_SHARE**2) ** 0.5 * unit_rows(row[None], op.vectors)[0]
    return unit_rows((given + RANDOM_SHARE * random)[None], op.vectors)[0]


@dataclass
class PairSearch:
    """What is looked for, and whether nothing can have been missed once the steps have ended."""

    k: int
    prefer: Callable[[Tensor], Tensor]
    tol: float
    budget: int
    capacity: int
    share: float
    """The random part of the start vector."""
    complete: bool = False

    def space(self, op: CountedOperator, krylov: Krylov | None) -> Subspace:
        """Room for the first rows of the basis: most single pairs need no more."""
        known = None if krylov is None else krylov.rows
        rows = op.empty(min(self.capacity, max(FIRST_ROWS, 2 * self.k + 8))) if known is None else known
        if krylov is not None:
            krylov.rows = rows
        return Subspace(
            vectors=op.vectors,
            rows=rows,
            projected=torch.zeros((self.capacity, self.capacity), dtype=torch.float64),
            defects=torch.zeros((0, 0), dtype=torch.float64),
            shared=krylov,
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
            if space.filled == len(space.rows) < self.capacity and not space.extend(self.capacity):
                self.capacity = space.filled
            if space.steps > 0 and space.filled == self.capacity:
                room, needed = self.capacity - space.locked, max(0, k - space.locked)
                space.restart(prefer, max(1, min(room - 2, needed + (room - needed) // 2)))
            row = (
                residual / space.beta
                if space.beta > 0.0
                else fresh_rows(1, space.rows[: space.filled], rng, op.vectors)[0]
            )


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
        residual <= slack or rules_out_hidden(space.steps, space.vectors.size, low, high, level)
        for high, low, residual in extremes(space, prefer)
    )


def rayleigh_ritz(
    op: CountedOperator, rows: Tensor, prefer: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values, vectors and true residual norms ‖A v − θ v‖ in the span of orthonormal `rows`; one product each."""
    products = op.rows(rows)
    small = op.dot(rows, products).double().cpu()
    values, coordinates = torch.linalg.eigh((small + small.T) / 2)
    order = prefer(values).argsort(descending=True, stable=True)
    values, mix = values[order], coordinates[:, order].T.to(rows)
    rows, products = mix @ rows, mix @ products
    defects = products - values.to(rows).unsqueeze(1) * rows
    return values, rows, op.vectors.norms(defects).double().cpu()
