"""One optimizer step: its batch, forward, objective, backward, clipping, update.

    plain    g = ∇L(w)
    SAM      ε from ∇L(w), then g = ∇L(w + ε); m-SAM has an ε for each part of m samples and adds the gradients up
    FAM      L + λκ stands for L throughout, in both passes of SAM

A batch is processed in parts (accumulation); each part's mean loss weighs as many samples as the part has, so the gradient is
that of the whole batch. Running statistics of BatchNorm move in the first pass only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from landscope.core.distributed import processes, sum_over_processes
from landscope.core.seeding import generator
from landscope.training.evaluate import autocast, mistakes, precise, share, share_statistics, sum_gradients
from landscope.training.objectives import FAM, SeveralFAM
from landscope.training.optimizers import SAM
from landscope.training.task import Task
from landscope.training.task_data import epoch_batches

METRICS = ("loss", "error", "kappa")
"""What a step reports, each summed over the samples of the batch."""

Part = tuple[Tensor, Tensor]


class TrainingStep:
    """`step(x, y)` updates the model and gives the sums of `METRICS` over the batch, on the device."""

    def __init__(
        self, task: Task, optimizer: Optimizer, *, fam: FAM | SeveralFAM | None = None, scaler: GradScaler | None = None
    ) -> None:
        self._task, self._optimizer, self._fam, self._scaler = task, optimizer, fam, scaler
        self._base = optimizer.base_optimizer if isinstance(optimizer, SAM) else optimizer
        self._parameters = [p for p in task.model.parameters() if p.requires_grad]
        device = self._parameters[0].device
        self._nothing = torch.zeros(len(METRICS), dtype=precise(device), device=device)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """One optimizer step on a batch, of which each process takes its share."""
        parts, samples = self._parts(x, y), len(y)
        if isinstance(self._optimizer, SAM):
            metrics = self._perturbed_gradients(self._optimizer, parts, samples)
        else:
            self._optimizer.zero_grad()
            metrics = self._add_gradients(parts, samples)
            sum_gradients(self._parameters)
        self._update()
        if processes() == 1:
            return metrics
        share_statistics(self._task.model)
        return sum_over_processes(metrics.clone())

    def _parts(self, x: Tensor, y: Tensor) -> list[Part]:
        """This process's share of the batch, in the parts that it is processed in."""
        spec = self._task.spec
        if spec.sam is not None and spec.sam.micro_batch is not None:
            return list(zip(share(x.split(spec.sam.micro_batch)), share(y.split(spec.sam.micro_batch)), strict=True))
        if processes() > 1:
            x, y = share(x), share(y)
        if spec.accumulate == 1:
            return [(x, y)] if len(y) else []
        cut = zip(x.tensor_split(spec.accumulate), y.tensor_split(spec.accumulate), strict=True)
        return [(inputs, targets) for inputs, targets in cut if len(targets)]

    def _add_gradients(self, parts: Sequence[Part], samples: int) -> Tensor:
        """Add the gradients of the parts' share in the mean over `samples` samples; the metrics are returned."""
        metrics = self._nothing
        for x, y in parts:
            with self._fam.ready() if self._fam else nullcontext(), autocast(self._task, x.device):
                outputs = self._task.forward(self._task.model, x)
                objective = self._task.objective.sum(outputs, y, len(y))
            mean = objective / len(y)
            total = self._fam(mean) if self._fam else mean
            weighted = total if len(y) == samples else total * (len(y) / samples)
            (weighted if self._scaler is None else self._scaler.scale(weighted)).backward()
            metrics = metrics + self._metrics(outputs.detach(), y, objective.detach())
        return metrics

    @torch.no_grad()
    def _metrics(self, outputs: Tensor, y: Tensor, objective: Tensor) -> Tensor:
        task = self._task
        loss = objective if task.objective is task.loss else task.loss.sum(outputs, y, len(y))
        zero = self._nothing[0]
        wrong = mistakes(outputs, y) if task.classes else zero
        kappa = self._fam.value * len(y) if self._fam and self._fam.value is not None else zero
        return torch.stack([value.to(zero.dtype) for value in (loss, wrong, kappa)])

    def _perturbed_gradients(self, sam: SAM, parts: Sequence[Part], samples: int) -> Tensor:
        """Gradients at perturbed weights; the metrics are those of the weights themselves."""
        apart = self._task.spec.sam is not None and self._task.spec.sam.micro_batch is not None
        metrics = self._nothing
        gradients: list[Tensor | None] = [None] * len(self._parameters)
        sam.zero_grad()  # also where this process has no samples
        for group in ([part] for part in parts) if apart else [parts]:
            sam.zero_grad()
            metrics = metrics + self._add_gradients(group, samples)
            if not apart:
                sum_gradients(self._parameters)
            sam.first_step(zero_grad=True, model=self._task.model)
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            try:
                self._add_gradients(group, samples)
            finally:
                sam.restore()
            gradients = [parameter.grad for parameter in self._parameters]
        sum_gradients(self._parameters)
        return metrics

    def _update(self) -> None:
        if self._scaler is None:
            if self._task.spec.clip_norm is not None:
                clip_grad_norm_(self._parameters, self._task.spec.clip_norm)
            self._base.step()
            return
        if self._task.spec.clip_norm is not None:
            self._scaler.unscale_(self._base)
            clip_grad_norm_(self._parameters, self._task.spec.clip_norm)
        self._scaler.step(self._base)
        self._scaler.update()


# The batch of a step: samples on the device in the order of their epoch, augmented by the step's own random numbers.


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
