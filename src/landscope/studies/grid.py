"""From a study to its runs: every combination of the axes' levels, for every seed, each checked before anything starts."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import cast

from landscope.core.errors import LandscopeError, SpecError, UnknownNameError
from landscope.core.json import Plain
from landscope.models import MODELS
from landscope.models.catalogue import check_options
from landscope.specs.limits import MOST_RUNS
from landscope.specs.names import import_function, is_import, public_names
from landscope.specs.overlay import with_value
from landscope.specs.schema import MismatchError, Path, check_value, to_plain, with_location
from landscope.studies.spec import SPLITS, AnalysisSpec, StudySpec
from landscope.training.spec import ModelSpec, TrainingSpec

WEIGHTS = "weights"
"""Among the versions of a study: the digest of each file of weights that it takes."""


@dataclass(frozen=True)
class Level:
    """One setting of an axis: its name, the changes it makes ({"optimizer.lr": 0.1}), and where it was written."""

    name: str
    changes: Mapping[str, object]
    path: Path
    value: Plain = None
    """For a grid, the number or word itself."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run: a training with a seed or a checkpoint, its place on the axes, and what is measured."""

    condition: str
    axes: Mapping[str, Plain]
    seed: int
    plain: Mapping[str, Plain]
    """Everything that decides the numbers, and nothing else, with public names of functions: what its key is made of."""
    training: TrainingSpec | None = None


def levels(axis: str, written: Mapping[str, object]) -> list[Level]:
    """The levels of an axis: named conditions, or a grid over one key.

    >>> [level.name for level in levels("rate", {"optimizer.lr": [0.1, 0.2]})]
    ['optimizer.lr=0.1', 'optimizer.lr=0.2']
    >>> levels("regulariser", {"none": {}, "decay": {"optimizer.weight_decay": 1e-3}})[1].changes
    {'optimizer.weight_decay': 0.001}
    """
    at: Path = ("axes", axis)
    if len(written) == 1:
        (key, values) = next(iter(written.items()))
        if isinstance(values, list | tuple):
            if not values:
                raise MismatchError(((*at, key), "an axis needs at least one level"))
            short = key.rsplit(".", 1)[-1] if axis == key.rsplit(".", 1)[-1] else key
            return [
                Level(f"{short}={word}", {key: value}, (*at, key, i), to_plain(value))
                for i, (value, word) in enumerate(zip(values, _words(values), strict=True))
            ]
    found = []
    for name, changes in written.items():
        if changes is not None and not isinstance(changes, Mapping):
            raise MismatchError(
                (
                    (*at, name),
                    f"a condition is a mapping of changes such as {{optimizer.weight_decay: 1e-3}}, and a grid one key with a "
                    f"list of values; got {changes!r}",
                )
            )
        found.append(Level(str(name), dict(changes or {}), (*at, name)))
    if not found:
        raise MismatchError((at, "an axis needs at least one level"))
    return found


def _words(values: Sequence[object]) -> list[str]:
    """Numbers in six digits, or in all of theirs where six would not distinguish them.

    >>> _words([0.1, 1e-05]), _words([0.12345671, 0.12345672])
    (['0.1', '1e-05'], ['0.12345671', '0.12345672'])
    """
    short = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    return short if len(set(short)) == len(short) else [str(value) for value in values]


def runs_of(
    study: StudySpec,
    place: Mapping[Path, str] | None = None,
    versions: Mapping[str, Plain] | None = None,
    *,
    imports: bool = False,
) -> list[RunSpec]:
    """Every run of the study, checked; one error names every mistake with its place in the file.

    `versions` (of the data, of the user's own code and of files of weights) become part of the key of every run that they are
    about. With `imports` the user's own networks and measures are imported, to check that they exist; without it, nothing that
    the spec names is run.
    """
    measuring = public_names(to_plain(study.measuring))
    weights = (versions or {}).get(WEIGHTS)
    shared = {name: version for name, version in (versions or {}).items() if name != WEIGHTS}
    common: dict[str, Plain] = {"measuring": measuring, "versions": public_names(shared)}
    problems = {with_location(path, text, place): None for path, text in _unmeasured(study, imports)}
    if study.checkpoints is not None:
        if problems:
            raise SpecError("\n".join(problems))
        return list(_checkpoint_runs(study, common, weights if isinstance(weights, dict) else {}))
    try:
        axes = {axis: levels(axis, written) for axis, written in study.axes.items()}
    except MismatchError as error:
        raise SpecError("\n".join(with_location(path, text, place) for path, text in error.problems)) from None
    number = math.prod(map(len, axes.values())) * study.seed_count
    if number > MOST_RUNS:
        at: Path = ("seeds",) if study.seed_count > MOST_RUNS or not axes else ("axes",)
        asks = " × ".join([*(f"{len(found)} of {axis}" for axis, found in axes.items()), f"{study.seed_count} seeds"])
        text = (
            f"{asks} are more than {MOST_RUNS:,} runs, the most a study may have. Take fewer, or make several studies"
        )
        raise SpecError(with_location(at, text, place))
    runs: list[RunSpec] = []
    seen: dict[str, str] = {}
    for chosen in itertools.product(*axes.values()):
        first: RunSpec | None = None
        for seed in study.seed_numbers:
            try:
                if first is None:
                    first = run = _training_run(study, dict(zip(axes, chosen, strict=True)), seed, common, imports)
                else:
                    run = _with_seed(first, seed)
                before = seen.setdefault(json.dumps(run.plain, sort_keys=True), run.condition)
                if before != run.condition:
                    raise MismatchError(
                        (("axes",), f"{before!r} and {run.condition!r} are the same training; remove one")
                    )
                runs.append(run)
            except MismatchError as error:
                for path, text in error.problems:
                    problems.setdefault(with_location(path, text, place), None)
    names = Counter(" · ".join(level.name for level in chosen) for chosen in itertools.product(*axes.values()))
    if twice := [name for name, count in names.items() if count > 1]:
        problems[with_location(("axes",), f"two conditions would both be called {twice[0]!r}; rename one", place)] = (
            None
        )
    asked = study.analysis.baseline
    if asked is not None and asked not in (names if axes else ["all"]) and not problems:
        text = str(UnknownNameError.among("condition to be the baseline", asked, names if axes else ["all"]))
        problems[with_location(("analysis", "baseline"), text, place)] = None
    if problems:
        raise SpecError("\n".join(problems))
    return runs


