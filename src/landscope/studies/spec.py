"""What a study is: models to train or to take, what to measure on them, and what to analyse.

    name: regularisers
    question: Do flatter minima generalise better?
    training: {data: digits, model: {name: mlp, widths: [64]}, epochs: 20}
    axes:
      regulariser:                       # conditions by name, each a change of the training
        none: {}
        weight decay: {optimizer.weight_decay: 1e-3}
        SAM: {sam.rho: 0.05}
      rate: {optimizer.lr: [0.01, 0.1]}  # or a grid over one key
    seeds: 5
    measuring:
      splits:
        train: {measures: all, samples: 1000}
        test: {measures: [loss, error, ece]}
    analysis: {outcomes: [test.error, gap.loss]}

A study without training lists `checkpoints` instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

from landscope.core.errors import LandscopeError, SpecError, UnknownNameError
from landscope.data import CORRUPTIONS
from landscope.measures.base import MEASURES, Measure
from landscope.measures.calibration.temperature import TEMPERATURE_FITS
from landscope.measures.resolve import resolve_measures
from landscope.probe.loss.losses import LOSSES
from landscope.specs.limits import excess
from landscope.specs.names import is_import
from landscope.specs.schema import Natural, Positive, Range, parse, with_location
from landscope.training.spec import DataSpec, ModelSpec

SPLITS = ("train", "validation", "test")


Mode: TypeAlias = Literal["eval", "batch_statistics"]


@dataclass(frozen=True, kw_only=True)
class Taking:
    """How one measure is taken, where that differs from the others of its split; beside its settings."""

    rows: Natural | None = None
    """Number of samples."""
    mode: Mode | None = None
    """With BatchNorm as it predicts (`eval`), or on the statistics of each batch."""
    augmented: bool = False
    """On one draw of the augmentation of the training, where it has any."""
    checkpoints: tuple[str, ...] | None = None
    """Only at these checkpoints."""

    @property
    def point(self) -> Taking:
        """The part that decides at which point to measure."""
        return replace(self, checkpoints=None)


HOW = tuple(field.name for field in fields(Taking))


@dataclass(frozen=True, kw_only=True)
class SplitSpec:
    """What is measured on one split: `all`, names, or names with settings; `samples` draws this many of its samples.

    A measure is reported under its own name, or under another that its settings give it, so that it can be taken twice:
    `{near: {measure: random_sharpness, rho: 0.005}, far: {measure: random_sharpness, rho: 0.5}}`. Among its settings,
    `rows: 2000` has it measured on that many samples instead, `mode: batch_statistics` in that mode, `augmented: true` on
    augmented samples, `checkpoints: [final]` at these checkpoints only. Where models are measured at fitted temperatures, too,
    `tempered` names the measures that are repeated there (by default all).
    """

    SHORTHAND: ClassVar[str] = "measures"
    GONE: ClassVar[Mapping[str, object]] = {"as_published": None, "only": []}

    measures: Literal["all"] | tuple[str, ...] | dict[str, dict[str, object] | None] = ()
    samples: Natural | None = None
    tempered: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if (names := self.names()) is not None:
            self._check_tempered(names)
        for name in self.measures if isinstance(self.measures, Mapping) else ():
            self.taking(name)

    def measures_by_name(self, seed: int = 0) -> dict[str, Measure]:
        """The measures by the name under which they are reported.

        >>> split = SplitSpec(measures={"near": {"measure": "random_sharpness", "rho": 0.005}, "l2_norm": None})
        >>> {name: measure.key for name, measure in split.measures_by_name().items()}
        {'near': 'random_sharpness', 'l2_norm': 'l2_norm'}
        """
        found = self._resolved(seed, imports=True)
        self._check_tempered(found)
        return found

    def own(self) -> list[str]:
        """Those of the user's own among the measures, as `package.module:Class`; `measures_by_name` imports them."""
        return [key for key, _ in self.written().values() if is_import(key)]

    def names(self) -> list[str] | None:
        """The names that `measures_by_name` reports, without importing; None where only a measure itself knows its own name.

        >>> SplitSpec(measures=("loss", "my_package:Mine")).names(), SplitSpec(measures={"my_package:Mine": None}).names()
        (None, ['my_package:Mine'])
        """
        found = self._resolved(0, imports=False)
        if isinstance(self.measures, Mapping):
            return list(self.measures)
        return None if self.own() else list(found)

    def written(self) -> dict[str, tuple[str, dict[str, object]]]:
        """What `measures` asks for: the name, the measure and its settings."""
        if self.measures == "all":
            return {name: (name, {}) for name in MEASURES}
        if not isinstance(self.measures, Mapping):
            return {name: (name, {}) for name in self.measures}
        each = {name: dict(settings or {}) for name, settings in self.measures.items()}
        for settings in each.values():
            for key in HOW:
                settings.pop(key, None)
        return {name: (str(settings.pop("measure", name)), settings) for name, settings in each.items()}

    def taking(self, name: str) -> Taking:
        """How a measure is taken, by the name under which it is reported.

        >>> split = SplitSpec(measures={"loss": None, "hessian_trace": {"rows": 100}}, samples=5000)
        >>> split.taking("loss").rows, split.taking("hessian_trace").rows
        (5000, 100)
        """
        given = (self.measures.get(name) if isinstance(self.measures, Mapping) else None) or {}
        try:
            found = parse(Taking, {key: given[key] for key in HOW if key in given})
        except LandscopeError as error:
            raise SpecError(f"{name}: {error}") from error
        return found if found.rows is not None else replace(found, rows=self.samples)

    def _resolved(self, seed: int, *, imports: bool) -> dict[str, Measure]:
        if self.measures == "all":
            return resolve_measures("all", seed)
        if not isinstance(self.measures, Mapping):
            return resolve_measures([name for name in self.measures if imports or not is_import(name)], seed)
        return {
            name: resolve_measures({key: settings}, seed)[key]
            for name, (key, settings) in self.written().items()
            if imports or not is_import(key)
        }

    def _check_tempered(self, names: Collection[str]) -> None:
        for name in self.tempered or ():
            if name not in names:
                raise UnknownNameError.among("measure of this split", name, names)


