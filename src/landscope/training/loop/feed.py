"""Batches of rows that live on the device, in the order of their epoch, augmented by the step's own random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.seeding import generator, stream_seed
from landscope.training.rows import epoch_batches
from landscope.training.task import Task, memory_format

__all__ = ["Feed", "seed_noise"]


class Feed:
    """`feed(step)`: inputs and targets of an optimizer step, a function of the seed and the step alone."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._memory_format = memory_format(task.spec, task.model, task.train.y.device)
        self._epoch = -1
        self._batches: tuple[Tensor, ...] = ()

    def numbers(self, step: int) -> Tensor:
        """The numbers of the step's rows among the training rows."""
        spec, (_, y) = self._task.spec, self._task.train
        epoch, at = divmod(step, self._task.steps_per_epoch)
        if epoch != self._epoch:
            batches = epoch_batches(len(y), spec.batch_size, spec.seed, epoch, drop_last=spec.drop_last)
            # one copy to the device for the whole epoch
            self._batches = tuple(torch.cat(batches).to(y.device).split(len(batches[0])))
            self._epoch = epoch
        return self._batches[at]

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of a step, counted from 0."""
        spec, (x, y) = self._task.spec, self._task.train
        if spec.batch_size != "full":
            rows = self.numbers(step)
            x, y = x.index_select(0, rows), y.index_select(0, rows)
        if spec.augmentation is not None:
            x = spec.augmentation(x, generator(spec.seed, "augmentation", step))
        return x.to(memory_format=self._memory_format), y


def seed_noise(seed: int, step: int, device: torch.device, rank: int = 0) -> None:
    """Set torch's global generators for the noise of one step (dropout and the like); each process has its own.

    `torch.manual_seed` would do the same for every kind of device, at a cost that small networks feel.
    """
    stream = ("noise", step, rank) if rank else ("noise", step)
    number = stream_seed(seed, *stream)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)
    elif device.type != "cpu":
        torch.manual_seed(number)