def _unmeasured(study: StudySpec, imports: bool) -> Iterator[tuple[Path, str]]:
    """Report columns of splits that the analysis names and no run will have, and the user's own measures that fail."""
    measured: dict[str, list[str] | None] = {}
    for split, wanted in study.measuring.splits.items():
        names: Collection[str] | None = None
        try:
            names = wanted.measures_by_name() if imports else wanted.names()
        except LandscopeError as error:
            yield ("measuring", "splits", split), str(error)
        measured[split] = None if names is None else [f"{split}.{name}" for name in names]
    analysis, usual = study.analysis, AnalysisSpec()
    named: dict[Path, str] = {
        ("analysis", kind, number): column
        for kind, columns in (("outcomes", analysis.outcomes), ("measures", analysis.measures))
        if columns is not None and columns != getattr(usual, kind)
        for number, column in enumerate(columns)
    }
    if analysis.given is not None and analysis.given != usual.given:
        named["analysis", "given"] = analysis.given
    for path, column in named.items():
        split = column.partition(".")[0]
        if split in SPLITS and split not in measured:
            yield path, f"{column!r} is of a split that is not measured; measuring.splits has {', '.join(measured)}"
        elif split in SPLITS and (known := measured[split]) is not None and column not in known:
            yield path, str(UnknownNameError.among(f"column of the split {split}", column, known))


def _training_run(
    study: StudySpec, chosen: Mapping[str, Level], seed: int, common: Mapping[str, Plain], imports: bool
) -> RunSpec:
    written: Mapping[str, object] = study.training or {}
    changed: dict[str, Level] = {}
    for level in chosen.values():
        for key in level.changes:
            if key.startswith("training."):
                own = key.removeprefix("training.")
                raise MismatchError((level.path, f"{key}: axes change the training; write its own key, {own}"))
            if key in changed and changed[key] is not level:
                raise MismatchError((level.path, f"{key} is changed by two axes"))
            changed[key] = level
    for key in sorted(changed, key=lambda key: key.count(".")):  # a mapping before what is set inside it
        try:
            written = with_value(written, key, changed[key].changes[key])
        except SpecError as error:
            raise MismatchError((changed[key].path, str(error))) from None
    if "seed" in written:
        raise MismatchError((("training", "seed"), "seeds of a study belong under `seeds`"))
    try:
        training = check_value({**written, "seed": seed}, TrainingSpec, ("training",))
    except MismatchError as error:
        raise MismatchError(*(_blame(path, text, changed) for path, text in error.problems)) from None
    except LandscopeError as error:
        raise MismatchError((("training",), str(error))) from None
    assert isinstance(training, TrainingSpec)
    try:
        _check_model(training.model, imports)
    except LandscopeError as error:
        raise MismatchError(_blame(("training", "model"), str(error), changed)) from None
    _check_checkpoints(study, training)
    return RunSpec(
        condition=" · ".join(level.name for level in chosen.values()) or "all",
        axes={axis: level.name if level.value is None else level.value for axis, level in chosen.items()},
        seed=seed,
        plain={"training": public_names(to_plain(training)), **common, "figures": seed == study.seed_numbers[0]},
        training=training,
    )


def _with_seed(run: RunSpec, seed: int) -> RunSpec:
    """The same condition with another seed, without a second check of what all seeds share."""
    assert run.training is not None, "checkpoints have no seeds"
    training = {**cast(dict[str, Plain], run.plain["training"]), "seed": seed}
    plain = {**run.plain, "training": training, "figures": False}
    return replace(run, seed=seed, plain=plain, training=replace(run.training, seed=seed))


