"""One model as a program of one member: its optimizer, the objective, and steps that may be compiled or recorded.

A program holds the tensors of n members and steps them; `Run` does the rest. The other kind, n models stacked into one program,
is `pool.program.StackedProgram`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from landscope.core.distributed import processes
from landscope.core.errors import LandscopeError, NonFiniteTrainingError, SpecError
from landscope.core.json import Plain
from landscope.core.seeding import stream_seed
from landscope.data import Split
from landscope.training.evaluate import SplitScore, evaluate, rank
from landscope.training.fast_steps import Captured, Compiled, StepFunction, parts_to_compile
from landscope.training.loop.folder import with_weights
from landscope.training.loop.step import Feed, TrainingStep, seed_noise
from landscope.training.objectives import FAM, SeveralFAM
from landscope.training.optimizers.building import build_optimizer, set_rate
from landscope.training.schedule import learning_rate, penalty_strength
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task, memory_format

SHOWN = 12
EVERY = 50
"""Steps between two looks at the losses where a look waits for the device."""


class SingleProgram:
    """The model of a task with its optimizer; a loss that is not finite raises `NonFiniteTrainingError`.

    `graphs` is whether steps on a GPU are recorded as a CUDA graph; by default where that can be done. `folder` is where the
    last good checkpoint is, for messages.
    """

    def __init__(self, task: Task, *, folder: Path | None = None, graphs: bool | None = None) -> None:
        spec, device = task.spec, task.train.y.device
        self._task, self._folder, self._per_epoch = task, folder, task.steps_per_epoch
        # fused steps have their rate as one float32 on the device, which is not what float64 asks for
        fused = device.type == "cuda" and spec.precision in ("float32", "bfloat16")
        model = task.model
        self._format = memory_format(spec, model, device)
        model.to(memory_format=self._format)  # type: ignore[call-overload]
        model.train()
        self.fam = _fam(task)
        self.optimizer = build_optimizer(model, spec, fused=fused)
        self._scaler = GradScaler(device.type) if spec.precision == "float16" else None
        capturable = fused and processes() == 1
        self.captures = capturable if graphs is None else capturable and graphs
        full = len(task.train.y) if spec.batch_size == "full" else spec.batch_size
        step: StepFunction = TrainingStep(task, self.optimizer, fam=self.fam, scaler=self._scaler)
        if spec.compile and device.type == "cuda":
            step = Compiled(
                step, full, parts_to_compile(model, model.get_submodule(self.fam.layer) if self.fam else None)
            )
        redraw = self.fam.redraw if self.fam is not None else None
        self._step = Captured(step, full, redraw) if self.captures else step
        self._feed = Feed(task)
        self._parameters = {name: value.detach().unsqueeze(0) for name, value in model.named_parameters()}
        self._process = (rank(),) if rank() else ()  # each process draws noise of its own
        self._look_every = 1 if device.type == "cpu" else EVERY
        self._losses: list[tuple[int, Tensor]] = []

    @property
    def specs(self) -> list[TrainingSpec]:
        return [self._task.spec]

    def step(self, number: int) -> Tensor:
        """Optimizer step `number`, counted from 0; the sums of `METRICS` over its batch, (1, 3)."""
        spec = self._task.spec
        x, y = self._feed(number)
        set_rate(self.optimizer, learning_rate(spec, number, self._per_epoch))
        if self.fam is not None and isinstance(self.fam.strength, Tensor):
            self.fam.strength.fill_(penalty_strength(spec, number, self._per_epoch))
        seed_noise(stream_seed(spec.seed, "noise", number, *self._process), y.device)
        metrics = self._step(x.to(memory_format=self._format), y)
        loss = metrics[0]
        self._losses.append((number, loss.clone() if self._look_every > 1 else loss))
        if len(self._losses) >= self._look_every:
            self.failed_at()
        return metrics.unsqueeze(0)

    def failed_at(self) -> list[int]:
        """No failure, [−1]: a loss since the last look that is not finite raises."""
        noted, self._losses = self._losses, []
        losses = [loss for _, loss in noted]
        values = torch.stack(losses).tolist() if len(losses) > 1 else [float(loss) for loss in losses]
        for (step, _), value in zip(noted, values, strict=True):
            if not math.isfinite(value):
                self.fail(0, step, f"the loss became {value}")
        return [-1]

    def fail(self, at: int, step: int, what: str) -> NoReturn:
        raise non_finite_error(self._task, step, what, self._folder)

    def weights(self) -> dict[str, Tensor]:
        state = self._task.model.state_dict()
        return {name: value.unsqueeze(0) for name, value in state.items() if isinstance(value, Tensor)}

    def parameters(self) -> dict[str, Tensor]:
        return self._parameters

    def scores(self, split: Split, models: Sequence[nn.Module] | None = None) -> list[SplitScore] | None:
        found = [evaluate(self._task, model, split) for model in models or [self._task.model]]
        return [score for score in found if score is not None] or None

    def model(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """A copy of the model with other weights, in evaluation mode; training is over then."""
        self.close()
        return with_weights(self._task.model, weights).eval()

    def take(self, places: Sequence[int]) -> SingleProgram:
        return self

    def close(self) -> None:
        """Take FAM's hooks off the model."""
        if self.fam is not None:
            self.fam.remove()

    def tensors(self) -> dict[str, Tensor]:
        found = {f"model.{name}": value[0] for name, value in self.weights().items()}
        for at, entries in self._optimizer_state().items():
            found |= {f"optimizer.{at}.{k}": value for k, value in entries.items() if isinstance(value, Tensor)}
        return found

    def plain(self) -> dict[str, Plain]:
        others = {
            str(at): {key: value for key, value in entries.items() if not isinstance(value, Tensor)}
            for at, entries in self._optimizer_state().items()
        }
        return {
            "optimizer": cast(Plain, others),
            "fam": cast(Plain, self.fam.state_dict()) if self.fam is not None else None,
            "scaler": cast(Plain, self._scaler.state_dict()) if self._scaler is not None else None,
        }

    def _optimizer_state(self) -> dict[int, dict[str, Any]]:
        return cast(dict[int, dict[str, Any]], self.optimizer.state_dict()["state"])

    def restore(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Resume from the `tensors` and `plain` of the same spec, bit for bit."""
        self._task.model.load_state_dict(_under("model.", tensors), strict=False)
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        state: dict[int, dict[str, Any]] = {int(at): dict(entries) for at, entries in plain["optimizer"].items()}
        for name, value in _under("optimizer.", tensors).items():
            at, _, key = name.partition(".")
            param = params[int(at)]
            # in the memory layout of the parameter, which a file does not keep
            alike = value.shape == param.shape and value.dim() > 0
            state[int(at)][key] = torch.empty_like(param, dtype=value.dtype).copy_(value) if alike else value
        own = self.optimizer.state_dict()
        self.optimizer.load_state_dict({"state": state, "param_groups": own["param_groups"]})
        if self.fam is not None:
            self.fam.load_state_dict(plain["fam"])
        if self._scaler is not None:
            self._scaler.load_state_dict(plain["scaler"])


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _fam(task: Task) -> FAM | SeveralFAM | None:
    spec = task.spec.fam
    if spec is None:
        return None
    layers = spec.layer if isinstance(spec.layer, tuple) else (spec.layer,)
    try:
        each = [
            FAM(
                task.model,
                layer=layer,
                strength=spec.strength,
                form=spec.form,
                probes=spec.probes,
                seed=stream_seed(task.spec.seed, "layer", at) if at else task.spec.seed,
                gradient=spec.gradient,
            )
            for at, layer in enumerate(layers)
        ]
    except LandscopeError as error:
        raise SpecError(f"fam.layer: {error}") from error
    found = each[0] if len(each) == 1 else SeveralFAM(task.model, each)
    if spec.warmup:
        weight = next(task.model.parameters())  # a tensor, since a recorded step reads it where it lies
        found.strength = torch.full((), spec.strength, dtype=weight.dtype, device=weight.device)
    return found


def non_finite_error(task: Task, step: int, what: str, folder: Path | None = None) -> NonFiniteTrainingError:
    """The error for a step whose loss or weights are not finite, with its batch and what may help."""
    spec = task.spec
    epoch, at = divmod(step, task.steps_per_epoch)
    chosen = Feed(task).numbers(step)
    listed = ", ".join(map(str, chosen[:SHOWN].tolist()))
    listed += f", … ({len(chosen)} samples)" if len(chosen) > SHOWN else ""
    rate = learning_rate(spec, step, task.steps_per_epoch)
    lower = "" if spec.precision in ("float32", "float64") else ", set precision: float32"
    hint = (
        f"lower optimizer.lr, add schedule.warmup or clip_norm{lower}, or look at these samples"
        if bool(task.train.x[chosen].isfinite().all())
        else "the inputs of this batch are not finite: look at these samples"
    )
    kept = f" The last checkpoint with finite weights is kept in {folder}." if folder else ""
    return NonFiniteTrainingError(
        f"{what} at step {step} (epoch {epoch + 1}, batch {at + 1} of {task.steps_per_epoch}), learning rate {rate:g}, "
        f"training samples {listed}. What may help: {hint}.{kept}"
    )
