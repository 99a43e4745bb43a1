"""n models stacked into one program: one optimizer step of all of them, with the same arithmetic as training them one by one.

    plain    g = ∇L(w)
    SAM      ε = ρ T² g / ‖T g‖ with every member's own norm, then g = ∇L(w + ε)            (see `optimizers.ascent`)

A batch is processed in parts as in `loop.step`, and micro-batches have perturbations of their own (m-SAM). A member whose loss
is not finite is marked with the step, and from then on neither its weights nor its statistics move; the others do not notice.
Everything is in place and on a GPU nothing waits for the device, so that the step can be recorded as a CUDA graph. It counts
the steps itself and finds its settings in a table that is made for many steps ahead: nothing has to be sent before each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from landscope.core.json import Plain
from landscope.core.seeding import stream_seed
from landscope.data import Split
from landscope.training.evaluate import SplitScore
from landscope.training.fast_steps import Captured
from landscope.training.loop.folder import FAILED, with_weights
from landscope.training.loop.program import non_finite_error
from landscope.training.loop.state import some
from landscope.training.loop.step import METRICS, Feed, seed_noise
from landscope.training.optimizers import frozen_statistics
from landscope.training.pool.passes import Passes, Stack, stacked
from landscope.training.pool.updates import Settings, State, fresh_state, over, update
from landscope.training.schedule import learning_rate
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task

Gradients = dict[str, Tensor]
Part = tuple[Tensor, Tensor]

AHEAD = 256
"""Steps whose settings are sent to the device together; it waits for that."""


class StackedProgram:
    """The models in `stack` with what their optimizers remember; `specs` are their own and differ in seeds and numbers only.

    `alive` are the members that still move; `failed` is the step at which the loss of the others was not finite.
    """

    def __init__(
        self,
        task: Task,
        specs: Sequence[TrainingSpec],
        stack: Stack,
        optimizer: State,
        *,
        alive: Tensor | None = None,
        failed: Tensor | None = None,
        capture: bool = False,
    ) -> None:
        self._task, self.specs, self._capture = task, specs, capture
        self._passes = Passes(task)
        self._stack, self._state = stack, optimizer
        self._spec = specs[0]
        self._unit = replace(self._spec, optimizer=replace(self._spec.optimizer, lr=1.0))
        self._settings = Settings([spec.optimizer for spec in specs])
        one = next(iter(stack.params.values()))
        self._device, self._dtype = one.device, one.dtype
        n = len(specs)
        self._alive = torch.ones(n, dtype=torch.bool, device=self._device) if alive is None else alive
        self._failed = torch.full((n,), -1, device=self._device) if failed is None else failed
        self._seeds = [spec.seed for spec in specs]
        self._feed = Feed(task, self._seeds)
        self._fixed = _fixed(specs)
        names = list(self._at(0))
        self._ahead = torch.empty(AHEAD, len(names), n, dtype=self._dtype, device=self._device)
        self._known = range(0)
        self._table = torch.empty(1, len(names), n, dtype=self._dtype, device=self._device)
        self._numbers = dict(zip(names, self._table[0].unbind(), strict=True))
        self._number = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._next = 0
        self._captured: dict[torch.Size, Captured] = {}

    @classmethod
    def fresh(
        cls, task: Task, specs: Sequence[TrainingSpec], models: Sequence[nn.Module], *, capture: bool
    ) -> StackedProgram:
        """Models before their first step."""
        stack = stacked(models, task.train.y.device)
        remembers = Settings([spec.optimizer for spec in specs]).remembers
        return cls(task, specs, stack, fresh_state(task.spec.optimizer, stack.params, remembers), capture=capture)

    @classmethod
    def restored(
        cls, task: Task, specs: Sequence[TrainingSpec], tensors: Mapping[str, Tensor], *, capture: bool
    ) -> StackedProgram:
        """What `tensors` were taken from, bit for bit."""
        device = task.train.y.device
        groups: dict[str, dict[str, Tensor]] = {"params": {}, "buffers": {}}
        for key, value in tensors.items():
            group, _, name = key.partition("/")
            if name:
                groups.setdefault(group, {})[name] = value.to(device)
        stack = Stack({name: value.requires_grad_() for name, value in groups["params"].items()}, groups["buffers"])
        prefix = "optimizer."
        remembered = {group.removeprefix(prefix): own for group, own in groups.items() if group.startswith(prefix)}
        alive, failed = tensors["alive"].to(device), tensors["failed_at"].to(device)
        return cls(task, specs, stack, remembered, alive=alive, failed=failed, capture=capture)

    def take(self, places: Sequence[int]) -> StackedProgram:
        chosen = torch.tensor(places, device=self._device)
        return StackedProgram(
            self._task,
            [self.specs[at] for at in places],
            self._stack.take(places),
            {name: some(tensors, places) for name, tensors in self._state.items()},
            alive=self._alive[chosen],
            failed=self._failed[chosen],
            capture=self._capture,
        )

    def tensors(self) -> dict[str, Tensor]:
        groups = {"params": self._stack.params, "buffers": self._stack.buffers}
        groups |= {f"optimizer.{name}": tensors for name, tensors in self._state.items()}
        found = {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}
        return {**found, "alive": self._alive, "failed_at": self._failed}

    def plain(self) -> dict[str, Plain]:
        """Nothing but tensors changes."""
        return {}

    def weights(self) -> dict[str, Tensor]:
        return self._stack.weights()

    def parameters(self) -> dict[str, Tensor]:
        return self._stack.params

    def scores(self, split: Split, models: Sequence[nn.Module] | None = None) -> list[SplitScore] | None:
        return self._passes.scores(stacked(models, self._device) if models else self._stack, split)

    def model(self, weights: Mapping[str, Tensor]) -> nn.Module:
        return with_weights(self._task.model, weights).eval()

    def failed_at(self) -> list[int]:
        return self._failed.tolist()

    def fail(self, at: int, step: int, what: str) -> str:
        return FAILED + str(non_finite_error(replace(self._task, spec=self.specs[at]), step, what))

    def step(self, number: int) -> Tensor:
        """Optimizer step `number`, counted from 0, of all members; the sums of `METRICS` over their batches, (n, 3)."""
        if number not in self._known:
            self._look_ahead(number)
        if number != self._next:
            self._number.fill_(number)
        self._next = number + 1
        x, y = self._feed(number)
        seed_noise(stream_seed(self._seeds[0], "pool", *self._seeds[1:], number), self._device)
        if not self._capture:
            return self._advance(x, y)
        if x.shape not in self._captured:
            self._captured[x.shape] = Captured(self._advance, len(y))
        return self._captured[x.shape](x, y)

    def _at(self, number: int) -> dict[str, Tensor]:
        """Every setting of a step, one number per member."""
        factor = learning_rate(self._unit, number, self._task.steps_per_epoch)
        return {**self._settings(factor, number + 1), **self._fixed}

    def _look_ahead(self, number: int) -> None:
        """Send the settings of the steps from `number` on; those of step k lie at k modulo `AHEAD`."""
        first = number - number % AHEAD
        self._known = range(number, max(number + 1, min(first + AHEAD, self._task.steps)))
        columns = [column for step in self._known for column in self._at(step).values()]
        table = torch.stack(columns).view(len(self._known), *self._table.shape[1:])
        self._ahead[number - first : number - first + len(table)].copy_(table)

    def _groups(self, x: Tensor, y: Tensor) -> list[list[Part]]:
        """The batch in the parts that it is processed in; each group of them has one perturbation."""
        spec = self._spec
        if spec.sam is not None and spec.sam.micro_batch is not None:
            size = spec.sam.micro_batch
            return [[part] for part in zip(x.split(size, 1), y.split(size, 1), strict=True)]
        if spec.accumulate == 1:
            return [[(x, y)]]
        cut = zip(x.tensor_split(spec.accumulate, 1), y.tensor_split(spec.accumulate, 1), strict=True)
        return [[(inputs, targets) for inputs, targets in cut if targets.shape[1]]]

    def _advance(self, x: Tensor, y: Tensor) -> Tensor:
        members, samples = y.shape[:2]
        stack, alive = self._stack, self._alive
        torch.index_select(self._ahead, 0, self._number % AHEAD, out=self._table)
        metrics = torch.zeros(members, len(METRICS), dtype=torch.float64, device=self._device)
        before = {name: value.clone() for name, value in stack.buffers.items()}
        total: Gradients = {}
        for group in self._groups(x, y):
            gradients, sums = self._gradients(stack, group, samples)
            metrics[:, :2] += sums
            if self._spec.sam is not None:
                with frozen_statistics(self._task.model):
                    gradients, _ = self._gradients(self._uphill(gradients), group, samples)
            total = _sum(total, gradients)

        with torch.no_grad():
            finite = metrics[:, 0].isfinite()
            self._failed.copy_(torch.where(alive & ~finite, self._number, self._failed))
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

    def _gradients(self, stack: Stack, group: Sequence[Part], samples: int) -> tuple[Gradients, Tensor]:
        """Every member's gradient of its mean objective over `samples` samples, and the sums of its loss and mistakes."""
        total: Gradients = {}
        metrics = torch.zeros(group[0][1].shape[0], 2, dtype=torch.float64, device=self._device)
        for x, y in group:
            objective, sums = self._passes.objectives(stack, x, y)
            size = y.shape[1]
            mean = objective / size if size == samples else objective / size * (size / samples)
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