def _check_model(model: ModelSpec, imports: bool) -> None:
    """Check that the network exists and has the given options; the user's own is looked up with `imports` only."""
    if not is_import(model.name):
        check_options(model.name, MODELS[model.name].options, model.options)  # type: ignore[arg-type]
    elif imports:
        import_function(model.name)


def _blame(path: Path, text: str, changed: Mapping[str, Level]) -> tuple[Path, str]:
    """A mistake that an axis made is reported where the axis stands."""
    dotted = ".".join(str(key) for key in path[1:])
    for key, level in changed.items():
        if dotted == key or dotted.startswith(f"{key}.") or (dotted and key.startswith(f"{dotted}.")):
            return level.path, f"{key}: {text}"
    return path, text


def _check_checkpoints(study: StudySpec, training: TrainingSpec) -> None:
    at: Path = ("measuring", "checkpoints")
    for checkpoint in study.measuring.checkpoints:
        if checkpoint == "best" and training.early_stopping is None:
            raise MismatchError((at, '"best" needs early_stopping in the training'))
        if checkpoint == "average" and training.averaging is None:
            raise MismatchError((at, '"average" needs averaging in the training'))
        if checkpoint.startswith("step ") and int(checkpoint[5:]) not in training.snapshots:
            raise MismatchError((at, f'"{checkpoint}" needs snapshots: [{checkpoint[5:]}] in the training'))
        if checkpoint.startswith("loss ") and float(checkpoint[5:]) not in training.snapshots_below:
            raise MismatchError((at, f'"{checkpoint}" needs snapshots_below: [{checkpoint[5:]}] in the training'))


def _checkpoint_runs(study: StudySpec, common: Mapping[str, Plain], weights: Mapping[str, Plain]) -> Iterator[RunSpec]:
    taken = study.checkpoints
    assert taken is not None
    names = [FilePath(file).stem for file in taken.files]
    for file, name in zip(taken.files, names, strict=True):
        label = name if names.count(name) == 1 else file
        plain = {"checkpoint": public_names(to_plain(replace(taken, files=(file,)))), **common, "figures": True}
        if file in weights:
            plain["versions"] = {**cast(dict[str, Plain], common["versions"]), WEIGHTS: weights[file]}
        yield RunSpec(condition=label, axes={"model": label}, seed=0, plain=plain)


# Some of the runs of a study: by seed, by condition, by the level of an axis.


def select_runs(runs: Mapping[str, RunSpec], only: Sequence[str]) -> set[str]:
    """Keys of the runs that have, of every name in `only` ("seed=2", "AXIS=LEVEL", "condition=NAME"), one of its values.

    >>> def run(rate, seed):
    ...     return RunSpec(condition=f"rate {rate}", axes={"rate": rate}, seed=seed, plain={})
    >>> runs = {"a": run(0.1, 0), "b": run(0.1, 1), "c": run(0.2, 0), "d": run(0.2, 1)}
    >>> sorted(select_runs(runs, ["rate=1e-1"])), sorted(select_runs(runs, ["seed=1", "rate=0.1", "rate=0.2"]))
    (['a', 'b'], ['b', 'd'])
    """
    levels = {key: _levels(run) for key, run in runs.items()}
    known: dict[str, dict[object, str]] = {}
    for own in levels.values():
        for name, level in own.items():
            known.setdefault(name, {}).setdefault(_value(level), level)
    wanted: dict[str, set[str]] = {}
    for text in only:
        name, level = _divided(text, known)
        if name not in known:
            raise UnknownNameError.among("axis", name, known)
        if _value(level) not in known[name]:
            choices = ", ".join(f'"{each}"' for each in known[name].values())
            raise UnknownNameError(f"no run has {name}={level}. Choices: {choices}")
        wanted.setdefault(name, set()).add(known[name][_value(level)])
    return {key for key, own in levels.items() if all(own.get(name) in some for name, some in wanted.items())}


def _levels(run: RunSpec) -> dict[str, str]:
    return {"condition": run.condition, **{name: str(level) for name, level in run.axes.items()}, "seed": str(run.seed)}


def _divided(text: str, known: Mapping[str, object]) -> tuple[str, str]:
    """Name and value; a name may have "=" in it, too."""
    name = max((name for name in known if text.startswith(f"{name}=")), key=len, default=text.partition("=")[0])
    if "=" not in text:
        raise SpecError(f"expected NAME=VALUE, such as seed=0, got {text!r}")
    return name, text[len(name) + 1 :]


def _value(level: str) -> object:
    """A level's value, however it is written: 0.001 and 1e-3, True and true.

    >>> _value("1e-3") == _value("0.001"), _value("True") == _value("true"), _value("sam")
    (True, True, 'sam')
    """
    try:
        return float(level)
    except ValueError:
        return level.lower() if level.lower() in ("true", "false") else level
