"""Measures that are a mean of one number per row: read in a seeded order, with a true error bar at any time.

The rows come in the order of `landscope.probe.rows.order`, the most informative first. From time to time, and at the end, the
mean over *all* rows is estimated from those that were read (`landscope.probe.rows.means`). Once every row is read it is exact,
except for the noise of random probes where there are any.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from landscope.core.distributed import processes
from landscope.core.errors import BudgetSpentError
from landscope.core.estimate import Estimate
from landscope.measures.base import Measure
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.rows.means import FEWEST, RowMean, row_mean
from landscope.probe.rows.order import RowOrder
from landscope.probe.rows.outputs import Outputs, outputs_of, row_order

OFTEN = 0.2
"""Seconds between two looks at the rows read so far."""

PieceValues = Callable[[Batch, int], Tensor]
"""Numbers (n, r) of the rows of a piece, given the number of its chunk; r of them with independent probes each."""


def early_looks_pay(probe: Probe) -> bool:
    """Whether a look at some rows is worth its time: they can be taken, and a pass over all of them takes a while."""
    if row_order(probe) is None:
        return False
    rate = probe.ledger.passes_per_second
    return rate is None or rate * OFTEN < 1


class RowValues:
    """One number for every row, or r with independent probes, as far as they have been read.

    With `shared`, the rows of a chunk share a probe, and `function` is given the chunk's number. Numbers are weighed as samples
    are in the loss, unless they are not `in_the_loss`.
    """

    def __init__(
        self,
        probe: Probe,
        function: PieceValues,
        *,
        load: float,
        passes: float,
        grad: bool = False,
        shared: bool = False,
        in_the_loss: bool = True,
    ) -> None:
        self._probe, self._function, self._shared = probe, function, shared
        self._counted = in_the_loss and probe.loss.share is not None
        self._counts: list[np.ndarray] = []
        self._work = {"load": load, "passes": passes, "grad": grad}
        self.order = row_order(probe)
        self._values: list[np.ndarray] = []
        self._units: list[np.ndarray] = []
        self._read = 0

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        if self.order is None:
            yield from enumerate(self._probe.batches())
            return
        ends = self.order.chunks() if self._shared else self.order.looks()
        for unit, (start, end) in enumerate(ends):
            yield unit, self._probe.rows(self.order.rows[start:end])

    def read(self) -> Iterator[RowMean]:
        """Read all rows; yields the mean over all of them as estimated so far, and at last as it is."""
        for _ in self.looks():
            yield self.mean()

    def looks(self) -> Iterator[bool]:
        """Read all rows; yields whether they are complete, now and then and at the end, but for data without an order."""
        ledger, last = self._probe.ledger, 0
        looked = ledger.mark
        try:
            for unit, batch in self._batches():

                def piece(part: Batch, unit: int = unit) -> tuple[Tensor, ...]:
                    values = self._function(part, unit).detach()
                    counts = self._probe.shares(part) if self._counted else values.new_zeros(0)
                    return values.reshape(part.size, -1).to("cpu", torch.float64), counts.cpu()

                for part, (values, counts) in self._probe.each(piece, batches=[batch], **self._work):  # type: ignore[arg-type]
                    self._values.append(values.numpy())
                    self._counts.append(counts.numpy())
                    self._units.append(np.full(part.size, unit))
                    self._read += part.size
                    due = self.ends_a_look or ledger.waited(looked, OFTEN)
                    if due and self._read < self._probe.n_samples and self.order is not None:
                        yield False
                        looked, last = ledger.mark, self._read
        except BudgetSpentError:
            if self._read > last and self.order is not None:
                yield False
            raise
        yield True

    @property
    def ends_a_look(self) -> bool:
        """Whether the rows read so far are a look of the order, whatever the clock says."""
        return self.order is not None and self.order.is_look(self._read)

    @property
    def everywhere(self) -> np.ndarray:
        """The numbers of the rows of all processes."""
        if processes() == 1:
            return self.values
        parts: list[np.ndarray | None] = [None] * processes()
        dist.all_gather_object(parts, self.values)
        return np.concatenate([part for part in parts if part is not None])

    @property
    def values(self) -> np.ndarray:
        """The numbers of the rows read so far (m, r), in the order in which they were read."""
        return np.concatenate(self._values)

    @property
    def counts(self) -> np.ndarray | None:
        """What each of them counts for in the mean (m,); `None` for 1."""
        return np.concatenate(self._counts) if self._counted and processes() == 1 else None

    @property
    def units(self) -> np.ndarray:
        """The chunk of each of them (m,)."""
        return np.concatenate(self._units)

    def mean(self) -> RowMean:
        """The mean over all rows from those read so far."""
        values, units = self.values, self.units
        order = self.order
        if order is None:
            if processes() > 1:
                values = self.everywhere
                units = np.arange(len(values))
            order = RowOrder(torch.arange(max(len(values), self._probe.n_samples)), None)
        return row_mean(values, order, units if self._shared else None, self.counts)


def row_means(probe: Probe, function: Callable[[Batch], Tensor], *, load: float, passes: float) -> Iterator[RowMean]:
    """The mean over all rows of `function`, which gives one number per row of a piece (n,)."""
    yield from RowValues(probe, lambda batch, _: function(batch), load=load, passes=passes).read()


def is_sample(outputs: Outputs) -> bool:
    """Whether the rows read so far are a random part of all."""
    return outputs.rows > 0 and outputs.order is not None and processes() == 1


def output_looks(probe: Probe) -> Iterator[Outputs]:
    """Read the outputs of all rows; yields those read so far by another measure, then now and then, and where the budget ends."""
    outputs, looked = outputs_of(probe), probe.ledger.mark
    if FEWEST <= outputs.rows < probe.n_samples and is_sample(outputs):
        yield outputs
    try:
        while outputs.advance():
            if probe.ledger.waited(looked, OFTEN) and outputs.rows < probe.n_samples and is_sample(outputs):
                yield outputs
                looked = probe.ledger.mark
    except BudgetSpentError:
        if is_sample(outputs):
            yield outputs
        raise


@dataclass(frozen=True, kw_only=True)
class RowMeasure(Measure):
    """Base of the measures that are a mean over rows: a subclass gives one number per row of a piece of data."""

    turn = 1
    load: ClassVar[float]
    """How many times the activations of one gradient a piece holds at once."""
    passes: ClassVar[float]
    """What it costs, in gradients."""

    @abstractmethod
    def rows(self, probe: Probe, batch: Batch) -> Tensor:
        """One number per sample of a piece (n,)."""

    def finish(self, mean: RowMean) -> Estimate:
        """The estimate that a mean over rows gives."""
        return mean.estimate()

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """The rows in their order."""
        for mean in row_means(probe, lambda batch: self.rows(probe, batch), load=self.load, passes=self.passes):
            yield self.finish(mean)