def _default_splits() -> dict[str, SplitSpec]:
    return {
        "train": SplitSpec(measures="all"),
        "test": SplitSpec(measures=("loss", "error", "accuracy", "ece", "brier")),
    }


@dataclass(frozen=True, kw_only=True)
class LandscapeSpec:
    """A filter-normalised plane through the final weights of the first seed of every condition."""

    SHORTHAND: ClassVar[str] = "resolution"

    resolution: Annotated[int, Range(3, 201)] = 21
    span: Positive = 1.0
    """How far the plane reaches to each side, in units of the filters."""
    samples: Natural = 1000


@dataclass(frozen=True, kw_only=True)
class CorruptionsSpec:
    """Accuracy on corrupted test images: by default all nineteen corruptions at all severities."""

    names: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[Annotated[int, Range(1, 5)], ...] = (1, 2, 3, 4, 5)
    samples: Natural | None = None

    def __post_init__(self) -> None:
        for name in self.names:
            CORRUPTIONS[name]


@dataclass(frozen=True, kw_only=True)
class MeasuringSpec:
    """What is measured on every model of the study."""

    checkpoints: tuple[str, ...] = ("final",)
    """Any of "final", "best" (early stopping), "average" (iterate averaging), "step N" (snapshots), "loss X" (`snapshots_below`;
    none where a training has not reached it)."""
    temperature: Literal["none", "fitted", "both"] | tuple[str, ...] = "none"
    """Measure at T = 1, at the temperature fitted on the validation rows, at both; or a list of `none` and of names of fits."""
    splits: dict[str, SplitSpec] = field(default_factory=_default_splits)
    mode: Mode = "eval"
    """Whether BatchNorm is measured as it predicts, or on the statistics of each batch."""
    statistics: Literal["kept", "augmented"] = "kept"
    """BatchNorm predicts with the statistics that training left, or with those of one augmented pass over the training rows."""
    batch_size: Natural | None = None
    """Samples processed at once; by default as many as fit."""
    dtype: Literal["float32", "float64"] | None = None
    """By default the network's own."""
    seconds: Positive | None = None
    """A budget for each model and split."""
    reliability: bool = True
    """Confidence against accuracy on the test split, for the figure of calibration."""
    layers: bool = False
    """Trace, top eigenvalue, relative flatness and norm of every layer, for the first seed of a condition."""
    invariance: bool = False
    """How far each measure moves while the function does not, for the first seed of a condition."""
    landscape: LandscapeSpec | None = None
    corruptions: CorruptionsSpec | None = None
    consistency: bool = True
    """Keep the test outputs, so that models of one condition can be compared with each other."""
    seed: Annotated[int, Range(0)] | Literal["run"] = 0
    """Of the samples and directions that measures draw; `run`: that of the training, so that each model has draws of its own."""

    def __post_init__(self) -> None:
        for split in self.splits:
            if split not in SPLITS:
                raise SpecError(f"expected the splits train, validation and test, got {split!r}")
        for checkpoint in self.checkpoints:
            if checkpoint not in ("final", "best", "average") and not re.fullmatch(
                r"step \d+|loss \d+(\.\d+)?(e-?\d+)?", checkpoint
            ):
                raise SpecError(
                    f'expected the checkpoints "final", "best", "average", "step N" or "loss X", got {checkpoint!r}'
                )
        if not self.checkpoints or not self.splits:
            raise SpecError("expected at least one checkpoint and one split")
        for split, wanted in self.splits.items():
            for name in wanted.written():
                for one in wanted.taking(name).checkpoints or ():
                    if one not in self.checkpoints:
                        raise UnknownNameError.among(f"checkpoint for {split}.{name}", one, self.checkpoints)
        for fit in self.temperature if isinstance(self.temperature, tuple) else ():
            if fit != "none":
                TEMPERATURE_FITS[fit]

    @property
    def temperature_fits(self) -> tuple[str, ...]:
        """What decides each temperature at which a set of weights is measured: `none` (T = 1), or the name of a fit."""
        if isinstance(self.temperature, tuple):
            return self.temperature
        return ("none", "fitted") if self.temperature == "both" else (self.temperature,)


