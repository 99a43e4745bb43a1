"""Batches of samples that live on the device, in the order of their epoch, augmented by the step's own random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from landscope.core.seeding import generator
from landscope.training.task import Task
from landscope.training.task_data import epoch_batches


class Feed:
    """`feed(step)`: inputs and targets of an optimizer step, counted from 0; a function of the seeds and the step alone.

    A batch is (b, …) for a task's own model. With `seeds`, one for each of n members, it is (n, b, …): every member in its own
    order and with its own augmentation, as it would meet them alone.
    """

    def __init__(self, task: Task, seeds: Sequence[int] | None = None) -> None:
        self._task, self._stacks = task, seeds is not None
        self._seeds = (task.spec.seed,) if seeds is None else tuple(seeds)
        self._epoch = -1
        self._batches: tuple[Tensor, ...] = ()
        # the same tensors at every step: a recorded step need not copy what it has
        n = len(self._seeds)
        self._all = tuple(part.expand(n, *part.shape) if self._stacks else part for part in task.train)

    def numbers(self, step: int) -> Tensor:
        """The numbers of the step's samples among the training samples, (b,) or (n, b)."""
        spec, (_, y) = self._task.spec, self._task.train
        epoch, at = divmod(step, self._task.steps_per_epoch)
        if epoch != self._epoch:
            cut = [epoch_batches(len(y), spec.batch_size, s, epoch, drop_last=spec.drop_last) for s in self._seeds]
            # one copy to the device for the whole epoch
            orders = torch.stack([torch.cat(batches) for batches in cut]).to(y.device)
            self._batches = (orders if self._stacks else orders[0]).split(len(cut[0][0]), dim=-1)
            self._epoch = epoch
        return self._batches[at]

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of a step."""
        augmentation = self._task.spec.augmentation
        x, y = self._all
        if self._task.spec.batch_size != "full":
            chosen = self.numbers(step)
            x, y = (part.index_select(0, chosen.flatten()).unflatten(0, chosen.shape) for part in self._task.train)
        if augmentation is not None:
            streams = [generator(seed, "augmentation", step) for seed in self._seeds]
            if not self._stacks:
                return augmentation(x, streams[0]), y
            x = torch.stack([augmentation(batch, rng) for batch, rng in zip(x, streams, strict=True)])
        return x, y


def seed_noise(seed: int, device: torch.device) -> None:
    """Set torch's global generators for the noise of one step (dropout and the like).

    `torch.manual_seed` would do the same for every kind of device, at a cost that small networks feel.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)
