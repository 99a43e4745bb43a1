"""Sums over the samples of a probe: in pieces that fit into memory, counted, within a budget, over all processes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from landscope.core.distributed import anywhere, sum_over_processes
from landscope.core.errors import BudgetSpentError
from landscope.core.shared_state import Precision
from landscope.probe import checks
from landscope.probe.batches import Batch, map_tensors
from landscope.probe.loss.function import LossFunction
from landscope.probe.sharding.gathering import dropping_weights
from landscope.probe.sharding.in_step import in_step
from landscope.probe.sharding.parts import Sharding
from landscope.probe.totals import (
    FORWARD,
    Ledger,
    PieceFunction,
    PieceSize,
    added_up,
    bytes_of_gradient,
    in_pieces,
    samples_that_fit,
)


class Sums(LossFunction):
    """The half of a `Probe` that goes through the data: everything that is a sum over samples is taken here."""

    sharding: Sharding | None
    ledger: Ledger
    n_samples: int
    _local_samples: int
    _piece_sizes: dict[float, PieceSize]
    _bytes_each: list[float]

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """The data of this process, as it is held or read."""

    def value(self) -> float:
        """L, the mean loss over all samples. One forward pass."""
        (total,) = self.total(
            lambda batch: (self.loss_sum(self._params, batch).double(),), load=0.25, passes=FORWARD, grad=False
        )
        return checks.check_finite_loss(total / self.n_samples)

    def gradient(self) -> Tensor:
        """∇L, the gradient of the mean loss, as a vector (P,). One forward and one backward pass."""

        def piece(batch: Batch) -> tuple[Tensor, ...]:
            leaves = {name: p.detach().requires_grad_() for name, p in self._params.items()}
            loss = self.loss_sum(leaves, batch)
            grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return self.space.flatten(dict(zip(leaves, grads, strict=True))), loss.detach().double()

        total, loss = self.total(piece, load=1.0, along=1)
        checks.check_finite_loss(loss / self.n_samples)
        return total.div_(self.n_samples)

    def total(
        self,
        function: PieceFunction,
        *,
        load: float,
        passes: float = 1.0,
        precision: Precision = "highest",
        grad: bool = True,
        along: int = 0,
    ) -> tuple[Tensor, ...]:
        """Σ of `function` over the samples of all processes, in pieces that fit into memory.

        `load` says how many times the activations of one gradient the function holds at once, `passes` how many gradients
        it costs: that goes into the ledger, whose budget ends the work between two pieces. The first `along` results lie along
        the parameters: where these are sharded, every process has its part of the sum over all.
        """
        parts = self.each(function, load=load, passes=passes, precision=precision, grad=grad)
        spent: BudgetSpentError | None = None
        sums: tuple[Tensor, ...] | None = None
        try:
            sums = added_up(parts)
        except BudgetSpentError as error:
            spent = error
        if anywhere(spent is not None):  # the others would wait for this process's sum
            raise spent or BudgetSpentError("the budget of another process is spent")
        assert sums is not None, "every process holds samples: checked at construction"
        done = 0 if self.sharding is None else along
        return (*sums[:done], *(sum_over_processes(part) for part in sums[done:]))

    def each(
        self,
        function: PieceFunction,
        *,
        load: float,
        passes: float = 1.0,
        precision: Precision = "highest",
        grad: bool = True,
        batches: Iterable[Batch] | None = None,
    ) -> Iterator[tuple[Batch, tuple[Tensor, ...]]]:
        """The pieces of the data (or of `batches`) one after the other, ready, with the value of `function` (see `total`)."""
        size = self._piece_sizes.get(load)
        if size is None:
            with self.measuring(precision):
                size = self._piece_sizes[load] = PieceSize(self.fitting(load))
        share = passes / max(self._local_samples, 1)
        together = self.sharding is not None

        def metered(batch: Batch) -> tuple[Tensor, ...]:
            if not together:  # they look at their budgets together, too
                self.ledger.check()
            dropping = dropping_weights() if together and grad else nullcontext()
            with self.measuring(precision), torch.set_grad_enabled(grad), self.ledger.timed(self.device), dropping:
                part = function(batch)
            self.ledger.add(share * batch.size)
            return part

        given = self.batches() if batches is None else batches
        in_time = partial(self.ledger.samples_in_time, share)
        if together:
            yield from in_step(given, metered, size, self.ready, in_time, self.ledger.check, self._one_row)
        else:
            yield from in_pieces(given, metered, size, self.device, self.ready, in_time)

    def _one_row(self) -> Batch:
        return next(next(self.batches()).pieces(1))

    def fitting(self, load: float) -> int:
        """How many samples a piece holds."""
        sample = next(next(self.batches()).pieces(2))
        return samples_that_fit(self.activation_bytes, load, self.device) if sample.divisible else sample.size

    @property
    def activation_bytes(self) -> float:
        """Bytes per sample that a forward pass keeps for its backward pass."""
        if not self._bytes_each:
            few = next(next(self.batches()).pieces(2))
            own = few.prepared(lambda raw: map_tensors(torch.clone, self.ready(raw)))  # no view of all the data
            others = [*self._model.parameters(), *self._model.buffers()]
            with self.measuring():
                taken = bytes_of_gradient(lambda leaves: self.loss_sum(leaves, own), self._params, others)
            self._bytes_each.append(max(taken, 64) / own.size)
        return self._bytes_each[0]
