"""Loss and accuracy at many points of a slice, as means over all samples.

The model is never touched: parameters are values that `torch.func.functional_call` puts in its place. Points are
evaluated together (`vmap` over their coordinates) or one by one, whichever is faster here (`pace.py`); what `vmap`
cannot follow goes one by one. All points of a call are evaluated on one piece of the data before the next is read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vmap

from landscope.core.errors import LandscopeError
from landscope.core.memory import available_bytes, is_out_of_memory
from landscope.planes.pace import WIDTHS, Pace
from landscope.planes.right_answers import right_answers
from landscope.planes.slices import Slice
from landscope.probe.batches import Batch
from landscope.probe.perturbed import REFUSALS, fitting_samples
from landscope.probe.probe import Probe
from landscope.probe.shared import FORWARD_LOAD
from landscope.probe.totals import FORWARD

__all__ = ["PointValues"]

FORWARD_SHARE = 0.25
"""Memory of a forward pass without gradients over that of one with them."""

log = logging.getLogger("landscope")


class PointValues:
    """Loss and accuracy of one probe at points (n, 1 or 2) of a slice.

    >>> from landscope.planes.slices import given_slice
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse")   # L = w²
    >>> w = probe.vector()
    >>> values = PointValues(probe, given_slice(probe, [w]), accuracy=False)
    >>> bool(torch.allclose(values(torch.tensor([[-1.0], [0.0], [1.0]]))[:, 0], torch.tensor([0, 1, 4]) * w.double() ** 2))
    True
    """

    def __init__(self, probe: Probe, cut: Slice, accuracy: bool, widths: Sequence[int] = WIDTHS) -> None:
        self.probe, self.accuracy = probe, accuracy
        still = {name for name in cut.origin if not any(bool(d[name].any()) for d in cut.directions)}
        ready = lambda tensor: tensor.to(probe.device, probe.dtype)  # noqa: E731
        self._origin = {name: ready(t) for name, t in cut.origin.items() if name not in still}
        self._directions = [{name: ready(d[name]) for name in self._origin} for d in cut.directions]
        self.pace = Pace(probe.device, widths)
        self._fitting: tuple[float, float] | None = None

    def __call__(self, points: Tensor) -> Tensor:
        """(n, 2) in float64 on the CPU: mean loss, and accuracy (0 where it is not asked for). n forward passes."""
        rows = points.to(self.probe.device, self.probe.dtype)
        (total,) = self.probe.total(
            lambda batch: (self._on_piece(rows, batch),), load=FORWARD_LOAD, passes=FORWARD * len(rows), grad=False
        )
        return total.cpu() / self.probe.n_samples

    def _on_piece(self, rows: Tensor, batch: Batch) -> Tensor:
        parts, done, most = [], 0, self._most(batch)
        while done < len(rows):
            width = self.pace.width(min(len(rows) - done, most))
            parts.append(self._attempt(rows[done : done + width], batch))
            done += width
        return torch.cat(parts)

    def _attempt(self, rows: Tensor, batch: Batch) -> Tensor:
        """The values of some points at once; where that cannot be done, one by one, then and ever after."""
        if len(rows) == 1:
            return self.pace.timed(lambda: self._at(rows[0], batch)[None], 1, batch.size)
        try:
            return self.pace.timed(lambda: vmap(lambda row: self._at(row, batch))(rows), len(rows), batch.size)
        except REFUSALS as error:
            if isinstance(error, LandscopeError):
                raise
            why = "no memory" if is_out_of_memory(error) else str(error).strip().splitlines()[:1]
            log.info("%d points at once cannot be had and go in smaller numbers: %s", len(rows), why)
        self.pace.refuse(len(rows))
        return torch.stack([self._at(row, batch) for row in rows])

    def _at(self, row: Tensor, batch: Batch) -> Tensor:
        """(2,): the sums of the loss and of right answers over the samples of a batch."""
        params = dict(self._origin)
        for step, direction in zip(row, self._directions, strict=True):
            params = {name: p + step * direction[name] for name, p in params.items()}
        outputs = self.probe.outputs(params, batch)
        loss = self.probe.loss_of(outputs, batch).double()
        right = right_answers(self.probe, outputs, batch) if self.accuracy else torch.zeros_like(loss)
        return torch.stack([loss.reshape(()), right.reshape(())])

    def _most(self, batch: Batch) -> int:
        """How many points at once a quarter of the free memory holds."""
        if self._fitting is None:
            moved = sum(p.numel() * p.element_size() for p in self._origin.values())
            vectors = available_bytes(self.probe.device) / (4 * (1 + len(self._directions)) * max(moved, 1))
            self._fitting = vectors, fitting_samples(self.probe) / FORWARD_SHARE
        vectors, samples = self._fitting
        return max(1, int(min(vectors, samples / batch.size)))
