"""One extreme eigenpair where vectors are so long that a basis of them does not fit beside the products.

Lanczos with three vectors. The basis is kept only to put the eigenvector together at the end: on the device where that leaves
most of its memory free, in the memory of the host where it fits there, and nowhere otherwise. Without it there is the value and
no vector. ‖A v − θ v‖ ≤ β |s_m| / ‖v‖ for the vector v = Σ s_j q_j that was put together; for the value alone 2.5 β |s_m| and
the rounding bound its distance from an eigenvalue, whatever became of the orthogonality (Paige 1980).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from landscope.core.memory import available_bytes
from landscope.spectra.certificate import products_to_claim
from landscope.spectra.lanczos import inner, recurrence
from landscope.spectra.pairs import Eigenpairs, RitzValues
from landscope.spectra.protocol import CountedOperator

ROWS = 32
"""Vectors for which there must be room: λ₁ to 1e-3 takes about a dozen products."""
PART = {"cuda": 8, "cpu": 2}
"""One over the part of the free memory that they may take: products need most of a GPU's, and little of the host's."""
PAIGE = 2.5


class Basis:
    """The vectors of a recurrence, as long as there is room for them."""

    def __init__(self, op: CountedOperator) -> None:
        self._place = self.place(op)
        self._rows: list[Tensor] = []
        self._most = ROWS

    @staticmethod
    def place(op: CountedOperator) -> torch.device | None:
        """Where there is room for them: the device, the host, or nowhere."""
        needed = ROWS * op.vectors.length * torch.finfo(op.dtype).bits // 8
        for device in dict.fromkeys((op.device, torch.device("cpu"))):
            if op.vectors.least(available_bytes(device) // PART.get(device.type, 8) - needed) >= 0:
                return device
        return None

    def note(self, row: Tensor) -> None:
        """One more vector, which nobody changes later on; they are forgotten where there are too many."""
        if len(self._rows) == self._most:
            self._place, self._rows = None, []
        if self._place is not None:
            self._rows.append(row.to(self._place))

    @property
    def wider(self) -> float:
        """By what a bound is wider where no vector can be put together."""
        return 1.0 if self._place is not None else PAIGE

    def combined(self, coordinates: Tensor, device: torch.device) -> Tensor | None:
        """Σ s_j q_j on a device, or `None` where they are not kept."""
        if self._place is None:
            return None
        found = torch.zeros_like(self._rows[0], device=device)
        for weight, row in zip(coordinates.tolist(), self._rows, strict=True):
            found.add_(row.to(device), alpha=weight)
        return found


def long_pairs(
    op: CountedOperator,
    prefer: Callable[[Tensor], Tensor],
    tol: float,
    budget: int,
    start: Tensor,
    share: float,
) -> Iterator[RitzValues | Eigenpairs]:
    """The most wanted Ritz value after every product, and at the end the pair, with a vector where its basis could be kept.

    `share` is the random part of the unit vector `start`.
    """
    basis = Basis(op)
    runs = recurrence(op, start, basis.note)
    del start
    for found in runs:
        values, coordinates = found.ritz()
        order = prefer(values).argsort(descending=True)
        best = int(order[0])
        scale = max(found.scale, float(values.abs().max()))
        value, rounding = values[[best]], op.rounding * scale
        bound = found.beta * abs(float(coordinates[-1, best])) + rounding * len(values) ** 0.5 + found.asymmetry
        wanted = prefer(values)[order]
        seen = op.matvecs >= products_to_claim(op.size, share, float(wanted[0]), float(wanted[-1]))
        yield RitzValues(value, torch.tensor([bound], dtype=torch.float64), op.matvecs, seen, found.scale)
        ended = found.beta <= rounding or len(values) == op.size
        settled = basis.wider * bound <= tol * scale or bound - found.asymmetry <= 2 * rounding * len(values) ** 0.5
        if ended or op.matvecs >= budget or (seen and settled):
            break
    vector = basis.combined(coordinates[:, best], op.device)
    length = 0.0 if vector is None else inner(vector, vector, op.vectors) ** 0.5
    vectors = op.empty(0).T if vector is None else vector.div_(length)[:, None]
    bound = basis.wider * bound if vector is None else bound / length
    yield Eigenpairs(
        values=value,
        vectors=vectors,
        residuals=torch.tensor([bound], dtype=torch.float64),
        accurate=torch.tensor([bound <= tol * scale]),
        complete=seen or ended,
        matvecs=op.matvecs,
        scale=found.scale,
    )
