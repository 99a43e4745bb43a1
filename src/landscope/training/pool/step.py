"""One optimizer step of all members of a pool: the same arithmetic as training them one by one.

    plain    g = ∇L(w)
    SAM      ε = ρ T² g / ‖T g‖ with every member's own norm, then g = ∇L(w + ε)            (see `optimizers.ascent`)

A batch is worked off in parts as in `step`, and micro-batches have perturbations of their own (m-SAM). A member whose loss is not
finite is marked with the step, and from then on neither its weights nor its statistics move; the others do not notice.
Everything is in place and on a GPU nothing waits for the device, so that the step can be recorded as a CUDA graph. It counts
the steps itself and finds its settings in a table that is made for many steps ahead: nothing has to be sent before each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from landscope.core.seeding import stream_seed
from landscope.training.fast_steps import Captured
from landscope.training.loop.step import METRICS
from landscope.training.optimizers import frozen_statistics
from landscope.training.pool.noise import Draw, drawn
from landscope.training.pool.program import Program, Stack
from landscope.training.pool.state import ChunkState
from landscope.training.pool.updates import Settings, over, update
from landscope.training.schedule import learning_rate
from landscope.training.spec import TrainingSpec

__all__ = ["PoolStep"]

Gradients = dict[str, Tensor]
Part = tuple[Tensor, Tensor]

AHEAD = 256
"""Steps whose settings are sent to the device together; it waits for that."""


class PoolStep:
    """`step(number, x, y)` updates all members; x and y are (n, b, …). It gives the sums of `METRICS` over the batches, (n, 3).

    `specs` are the members' own: they differ in their seeds and numbers only.
    """

    def __init__(
        self,
        program: Program,
        specs: Sequence[TrainingSpec],
        state: ChunkState,
        *,
        capture: bool = False,
    ) -> None:
        self._program = program
        self._stack, self._state, self._health = state.stack, state.optimizer, state.health
        self._spec = specs[0]
        self._unit = replace(self._spec, optimizer=replace(self._spec.optimizer, lr=1.0))
        self._settings = Settings([spec.optimizer for spec in specs])
        one = next(iter(state.stack.params.values()))
        self._device, self._dtype = one.device, one.dtype
        self._seeds = [spec.seed for spec in specs]
        self._fixed = _fixed(specs)
        names = list(self._at(0))
        self._ahead = torch.empty(AHEAD, len(names), len(specs), dtype=self._dtype, device=self._device)
        self._known = range(0)
        self._table = torch.empty(1, len(names), len(specs), dtype=self._dtype, device=self._device)
        self._numbers = dict(zip(names, self._table[0].unbind(), strict=True))
        self._number = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._next = 0
        self._passes: dict[torch.Size, tuple[tuple[Draw, ...], ...]] = {}
        self._masks: list[list[Tensor]] = []
        self._captured: dict[torch.Size, Captured] | None = {} if capture else None

    def __call__(self, number: int, x: Tensor, y: Tensor) -> Tensor:
        """Make optimizer step `number`, counted from 0."""
        if number not in self._known:
            self._look_ahead(number)
        if number != self._next:
            self._number.fill_(number)
        self._next = number + 1
        self._make_noise(number, x)
        if self._captured is None:
            return self._advance(x, y)
        if x.shape not in self._captured:
            self._captured[x.shape] = Captured(self._advance, len(y))
        return self._captured[x.shape](x, y)

    def _at(self, number: int) -> dict[str, Tensor]:
        """Every setting of a step, one number per member."""
        factor = learning_rate(self._unit, number, self._program.task.steps_per_epoch)
        return {**self._settings(factor, number + 1), **self._fixed}

    def _look_ahead(self, number: int) -> None:
        """Send the settings of the steps from `number` on; those of step k lie at k modulo `AHEAD`."""
        first = number - number % AHEAD
        self._known = range(number, max(number + 1, min(first + AHEAD, self._program.task.steps)))
        columns = [column for step in self._known for column in self._at(step).values()]
        table = torch.stack(columns).view(len(self._known), *self._table.shape[1:])
        self._ahead[number - first : number - first + len(table)].copy_(table)

    def _make_noise(self, number: int, x: Tensor) -> None:
        """Each member's own masks on a CPU; elsewhere a seed from which the step draws them for all members together."""
        seeds, cpu = self._seeds, self._device.type == "cpu"
        # torch.manual_seed would note down the call stack for devices that are not in use
        seed_all = torch.default_generator.manual_seed if cpu else torch.cuda.manual_seed
        seed_all(stream_seed(seeds[0], "pool", *seeds[1:], number))
        if x.shape not in self._passes:
            again = 1 if self._spec.sam is None else 2
            groups = [[self._program.draws(self._stack, part) for part, _ in group] for group in self._groups(x, x)]
            self._passes[x.shape] = tuple(part for group in groups for _ in range(again) for part in group)
        if cpu:
            passes = self._passes[x.shape]
            noise = [stream_seed(seed, "noise", number) for seed in seeds] if any(passes) else ()
            self._masks = self._drawn(x.shape, noise) if noise else [[] for _ in passes]

    def _drawn(self, shape: torch.Size, seeds: Sequence[int] | None = None) -> list[list[Tensor]]:
        """The masks of every pass over a batch; one stream of random numbers runs through them all."""
        passes = self._passes[shape]
        masks = iter(drawn([draw for one in passes for draw in one], shape[0], self._device, seeds))
        return [[next(masks) for _ in one] for one in passes]

    def _groups(self, x: Tensor, y: Tensor) -> list[list[Part]]:
        """The batch in the parts that it is worked off in; each group of them has one perturbation."""
        spec = self._spec
        if spec.sam is not None and spec.sam.micro_batch is not None:
            size = spec.sam.micro_batch
            return [[part] for part in zip(x.split(size, 1), y.split(size, 1), strict=True)]
        if spec.accumulate == 1:
            return [[(x, y)]]
        cut = zip(x.tensor_split(spec.accumulate, 1), y.tensor_split(spec.accumulate, 1), strict=True)
        return [[(inputs, targets) for inputs, targets in cut if targets.shape[1]]]

    def _advance(self, x: Tensor, y: Tensor) -> Tensor:
        members, rows = y.shape[:2]
        stack, alive = self._stack, self._health.alive
        torch.index_select(self._ahead, 0, self._number % AHEAD, out=self._table)
        masks = iter(self._masks if self._device.type == "cpu" else self._drawn(x.shape))
        metrics = torch.zeros(members, len(METRICS), dtype=torch.float64, device=self._device)
        before = {name: value.clone() for name, value in stack.buffers.items()}
        total: Gradients = {}
        for group in self._groups(x, y):
            gradients, sums = self._gradients(stack, group, rows, masks)
            metrics[:, :2] += sums
            if self._spec.sam is not None:
                with frozen_statistics(self._program.task.model):
                    gradients, _ = self._gradients(self._uphill(gradients), group, rows, masks)
            total = _sum(total, gradients)

        with torch.no_grad():
            finite = metrics[:, 0].isfinite()
            self._health.failed_at.copy_(torch.where(alive & ~finite, self._number, self._health.failed_at))
            alive &= finite
            numbers: Mapping[str, Tensor] = self._numbers
            if alive.is_cuda or not bool(alive.all()):
                total = {name: g.where(over(alive, g), 0) for name, g in total.items()}
                metrics.copy_(metrics.where(over(alive, metrics), 0))
                for name, value in stack.buffers.items():
                    value.copy_(torch.where(over(alive, value), value, before[name]))
                still = {"rate": 0.0, "corrected_rate": 0.0, "shrink": 1.0}
                numbers = {k: v.where(alive, still[k]) if k in still else v for k, v in numbers.items()}
            if (bound := numbers.get("clip_norm")) is not None:
                share = (bound / (_norms(list(total.values())) + 1e-6)).clamp(max=1.0).where(bound.isfinite(), 1.0)
                total = {name: g * over(share.to(g.dtype), g) for name, g in total.items()}
            update(self._spec.optimizer, stack.params, total, self._state, numbers, self._settings.decays)
            self._number += 1
        return metrics

    def _gradients(
        self, stack: Stack, group: Sequence[Part], rows: int, masks: Iterator[list[Tensor]]
    ) -> tuple[Gradients, Tensor]:
        """Every member's gradient of its mean objective over `rows` rows, and the sums of its loss and mistakes."""
        total: Gradients = {}
        metrics = torch.zeros(group[0][1].shape[0], 2, dtype=torch.float64, device=self._device)
        for x, y in group:
            objective, sums = self._program.objectives(stack, x, y, next(masks))
            size = y.shape[1]
            mean = objective / size if size == rows else objective / size * (size / rows)
            found = torch.autograd.grad(mean.sum(), list(stack.params.values()), allow_unused=True)
            own = {name: g for name, g in zip(stack.params, found, strict=True) if g is not None}
            total = _sum(total, own)
            metrics += sums
        return total, metrics

    @torch.no_grad()
    def _uphill(self, gradients: Gradients) -> Stack:
        """All members at w + ε."""
        sam, params = self._spec.sam, self._stack.params
        assert sam is not None, "only sharpness-aware steps climb"
        metric = {
            name: params[name].abs().add_(over(self._numbers["eta"], params[name]))
            for name in gradients
            if sam.adaptive and params[name].dim() > 2  # of one member: at least two dimensions
        }
        climb = {name: g * metric[name] if name in metric else g for name, g in gradients.items()}
        norms = _norms(list(climb.values()), torch.float64).clamp_min(math.sqrt(torch.finfo(self._dtype).tiny))
        scale = (self._numbers["rho"] / norms).to(self._dtype)
        moved = dict(params)
        for name, step in climb.items():
            step = step * metric[name] if name in metric else step
            moved[name] = (params[name] + step * over(scale, step)).requires_grad_()
        return Stack(moved, self._stack.buffers)


def _fixed(specs: Sequence[TrainingSpec]) -> dict[str, Tensor]:
    """Settings that are the same at every step, one number per member."""
    columns: dict[str, list[float]] = {}
    if specs[0].sam is not None:
        sams = [spec.sam for spec in specs if spec.sam is not None]
        columns |= {"rho": [sam.rho for sam in sams], "eta": [sam.eta for sam in sams]}
    if any(spec.clip_norm is not None for spec in specs):
        columns["clip_norm"] = [spec.clip_norm or math.inf for spec in specs]
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}


def _sum(total: Gradients, more: Gradients) -> Gradients:
    return {name: total[name] + g if name in total else g for name, g in {**total, **more}.items()} if total else more


def _norms(tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> Tensor:
    """Each member's Euclidean norm over all tensors."""
    parts = [torch.linalg.vector_norm(t.reshape(len(t), -1), dim=1, dtype=dtype) for t in tensors]
    return torch.linalg.vector_norm(torch.stack(parts), dim=0)
