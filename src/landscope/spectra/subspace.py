"""The growing subspace of the eigensolver: expansion, Ritz values, thick restarts and locking.

In exact arithmetic A restricted to the rows behind `locked` is the Lanczos recurrence; every coefficient along earlier
rows is measured instead of assumed, so restarts and deflation need no formulas of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.memory import available_bytes
from landscope.core.parameters import Vectors
from landscope.spectra.lanczos import Step, step
from landscope.spectra.protocol import CountedOperator

COLUMNS_AT_ONCE = 2**20
"""Width of the strips in which the basis is recombined in place, so that no second basis is held."""


class Krylov:
    """The recurrence of one start vector, which several searches of one matrix follow: each product is made once.

    A search sees as many steps as it has taken itself: what it finds does not depend on how far others went.
    """

    def __init__(self) -> None:
        self.rows: Tensor | None = None
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []
        self._residual: Tensor | None = None

    def begins_with(self, row: Tensor) -> bool:
        """Whether `row` is its start vector, or may become that."""
        return self.rows is None or not self._steps or torch.equal(self.rows[0], row)

    def step(self, op: CountedOperator, j: int, row: Tensor) -> Step:
        """Step j from `row`, made now or before; what is left of the product is that of the newest step."""
        assert self.rows is not None, "there is room for the rows"
        if j == len(self._steps):
            self.rows[j] = row
            found = step(op, self.rows[: j + 1].unsqueeze(0))
            self._steps.append((found.coefficients, found.beta, found.size))
            self._residual = found.residual
        else:
            op.matvecs += 1
        assert self._residual is not None, "a step was made"
        coefficients, beta, size = self._steps[j]
        return Step(coefficients, self._residual, beta, size)


@dataclass
class Subspace:
    """An orthonormal basis (rows), A projected onto it, and the vector that continues it.

    Rows before `locked` are eigenvectors up to residuals with the coordinates `defects`; those behind form a Krylov
    space of A deflated by them.
    """

    vectors: Vectors
    rows: Tensor
    projected: Tensor
    defects: Tensor
    filled: int = 0
    locked: int = 0
    steps: int = 0
    beta: float = 0.0
    scale: float = 0.0
    asymmetry: float = 0.0
    """How far coefficients along earlier rows were from those of a symmetric matrix, which the recurrence predicts; rounding
    where the matrix is one."""
    shared: Krylov | None = None
    """The recurrence whose rows these are, until the search goes a way of its own."""

    @property
    def is_krylov(self) -> bool:
        """Whether the rows are those of one recurrence: nothing was locked, recombined or forgotten."""
        return self.steps == self.filled

    def extend(self, capacity: int) -> bool:
        """Make room for as many rows in all, if there is memory for it: whether there was."""
        if self.shared is not None and self.shared.rows is not None and len(self.shared.rows) >= capacity:
            self.rows = self.shared.rows  # another search has made room
            return True
        if self.vectors.least(available_bytes(self.rows.device) - 1.1 * capacity * self.rows[0].nbytes) < 0:
            return False
        more = self.rows.new_empty((capacity - len(self.rows), self.rows.shape[1]))
        self.rows = torch.cat((self.rows, more))
        if self.shared is not None:
            self.shared.rows = self.rows
        return True

    def grow(self, op: CountedOperator, row: Tensor) -> Tensor:
        """Append `row`, multiply it, and return what A adds to the space."""
        j = self.filled
        if self.shared is None:
            self.rows[j] = row
            result = step(op, self.rows[: j + 1].unsqueeze(0))
        else:
            result = self.shared.step(op, j, row)
        if self.is_krylov and j > 0:
            earlier = result.coefficients[0][:j].clone()
            earlier[-1] -= self.beta
            self.asymmetry = max(self.asymmetry, float(torch.linalg.vector_norm(earlier)))
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
        if self.filled == self.vectors.size:
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

    def combined(self, coordinates: Tensor) -> Tensor:
        """The combinations in the columns of `coordinates`, as rows; several take the place of the basis."""
        if coordinates.shape[1] == 1:
            return coordinates.T.to(self.rows) @ self.rows[: self.filled]
        self.compress(0, coordinates)
        return self.rows[: self.filled].clone()

    def compress(self, first: int, coordinates: Tensor) -> None:
        """Replace the rows from `first` on by the combinations in the columns of `coordinates`."""
        if self.shared is not None:
            self.rows, self.shared = self.rows.clone(), None
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