@dataclass(frozen=True, kw_only=True)
class AnalysisSpec:
    """Which columns are correlated with which, and how.

    Columns are named split.measure, such as test.error; gap.loss and gap.error are test less train;
    consistency.disagreement is a model's mean disagreement with the others of its condition. By default `measures` is every
    sharpness measure on the training split.
    """

    outcomes: tuple[str, ...] = ("test.error", "gap.loss", "gap.error", "test.ece")
    measures: tuple[str, ...] | None = None
    method: Literal["kendall", "spearman", "pearson"] = "kendall"
    given: str | None = "train.loss"
    """The column that partial correlations control for."""
    baseline: str | None = None
    """The condition that the others are compared with."""
    checkpoint: str | None = None
    """Which models are analysed; by default the first of `measuring.checkpoints`."""


@dataclass(frozen=True, kw_only=True)
class CheckpointsSpec:
    """Models that exist already: files of one network, safetensors or state dicts of torch."""

    files: tuple[str, ...]
    model: ModelSpec
    data: DataSpec = field(default_factory=DataSpec)
    loss: str | None = None

    def __post_init__(self) -> None:
        if self.loss is not None:
            LOSSES[self.loss]
        if not self.files:
            raise SpecError("files: expected at least one file, got none")


LONGEST_NAME = 200
"""Bytes; file systems take 255."""


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """A whole study: `training` with axes and seeds, or `checkpoints`.

    >>> from landscope.specs.schema import parse
    >>> study = parse(StudySpec, {"name": "tiny", "training": {"model": "mlp"}, "axes": {"rate": {"optimizer.lr": [0.1, 0.2]}}})
    >>> study.seeds, list(study.axes)
    (3, ['rate'])
    """

    name: str
    question: str = ""
    training: dict[str, object] | None = None
    """A `TrainingSpec` as it is written; axes change it before it is checked."""
    axes: dict[str, dict[str, object]] = field(default_factory=dict)
    """By name: conditions, each a change of the training by key (`sam.rho: 0.05`), or one key with a list of values."""
    seeds: Natural | tuple[Annotated[int, Range(0)], ...] = 3
    """How many (0, 1, …), or a list of them."""
    checkpoints: CheckpointsSpec | None = None
    measuring: MeasuringSpec = field(default_factory=MeasuringSpec)
    analysis: AnalysisSpec = field(default_factory=AnalysisSpec)
    figures: tuple[Literal["png", "svg", "pdf"], ...] = ()
    """Figures for papers, in a folder beside the report."""
    notes: dict[str, object] = field(default_factory=dict)
    """Kept with the study, never read."""

    def __post_init__(self) -> None:
        for part in ("name", "question", "training", "axes", "notes"):
            if (found := excess(getattr(self, part))) is not None:
                raise SpecError(with_location((part, *found[0]), found[1]))
        if self.name in ("", ".", "..") or set(self.name) & set("/\\\0") or len(self.name.encode()) > LONGEST_NAME:
            raise SpecError(
                f"name: expected a short name without a slash, since a folder is named after it, got {self.name!r}"
            )
        if len(set(self.figures)) < len(self.figures):
            raise SpecError(f"figures: expected different formats, got {', '.join(self.figures)}")
        if (self.training is None) == (self.checkpoints is None):
            raise SpecError("a study has either training (models to train) or checkpoints (models that exist)")
        if self.checkpoints is not None and self.axes:
            raise SpecError("axes change a training; a study of checkpoints has none")
        if isinstance(self.seeds, tuple) and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise SpecError(f"seeds: expected different numbers, got {list(self.seeds)}")
        asked, measured = self.analysis.checkpoint, self.measuring.checkpoints
        if asked is not None and asked not in measured:
            raise SpecError(
                f"analysis.checkpoint: expected one of measuring.checkpoints ({', '.join(measured)}), got {asked!r}"
            )

    @property
    def seed_count(self) -> int:
        """How many seeds there are, whatever their number: `len` of a range ends at 2⁶³."""
        return self.seeds if isinstance(self.seeds, int) else len(self.seeds)

    @property
    def seed_numbers(self) -> Sequence[int]:
        return range(self.seeds) if isinstance(self.seeds, int) else self.seeds
