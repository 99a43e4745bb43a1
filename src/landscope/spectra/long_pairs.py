"""One extreme eigenpair where vectors are so long that a basis of them does not fit beside the products.

Lanczos with three vectors. The basis is kept only to put the eigenvector together at the end: on the device where that leaves
most of its memory free, in the memory of the host where it fits there, and nowhere otherwise. Without it there is the value and
no vector. ‖A v − θ v‖ ≤ (β |s_m| + ρ) / ‖v‖ for the vector v = Σ s_j q_j that was put together, where products that are wrong by
a part ε of their size add at most ρ = ε Σ |s_j| ‖A q_j‖; for the value alone 2.5 (β |s_m| + ρ) bounds its distance from an
eigenvalue, whatever became of the orthogonality (Paige 1980).
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
        value, weights = values[[best]], coordinates[:, best].abs()
        residual = found.beta * float(weights[-1])
        rounding = op.rounding * float(weights @ torch.tensor(found.sizes, dtype=weights.dtype))
        bound = residual + rounding + found.asymmetry
        wanted = prefer(values)[order]
        seen = op.matvecs >= products_to_claim(op.size, share, float(wanted[0]), float(wanted[-1]))
        yield RitzValues(value, torch.tensor([bound], dtype=torch.float64), op.matvecs, seen, found.scale)
        within = tol * scale / basis.wider
        whole = found.beta <= op.rounding * scale or len(values) == op.size
        ended = whole or op.matvecs >= budget
        hopeless = residual <= rounding and bound - residual > within
        if not (ended or (seen and (bound <= within or hopeless))):
            continue
        vector = basis.combined(coordinates[:, best], op.device)
        length = 0.0 if vector is None else inner(vector, vector, op.vectors) ** 0.5
        found_bound = basis.wider * bound if vector is None else bound / length
        if ended or hopeless or found_bound <= tol * scale:
            break  # a sum of vectors that are no longer orthogonal may be short, and its bound longer than the tolerance
    yield Eigenpairs(
        values=value,
        vectors=op.empty(0).T if vector is None else vector.div_(length)[:, None],
        residuals=torch.tensor([found_bound], dtype=torch.float64),
        accurate=torch.tensor([found_bound <= tol * scale]),
        complete=seen or whole,
        matvecs=op.matvecs,
        scale=found.scale,
    )
