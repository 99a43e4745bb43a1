"""How the models of a task are measured: their weights, the samples of a split, the probe at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from landscope.core.estimate import Estimate
from landscope.core.seeding import generator
from landscope.data import Split
from landscope.data.loading import draw
from landscope.probe.checks import tensor_output
from landscope.probe.probe import Probe
from landscope.studies.spec import MeasuringSpec, Taking
from landscope.training.averaging import recompute_statistics
from landscope.training.task import AsCalled, Task

EVALUATION_ROWS = 512


@dataclass(frozen=True)
class ModelMeter:
    """Measures the models of one task."""

    task: Task
    spec: MeasuringSpec
    device: torch.device
    should_stop: Callable[[], bool] = lambda: False
    """Asked after every estimate: once it says yes, what is not measured yet is left."""

    @property
    def seed(self) -> int:
        return self.task.spec.seed if self.spec.seed == "run" else self.spec.seed

    def model(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The task's network with these weights, taking the rows that `rows` gives."""
        net = self.task.model
        net.load_state_dict(dict(weights))
        if self.spec.statistics == "augmented":
            size = self.task.spec.batch_size
            x = self._augmented(self.task.train.x)
            recompute_statistics(net.to(self.device), self.task.forward, x, len(x) if size == "full" else size)
        return net if self._plain else AsCalled(net, self.task.forward)

    @property
    def _plain(self) -> bool:
        return self.task.data.kind not in ("node classification", "text classification")

    def rows(self, split: str, samples: int | None = None, *, augmented: bool = False) -> Split:
        """Rows of a split; `samples` of them are drawn in proportion to the classes."""
        x, y = getattr(self.task.data, split)
        if samples is not None and samples < len(y):
            chosen, _ = draw(y.cpu(), samples, self.seed, f"measured {split}")
            x, y = x[chosen], y[chosen]
        return Split(self._shaped(self._augmented(x) if augmented else x), y)

    def _augmented(self, x: Tensor) -> Tensor:
        """One draw of what the training does to its samples; they themselves where it does nothing."""
        augmentation = self.task.spec.augmentation
        return x if augmentation is None else augmentation(x, generator(self.seed, "measured augmentation"))

    def _shaped(self, x: Tensor) -> Tensor:
        """Vectors for networks that take them; tried on two rows, because a module may declare nothing."""
        if not self._plain or x.dim() <= 2:
            return x
        with torch.no_grad():
            flat = _accepts(self.task.model, x[:2].flatten(1).to(self.device))
            whole = not flat or _accepts(self.task.model, x[:2].to(self.device))
        return x if whole else x.flatten(1)

    def probe(self, model: nn.Module, split: str, taking: Taking, temperature: float) -> Probe:
        """The point at which a split is measured."""
        return Probe(
            model,
            self.rows(split, taking.rows, augmented=taking.augmented),
            self.task.loss,
            mode=taking.mode or self.spec.mode,
            temperature=temperature,
            batch_size=self.spec.batch_size,
            device=self.device,
            dtype=getattr(torch, self.spec.dtype) if self.spec.dtype else None,
            seed=self.seed,
        )

    def outputs(self, model: nn.Module, split: str) -> Tensor:
        """The model's outputs on a whole split, in eval mode, on the CPU."""
        return self.answers(model, self.rows(split).x)

    def answers(self, model: nn.Module, x: Tensor) -> Tensor:
        """The model's outputs for some inputs, in eval mode, on the CPU."""
        model.eval().to(self.device)
        with torch.no_grad():
            parts = (tensor_output(model(part.to(self.device))) for part in x.split(EVALUATION_ROWS))
            return torch.cat([part.float().cpu() for part in parts])


class WeightsAtTemperatures:
    """One set of weights, to be measured at some temperatures; they share the work that they can.

    Args:
        meter: how models are measured.
        weights: the model.
        temperatures: by their numbers in the record; `None`, or one that was not found, for 1.
    """

    def __init__(
        self, meter: ModelMeter, weights: Mapping[str, Tensor], temperatures: Mapping[int, Estimate | None]
    ) -> None:
        self.meter, self.weights, self.temperatures = meter, weights, temperatures
        self._probes: dict[tuple[str, Taking], dict[int, Probe]] = {}

    def probe(self, number: int, split: str, taking: Taking) -> Probe:
        """The point at which some samples of a split are measured, at one of the temperatures."""
        key = split, taking
        if key not in self._probes:
            (first, T), *others = self.temperatures.items()
            probe = self.meter.probe(self.meter.model(self.weights), split, taking, temperature_of(T))
            self._probes[key] = {first: probe} | {n: probe.at_temperature(temperature_of(T)) for n, T in others}
        return self._probes[key][number]


def temperature_of(fitted: Estimate | None) -> float:
    """The temperature of a model, 1 where none was asked for or found.

    >>> temperature_of(None), temperature_of(Estimate(2.5)), temperature_of(Estimate.not_applicable("no classes"))
    (1.0, 2.5, 1.0)
    """
    return 1.0 if fitted is None or not fitted.status.has_value else fitted.value


def _accepts(model: nn.Module, x: Tensor) -> bool:
    try:
        model.eval()(x)
    except Exception:  # whatever a module raises for inputs it was not made for
        return False
    return True
