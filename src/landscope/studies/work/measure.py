"""Measure one model of a study: every split, calibration before and after temperature, and what the figures need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from landscope.core.errors import LandscopeError, NotApplicableError
from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.data import Split, corrupt, scaled
from landscope.data.loading import draw
from landscope.measures import Report, by_layer, invariance
from landscope.measures.base import Measure
from landscope.measures.calibration import fit_temperature, reliability
from landscope.measures.measuring import measured
from landscope.measures.robustness import Classifier, corruption_accuracy
from landscope.measures.shapes import shape_scores
from landscope.planes import landscape
from landscope.probe.probe import Probe
from landscope.studies.record import MeasuredModel
from landscope.studies.spec import CorruptionsSpec, MeasuringSpec, SplitSpec
from landscope.training.task import Forward, Task

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FIGURES",
    "ModelMeter",
    "WeightsAtTemperatures",
    "fitted_temperature",
    "measure_model",
    "published_temperature",
    "temperature_of",
]

EVALUATION_ROWS = 512
FIGURES = ("layers", "invariance", "landscape")
"""Extras that are made for one model of each condition."""
FILLED = 0.5
"""Occupancy from which a voxel counts as filled."""


class _AsCalled(nn.Module):
    """A model that takes rows the way its task gives them (a node's number, tokens with their mask)."""

    def __init__(self, model: nn.Module, call: Forward) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for some rows."""
        return self.call(self.model, x)


@dataclass(frozen=True)
class ModelMeter:
    """How the models of one task are measured: what is called on what."""

    task: Task
    spec: MeasuringSpec
    device: torch.device

    def model(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """The task's network with these weights, taking the rows that `rows` gives."""
        net = self.task.model
        net.load_state_dict(dict(weights))
        return net if self._plain else _AsCalled(net, self.task.forward)

    @property
    def _plain(self) -> bool:
        return self.task.data.kind not in ("node classification", "text classification")

    def rows(self, split: str, samples: int | None = None) -> Split:
        """Rows of a split, never augmented; `samples` of them are drawn in proportion to the classes."""
        x, y = getattr(self.task.data, split)
        if samples is not None and samples < len(y):
            chosen, _ = draw(y.cpu(), samples, self.spec.seed, f"measured {split}")
            x, y = x[chosen], y[chosen]
        return Split(self._shaped(x), y)

    def _shaped(self, x: Tensor) -> Tensor:
        """Vectors for networks that take them; tried on two rows, because a module may declare nothing."""
        if not self._plain or x.dim() <= 2:
            return x
        with torch.no_grad():
            flat = _accepts(self.task.model, x[:2].flatten(1).to(self.device))
            whole = not flat or _accepts(self.task.model, x[:2].to(self.device))
        return x if whole else x.flatten(1)

    def probe(self, model: nn.Module, split: str, samples: int | None, temperature: float) -> Probe:
        """The point at which a split is measured."""
        return Probe(
            model,
            self.rows(split, samples),
            self.task.loss,
            mode=self.spec.mode,
            temperature=temperature,
            batch_size=self.spec.batch_size,
            device=self.device,
            dtype=getattr(torch, self.spec.dtype) if self.spec.dtype else None,
            seed=self.spec.seed,
        )

    def outputs(self, model: nn.Module, split: str) -> Tensor:
        """The model's outputs on a whole split, in eval mode, on the CPU."""
        return self.answers(model, self.rows(split).x)

    def answers(self, model: nn.Module, x: Tensor) -> Tensor:
        """The model's outputs for some inputs, in eval mode, on the CPU."""
        model.eval().to(self.device)
        with torch.no_grad():
            return torch.cat([model(part.to(self.device)).float().cpu() for part in x.split(EVALUATION_ROWS)])


class WeightsAtTemperatures:
    """One set of weights, to be measured at some temperatures one after the other; they share the work that they can.

    Args:
        meter: how models are measured.
        weights: the model.
        temperatures: in the order in which they will be measured; `None`, or one that was not found, for 1.
    """

    def __init__(
        self, meter: ModelMeter, weights: Mapping[str, Tensor], temperatures: Sequence[Estimate | None]
    ) -> None:
        self.meter, self.weights = meter, weights
        self._temperatures = [temperature_of(each) for each in temperatures]
        self._waiting: dict[str, list[Probe]] = {}

    def next_probe(self, split: str, samples: int | None) -> Probe:
        """The point at which a split is measured, at the next of the temperatures."""
        if split not in self._waiting:
            first, *others = self._temperatures
            probe = self.meter.probe(self.meter.model(self.weights), split, samples, first)
            self._waiting[split] = [probe, *(probe.at_temperature(other) for other in others)]
        return self._waiting[split].pop(0)


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


def fitted_temperature(meter: ModelMeter, model: nn.Module) -> Estimate:
    """The temperature fitted on the validation rows to convergence."""
    return _temperature(meter, model, lambda logits, labels: fit_temperature(logits, labels).estimate)


def published_temperature(meter: ModelMeter, model: nn.Module) -> Estimate:
    """The temperature that the code of the study's paper would have fitted on the validation rows."""
    preset = meter.spec.preset_with_temperature
    assert preset is not None, "a spec that asks for it has one"
    assert preset.temperature is not None, "so the preset was chosen"
    return _temperature(meter, model, preset.temperature)


def _temperature(meter: ModelMeter, model: nn.Module, fit: Callable[[Tensor, Tensor], Estimate]) -> Estimate:
    _, labels = meter.rows("validation")
    if not meter.task.classes:
        return Estimate.not_applicable("a temperature is fitted to class probabilities")
    if not len(labels):
        return Estimate.not_applicable("there are no validation rows to fit a temperature on")
    return fit(meter.outputs(model, "validation"), labels.cpu())


def measure_model(
    point: WeightsAtTemperatures,
    checkpoint: str,
    temperature: Estimate | None = None,
    *,
    figures: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> MeasuredModel:
    """Everything that the spec asks for, at the next temperature of a point, which is 1 or a fitted one.

    `figures` adds what is shown for one model of each condition only: layers, invariances, a landscape.
    """
    meter, T = point.meter, temperature_of(temperature)
    spec, model = meter.spec, meter.model(point.weights)
    reports: dict[str, Report] = {}
    extras: dict[str, Plain] = {}
    for split, wanted in spec.splits.items():
        if len(meter.rows(split).y):
            note(f"{checkpoint}: {split}")
            reports[split] = _split_report(point, split, wanted, temperature)
    if temperature is not None:
        reports["calibration"] = Report({"temperature": temperature})
    if meter.task.classes and spec.reliability and len(meter.rows("test").y) and not _is_published(temperature):
        extras["reliability"] = _reliability(meter, model, temperature)
    if meter.task.data.kind == "reconstruction":
        reports |= _shapes(meter, model)
    if spec.corruptions is not None:
        note(f"{checkpoint}: corruptions")
        reports["corrupted"], extras["corruptions"] = _corrupted(meter, model, spec.corruptions, T)
    if figures:
        extras |= _figures(meter, model, T, note)
    return MeasuredModel(checkpoint=checkpoint, temperature=T, reports=reports, extras=extras)


def _is_published(temperature: Estimate | None) -> bool:
    """Whether it is the one of a paper's code, at which figures show nothing."""
    return temperature is not None and bool(temperature.details.get("as_published"))


def _split_report(point: WeightsAtTemperatures, split: str, wanted: SplitSpec, temperature: Estimate | None) -> Report:
    spec = point.meter.spec
    chosen: dict[str, Measure] = wanted.measures_by_name(spec.seed)
    if spec.temperatures > 1 and temperature is not None and wanted.tempered is not None:
        chosen = {name: chosen[name] for name in wanted.tempered}
    kept = ("published.",) if _is_published(temperature) else ("published.", "corrected.")
    chosen |= {name: one for name, one in wanted.of_paper().items() if name.startswith(kept)}
    probe = point.next_probe(split, wanted.samples)
    report = measured(probe, chosen, seconds=spec.seconds)
    return Report(report.estimates, {**report.about, "split": split})


def _shapes(meter: ModelMeter, model: nn.Module) -> dict[str, Report]:
    """Dice score and distances of reconstructed shapes; under "shapes_shifted" those from another kind of defect."""
    inputs, truth = meter.rows("test")
    if not len(truth):
        return {}
    shifted = meter.task.data.extra.get("test_shifted")
    given = {"shapes": inputs} | ({} if shifted is None else {"shapes_shifted": shifted})
    return {
        name: Report(shape_scores(meter.answers(model, x) > FILLED, truth.cpu() > FILLED)) for name, x in given.items()
    }


def _reliability(meter: ModelMeter, model: nn.Module, temperature: Estimate | None) -> Plain:
    logits, labels = meter.outputs(model, "test"), meter.rows("test").y.cpu()
    shown: dict[str, Plain] = {"before": _table(logits, labels)}
    if temperature is not None and temperature.status.has_value:
        shown["after"] = _table(logits / temperature.value, labels)
    return shown


def _table(logits: Tensor, labels: Tensor) -> Plain:
    return _lists(reliability(logits, labels).to_frame())


def _lists(frame: pd.DataFrame) -> dict[str, Plain]:
    """A table as plain lists, its gaps as nothing."""
    columns = frame.to_dict("list")
    return {
        str(name): [None if isinstance(v, float) and not math.isfinite(v) else v for v in column]
        for name, column in columns.items()
    }


def _corrupted(meter: ModelMeter, model: nn.Module, wanted: CorruptionsSpec, T: float) -> tuple[Report, Plain]:
    rows, data = meter.task.data, meter.task.spec.data
    pixels = str(data.options.get("pixels", "unit"))
    x, y = (part.cpu() for part in meter.task.data.test)
    if x.dim() != 4 or not rows.classes or pixels == "raw":
        raise NotApplicableError(f"corruptions are for images with classes, not for {rows.name}")
    if wanted.samples is not None and wanted.samples < len(y):
        chosen, _ = draw(y, wanted.samples, meter.spec.seed, "corrupted")
        x, y = x[chosen], y[chosen]
    mean, std = _moments(meter.task)
    unit = {"unit": x, "symmetric": (x + 1) / 2, "standard": x * std + mean}[pixels].clamp(0, 1)
    scores = corruption_accuracy(
        Classifier.of(model, meter.device),
        unit,
        y,
        corrupt,
        wanted.names,
        wanted.severities,
        prepare=lambda images: meter._shaped(scaled(images, pixels, mean.flatten(), std.flatten())),  # type: ignore[arg-type]
        seed=meter.spec.seed,
    )
    table: dict[str, Plain] = {
        "names": list(scores.names),
        "severities": list(scores.severities),
        "accuracy": scores.accuracy.tolist(),
        "clean": scores.clean,
        "temperature": T,
    }
    return Report({"accuracy": scores.mean}), table


def _moments(task: Task) -> tuple[Tensor, Tensor]:
    """Mean and deviation that `pixels: standard` used."""
    from landscope.data import load

    if task.spec.data.options.get("pixels") != "standard":
        channels = task.data.test.x.shape[1]
        return torch.zeros(1, channels, 1, 1), torch.ones(1, channels, 1, 1)
    card = load(task.spec.data.name, **task.spec.data.options).card  # type: ignore[arg-type]
    shape = (1, -1, 1, 1)
    return torch.tensor(card.mean).reshape(shape), torch.tensor(card.std).reshape(shape)


def _figures(meter: ModelMeter, model: nn.Module, T: float, note: Callable[[str], None]) -> dict[str, Plain]:
    spec = meter.spec
    found: dict[str, Plain] = {}
    train = spec.splits.get("train", SplitSpec())
    if spec.layers:
        note("layers")
        layers = by_layer(meter.probe(model, "train", train.samples, T), seconds=spec.seconds)
        found["layers"] = _lists(layers.to_frame().reset_index())
    if spec.invariance:
        note("invariances")
        found["invariance"] = _invariances(meter.probe(model, "train", train.samples, T), train)
    if spec.landscape is not None:
        note("landscape")
        shown = spec.landscape
        probe = meter.probe(model, "train", shown.samples, T)
        others = {"test": meter.probe(model, "test", shown.samples, T)} if len(meter.rows("test").y) else {}
        plane = landscape(probe, resolution=shown.resolution, span=shown.span, others=others, seed=spec.seed)
        found["landscape"] = plane.to_dict()
    return found


def _invariances(probe: Probe, split: SplitSpec) -> Plain:
    """How far each measure of the split moves, relative to its value, while the function does not."""
    table: dict[str, Plain] = {}
    for name, one in split.measures_by_name(probe.seed).items():
        try:
            moved = invariance.movements(one, probe)
        except LandscopeError:
            continue
        table[name] = {
            what: {"change": movement.change, "error": movement.error}
            if movement is not None and math.isfinite(movement.change)
            else None
            for what, movement in moved.items()
        }
    return table
