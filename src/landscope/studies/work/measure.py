"""Measure one model of a study: every split, calibration before and after temperature, and what the figures need."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from landscope.core.errors import LandscopeError, NotApplicableError
from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.data import corrupt, scaled
from landscope.data.loading import draw
from landscope.measures import Report, by_layer, invariance
from landscope.measures.base import Measure
from landscope.measures.calibration import reliability
from landscope.measures.calibration.temperature import TEMPERATURE_FITS
from landscope.measures.measuring import measured
from landscope.measures.robustness import Classifier, corruption_accuracy
from landscope.measures.shapes import shape_scores
from landscope.planes import landscape
from landscope.probe.probe import Probe
from landscope.studies.record import MeasuredModel
from landscope.studies.spec import CorruptionsSpec, LandscapeSpec, SplitSpec, Taking
from landscope.studies.store.parts import TakenParts
from landscope.studies.work.meter import ModelMeter, WeightsAtTemperatures, temperature_of
from landscope.training.task import Task

if TYPE_CHECKING:
    import pandas as pd

FIGURES = ("layers", "invariance", "landscape")
"""Extras that are made for one model of each condition."""
SOON = 1e-3
"""Seconds that are left to measures when the budget of their split is spent: enough for a reason."""
FILLED = 0.5
"""Occupancy from which a voxel counts as filled."""


def fitted_temperatures(meter: ModelMeter, model: nn.Module) -> list[Estimate | None]:
    """The temperatures that the spec asks for, fitted on the validation rows; `None` is T = 1."""
    return [
        None if name == "none" else _temperature(meter, model, TEMPERATURE_FITS[name])
        for name in meter.spec.temperature_fits
    ]


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
    number: int = 0,
    *,
    taken: TakenParts | None = None,
    figures: bool = False,
    note: Callable[[str], None] = lambda _: None,
    keep: Callable[[MeasuredModel], None] = lambda _: None,
) -> MeasuredModel:
    """Everything that the spec asks for at one of the temperatures of a point, but for what was taken from another run.

    `figures` adds what is shown for one model of each condition only: layers, invariances, a landscape. `keep` is given what
    there is after each part; it raises where the work should stop.
    """
    meter, temperature = point.meter, point.temperatures[number]
    T, before = temperature_of(temperature), TakenParts({}, {}) if taken is None else taken
    spec, model = meter.spec, meter.model(point.weights)
    reports: dict[str, Report] = {}
    extras: dict[str, Plain] = {}

    def extra(name: str, make: Callable[[], Plain]) -> None:
        found = before.extra(checkpoint, number, name)
        if found is None:
            note(f"{checkpoint}: {name}")
            found = extras[name] = make()
            keep(so_far())
        extras[name] = found

    def so_far() -> MeasuredModel:
        return MeasuredModel(checkpoint=checkpoint, temperature=T, reports=reports, extras=extras)

    for split, wanted in spec.splits.items():
        if len(meter.rows(split).y):
            note(f"{checkpoint}: {split}")
            reports[split] = _split_report(point, number, split, wanted, before, checkpoint)
            keep(so_far())
    if temperature is not None:
        reports["calibration"] = Report({"temperature": temperature})
    if meter.task.classes and spec.reliability and len(meter.rows("test").y) and not _hidden(temperature):
        extra("reliability", lambda: _reliability(meter, model, temperature))
    if meter.task.data.kind == "reconstruction":
        reports |= _shapes(meter, model)
    if spec.corruptions is not None:
        accuracy, shown = (
            before.estimates(checkpoint, number, "corrupted"),
            before.extra(checkpoint, number, "corruptions"),
        )
        if not accuracy or shown is None:
            note(f"{checkpoint}: corruptions")
            accuracy, shown = _corrupted(meter, model, spec.corruptions, T)
        reports["corrupted"], extras["corruptions"] = Report(accuracy), shown
    if figures:
        for name, make in figures_of(meter, model, T).items():
            extra(name, make)
    return so_far()


def _hidden(temperature: Estimate | None) -> bool:
    """Whether its fit says that figures need not show it."""
    return temperature is not None and bool(temperature.details.get("as_published"))


def _split_report(
    point: WeightsAtTemperatures, number: int, split: str, wanted: SplitSpec, before: TakenParts, checkpoint: str
) -> Report:
    spec, temperature = point.meter.spec, point.temperatures[number]
    chosen: dict[str, Measure] = wanted.measures_by_name(point.meter.seed)
    if len(spec.temperature_fits) > 1 and temperature is not None and wanted.tempered is not None:
        chosen = {name: chosen[name] for name in wanted.tempered}
    takings = {name: wanted.taking(name) for name in chosen}
    chosen = {name: one for name, one in chosen.items() if checkpoint in (takings[name].checkpoints or (checkpoint,))}
    estimates = before.estimates(checkpoint, number, split)
    there = before.about(checkpoint, number, split)
    usual = Taking(rows=wanted.samples)
    by_point: dict[Taking, dict[str, Measure]] = {usual: {}} if there is None else {}
    for name, one in chosen.items():
        if name not in estimates:
            by_point.setdefault(takings[name].point, {})[name] = one
    about: dict[str, Plain] = {"split": split, **(there or {})}
    started = time.monotonic()
    for taking, some in by_point.items():
        left = None if spec.seconds is None else max(spec.seconds - (time.monotonic() - started), SOON)
        report = measured(point.probe(number, split, taking), some, seconds=left, should_stop=point.meter.should_stop)
        about = {**report.about, **about}
        where = {key: value for key, value in asdict(taking).items() if value != getattr(usual, key)}
        estimates |= {
            name: replace(estimate, settings={**estimate.settings, **where})
            for name, estimate in report.estimates.items()
        }
        if point.meter.should_stop():
            break
    return Report({name: estimates[name] for name in chosen if name in estimates}, about)


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


def _corrupted(
    meter: ModelMeter, model: nn.Module, wanted: CorruptionsSpec, T: float
) -> tuple[dict[str, Estimate], Plain]:
    rows, data = meter.task.data, meter.task.spec.data
    pixels = str(data.options.get("pixels", "unit"))
    x, y = (part.cpu() for part in meter.task.data.test)
    if x.dim() != 4 or not rows.classes or pixels == "raw":
        raise NotApplicableError(f"corruptions are for images with classes, not for {rows.name}")
    if wanted.samples is not None and wanted.samples < len(y):
        chosen, _ = draw(y, wanted.samples, meter.seed, "corrupted")
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
        seed=meter.seed,
    )
    table: dict[str, Plain] = {
        "names": list(scores.names),
        "severities": list(scores.severities),
        "accuracy": scores.accuracy.tolist(),
        "clean": scores.clean,
        "temperature": T,
    }
    return {"accuracy": scores.mean}, table


def _moments(task: Task) -> tuple[Tensor, Tensor]:
    """Mean and deviation that `pixels: standard` used."""
    from landscope.data import load

    if task.spec.data.options.get("pixels") != "standard":
        channels = task.data.test.x.shape[1]
        return torch.zeros(1, channels, 1, 1), torch.ones(1, channels, 1, 1)
    card = load(task.spec.data.name, **task.spec.data.options).card  # type: ignore[arg-type]
    shape = (1, -1, 1, 1)
    return torch.tensor(card.mean).reshape(shape), torch.tensor(card.std).reshape(shape)


def figures_of(meter: ModelMeter, model: nn.Module, T: float) -> dict[str, Callable[[], Plain]]:
    """What is shown for one model of each condition, where the spec asks for it: how each is made."""
    spec = meter.spec
    train, plane = spec.splits.get("train", SplitSpec()), spec.landscape
    found: dict[str, Callable[[], Plain]] = {}
    if spec.layers:
        found["layers"] = lambda: _layers(meter.probe(model, "train", Taking(rows=train.samples), T), spec.seconds)
    if spec.invariance:
        found["invariance"] = lambda: _invariances(meter.probe(model, "train", Taking(rows=train.samples), T), train)
    if plane is not None:
        found["landscape"] = lambda: _landscape(meter, model, T, plane)
    return found


def _layers(probe: Probe, seconds: float | None) -> Plain:
    return _lists(by_layer(probe, seconds=seconds).to_frame().reset_index())


def _landscape(meter: ModelMeter, model: nn.Module, T: float, shown: LandscapeSpec) -> Plain:
    probe = meter.probe(model, "train", Taking(rows=shown.samples), T)
    others = {"test": meter.probe(model, "test", Taking(rows=shown.samples), T)} if len(meter.rows("test").y) else {}
    plane = landscape(probe, resolution=shown.resolution, span=shown.span, others=others, seed=meter.seed)
    return plane.to_dict()


def _invariances(probe: Probe, split: SplitSpec) -> Plain:
    """How far each measure of the split moves, relative to its value, while the function does not."""
    table: dict[str, Plain] = {}
    for name, one in split.measures_by_name(probe.seed).items():
        try:
            moved = invariance.movements(one, probe)
        except LandscopeError:
            continue
        table[name] = {
            what: {"change": movement.change, "error": movement.error if math.isfinite(movement.error) else None}
            if movement is not None and math.isfinite(movement.change)
            else None
            for what, movement in moved.items()
        }
    return table
