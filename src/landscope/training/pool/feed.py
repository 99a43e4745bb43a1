"""Batches of all members of a pool: each in its own order and with its own augmentation, as it would meet them alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from landscope.core.seeding import generator
from landscope.training.rows import epoch_batches
from landscope.training.task import Task

__all__ = ["PoolFeed"]


class PoolFeed:
    """`feed(step)`: inputs (n, b, …) and targets (n, b, …) of an optimizer step, a function of the seeds and the step alone."""

    def __init__(self, task: Task, seeds: Sequence[int]) -> None:
        self._task, self._seeds = task, tuple(seeds)
        self._epoch = -1
        self._batches: tuple[Tensor, ...] = ()
        # the same tensors at every step: a recorded step need not copy what it has
        self._all = tuple(part.expand(len(self._seeds), *part.shape) for part in task.train)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step."""
        spec, (x, y) = self._task.spec, self._task.train
        if spec.batch_size == "full":
            x, y = self._all
        else:
            rows = self._numbers(step)
            x, y = x[rows], y[rows]
        if spec.augmentation is not None:
            streams = [generator(seed, "augmentation", step) for seed in self._seeds]
            x = torch.stack([spec.augmentation(batch, rng) for batch, rng in zip(x, streams, strict=True)])
        return x, y

    def _numbers(self, step: int) -> Tensor:
        """The numbers of every member's rows, (n, b)."""
        spec, (_, y) = self._task.spec, self._task.train
        epoch, at = divmod(step, self._task.steps_per_epoch)
        if epoch != self._epoch:
            every = [
                epoch_batches(len(y), spec.batch_size, seed, epoch, drop_last=spec.drop_last) for seed in self._seeds
            ]
            orders = torch.stack([torch.cat(batches) for batches in every]).to(y.device)
            self._batches = orders.split(len(every[0][0]), dim=1)
            self._epoch = epoch
        return self._batches[at]
