"""Records of a paper's parts in small files: written, found in a folder, and taken up again.

A bundle holds a study, the records it left and the runs of it that failed: tables, figures and reports are made from it again.
Values and error bars are kept as they are; everything beside them (histories, curves, details, costs) in fewer rows and digits.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from landscope.core.errors import DamagedFileError, LandscopeError, SpecError, UnknownNameError
from landscope.core.estimate import Estimate
from landscope.core.files import write_whole
from landscope.core.json import LIST, OBJECT, TEXT, WHOLE, Plain, checked, parse_json, read_unzipped
from landscope.measures import Report
from landscope.papers.framework.paper import PAPERS, SIZES, Size
from landscope.specs.schema import parse, to_plain
from landscope.studies.grid import runs_of
from landscope.studies.record import Failure, MeasuredModel, Record
from landscope.studies.spec import StudySpec
from landscope.studies.store import RunState
from landscope.studies.store.identity import run_key
from landscope.studies.study import Study

__all__ = [
    "LAYOUT",
    "Bundle",
    "Kept",
    "Taken",
    "kept_parts",
    "kept_records",
    "load_bundle",
    "save_bundle",
    "study_as_kept",
    "take_over",
]

PlainSpec: TypeAlias = "Mapping[str, Plain]"
FEW, LONG, LONGEST = 16, 64, 512
"""Rows of histories and entries of lists: FEW of models that no figure shows, LONG rows and LONGEST entries of others."""
DIGITS = 7
"""Of all numbers but values and error bars."""
LARGEST = 2**29
"""Bytes of a bundle when unzipped: some ten thousand runs."""


@dataclass(frozen=True)
class Bundle:
    """A study, the records it left, and the runs of it that failed."""

    recipe: str
    part: str
    size: str
    spec: StudySpec
    records: tuple[Record, ...]
    failed: tuple[Failure, ...] = ()


def save_bundle(bundle: Bundle, path: Path) -> Path:
    """Write a bundle: gzipped JSON, the same bytes for the same records."""
    plain = {
        "recipe": bundle.recipe,
        "part": bundle.part,
        "size": bundle.size,
        "spec": to_plain(bundle.spec),
        "records": [_trimmed(record).to_dict() for record in bundle.records],
        **({"failed": [asdict(failure) for failure in bundle.failed]} if bundle.failed else {}),
    }
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # The message of a failed run may name a file whose name is not text.
    write_whole(path, gzip.compress(text.encode(errors="replace"), compresslevel=9, mtime=0), flush=False)
    return path


def load_bundle(path: Path) -> Bundle:
    """Read what `save_bundle` wrote."""
    try:
        plain = checked(parse_json(read_unzipped(path, LARGEST)), "a bundle", _BUNDLE, ("failed",))
        paper = PAPERS.get(plain["recipe"])  # whoever wants its parts refuses others
        records = tuple(map(Record.from_dict, plain["records"]))
        spec = plain["spec"]
        if paper is not None:
            spec = paper.with_measures(spec)
            records = tuple(replace(one, spec=cast(PlainSpec, paper.with_measures(one.spec))) for one in records)
        failed = tuple(Failure(**checked(failure, "a failed run", _FAILURE)) for failure in plain.get("failed", ()))
        return Bundle(
            plain["recipe"],
            plain["part"],
            plain["size"],
            parse(StudySpec, spec),
            records,
            failed,
        )
    except DamagedFileError:
        raise
    except (OSError, ValueError, TypeError, LandscopeError) as error:
        raise DamagedFileError(
            f"{path} is not a bundle of records: {error}. Move the file away, or take the version that wrote it"
        ) from error


_BUNDLE = {"recipe": TEXT, "part": TEXT, "size": TEXT, "spec": OBJECT, "records": LIST, "failed": LIST}
_FAILURE = {"condition": TEXT, "seed": WHOLE, "reason": TEXT}


def _trimmed(record: Record) -> Record:
    """Without the long lists (spectra, curves) of models that no figure shows: those of the first seed are kept.

    Of a long history every k-th row is kept, and the last; fewer of models that no figure shows.
    """
    rows, entries = (LONG, LONGEST) if record.spec.get("figures") else (FEW, FEW)
    subjects = tuple(_short(subject, entries) for subject in record.subjects)
    history = tuple({key: _rounded(value) for key, value in row.items()} for row in _thinned(record.history, rows))
    return replace(record, history=history, subjects=subjects)


def _thinned(rows: tuple[Mapping[str, Plain], ...], most: int) -> tuple[Mapping[str, Plain], ...]:
    every = -(-len(rows) // (most - 1)) or 1
    return rows if len(rows) <= most else (*rows[every - 1 : -1 : every], rows[-1])


def _short(subject: MeasuredModel, most: int) -> MeasuredModel:
    reports = {
        split: Report({name: _shortened(e, most) for name, e in report.items()}, report.about)
        for split, report in subject.reports.items()
    }
    return replace(subject, reports=reports, extras={key: _shorter(value) for key, value in subject.extras.items()})


def _shortened(estimate: Estimate, most: int) -> Estimate:
    kept = {key: _shorter(value) for key, value in estimate.details.items() if not _is_long(value, most)}
    return replace(estimate, details=kept, cost=replace(estimate.cost, **_shorter(asdict(estimate.cost))))


def _shorter(value: Plain) -> Any:
    """Numbers with fewer digits, wherever they are.

    >>> _shorter({"mean": 1 / 3, "each": [2 / 3, 7]})
    {'mean': 0.3333333, 'each': [0.6666667, 7]}
    """
    if isinstance(value, Mapping):
        return {key: _shorter(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shorter(item) for item in value]
    return _rounded(value)


def _rounded(value: Plain) -> Plain:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _is_long(value: object, most: int) -> bool:
    if isinstance(value, Mapping):
        return any(_is_long(item, most) for item in value.values())
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return len(value) > most or any(_is_long(item, most) for item in cast(Sequence[Plain], value))


# Which files of a folder hold the records of which part. Records are kept as PAPER/PART.json.gz, left by `landscope paper run`
# as papers/NAME-SIZE/PART.json.gz: both are found, from the folder above or from the one that the files lie in. Where two sizes
# of a part are kept side by side, the smaller one is PART-SIZE.json.gz. Whose records they are is read from the file itself.

ENDING = ".json.gz"
LAYOUT = f"PAPER/PART{ENDING}"
"""How records are kept, in words for messages."""


@dataclass(frozen=True)
class Kept:
    """Records, and the file that they are in."""

    path: Path
    bundle: Bundle

    @property
    def report(self) -> Path:
        """Where the report of these records goes."""
        return self.path.with_name(f"{self.path.name.removesuffix(ENDING)}.html")


def kept_parts(folder: Path) -> dict[str, dict[str, Kept]]:
    """Recipe → name → records, from a folder that has some; none twice.

    The name is that of the part; where a part is there in several sizes, of the largest, and the others are PART-SIZE.
    """
    sizes: dict[tuple[str, str], dict[str, Kept]] = defaultdict(dict)
    for kept in _loaded(folder, "*"):
        _check(kept)
        bundle = kept.bundle
        same = sizes[bundle.recipe, bundle.part]
        if bundle.size in same:
            raise SpecError(_twice([same[bundle.size], kept], "name the folder of one of them, or move the other away"))
        same[bundle.size] = kept
    found: dict[str, dict[str, Kept]] = defaultdict(dict)
    for (recipe, part), same in sizes.items():
        first, *others = sorted(same, key=SIZES.index, reverse=True)
        found[recipe] |= {part: same[first], **{f"{part}-{size}": same[size] for size in others}}
    if not found:
        raise SpecError(
            f"{folder} has no records; they were expected there as {LAYOUT}, as `landscope paper run` leaves them"
        )
    return dict(found)


def kept_records(folder: Path, recipe: str, parts: Iterable[str], size: Size) -> dict[str, Kept]:
    """The records of some parts of a recipe, of those that the folder has; where there are two, those of `size`."""
    found: dict[str, Kept] = {}
    wanted = list(parts)
    for part in wanted:
        loaded = [*_loaded(folder, part), *_loaded(folder, f"{part}-{size}")]
        some = [kept for kept in loaded if (kept.bundle.recipe, kept.bundle.part) == (recipe, part)]
        same = [kept for kept in some if kept.bundle.size == size] or some
        if len(same) > 1:
            raise SpecError(_twice(same, "name the folder of one of them"))
        if same:
            found[part] = same[0]
    if not found:
        raise SpecError(
            f"{folder} has no records of {recipe}, {' or '.join(wanted)}; they were expected there as {LAYOUT}. Name another "
            "folder, or start without kept records"
        )
    return found


def _loaded(folder: Path, part: str) -> list[Kept]:
    paths = sorted([*folder.glob(f"{part}{ENDING}"), *folder.glob(f"*/{part}{ENDING}")])
    return [Kept(path, load_bundle(path)) for path in paths]


def _check(kept: Kept) -> None:
    """Refuse records of a recipe, a size or a part that there is not."""
    bundle = kept.bundle
    try:
        paper = PAPERS[bundle.recipe]
        if bundle.size not in SIZES:
            raise UnknownNameError.among("size", bundle.size, SIZES)
        parts = paper.parts(bundle.size)
        if bundle.part not in parts:
            raise UnknownNameError.among(f"part of {paper.name} at size {bundle.size}", bundle.part, parts)
    except UnknownNameError as error:
        raise UnknownNameError(f"{kept.path}: {error}. Move the file away, or take the version that wrote it") from None


def _twice(both: list[Kept], remedy: str) -> str:
    first, second = (f"{kept.path} (size {kept.bundle.size})" for kept in both[:2])
    return f"{first} and {second} are records of the same part, {both[0].bundle.recipe} {both[0].bundle.part}; {remedy}"


# Resume from kept records: runs of a study that stand in a bundle need not be made again. A run is recognised by its key
# (`studies.store.identity`), whatever version of Landscope made it. A run that failed where they were made has failed here:
# like any other it is tried again when that is asked for.


class Taken(NamedTuple):
    """How many runs of a study are now as they are in a bundle, and were not before."""

    done: int
    failed: int


def study_as_kept(spec: StudySpec, root: Path, kept: Bundle) -> Study:
    """The study of a part on the version of the data that kept records are of: the data need not be here."""
    return Study(spec, root, versions=_versions(kept))


def take_over(study: Study, kept: Bundle) -> Taken:
    """Write what a bundle has of the runs of the study into its store.

    Where models of one condition are compared with each other by their outputs, which records do not hold, only whole conditions.
    """
    records = {run_key(record.spec): record for record in kept.records}
    found = {key: record for key, run in study.runs.items() if (record := records.get(run_key(run.plain)))}
    reasons = _failed(study, kept)
    if study.spec.measuring.consistency:
        partial = {run.condition for key, run in study.runs.items() if key not in found and key not in reasons}
        found = {key: record for key, record in found.items() if study.runs[key].condition not in partial}
    done = failed = 0
    for key, record in found.items():
        folder = study.store.add(study.runs[key].plain)
        if not folder.done():
            with folder.claim():
                folder.finish(replace(record, run=key, spec=study.runs[key].plain).to_dict())
            done += 1
    for key, reason in reasons.items():
        folder = study.store.add(study.runs[key].plain)
        if study.store.status(key).state is RunState.WAITING:
            with folder.claim():
                folder.fail(reason)
            failed += 1
    return Taken(done, failed)


def _failed(study: Study, kept: Bundle) -> dict[str, str]:
    """The runs of the study that failed where the records were made, and why."""
    reasons = {(failure.condition, failure.seed): failure.reason for failure in kept.failed}
    if not reasons:
        return {}
    runs = runs_of(kept.spec, versions=_versions(kept))  # a failure has no spec of its own
    theirs = {run_key(run.plain): reasons.get((run.condition, run.seed)) for run in runs}
    return {key: reason for key, run in study.runs.items() if (reason := theirs.get(run_key(run.plain)))}


def _versions(kept: Bundle) -> Mapping[str, Plain]:
    """Of the data and of the user's own code that kept records are of."""
    versions = next((record.spec.get("versions") for record in kept.records), None)
    found = versions if isinstance(versions, Mapping) else {}
    return {name: version for name, version in found.items() if name != "landscope"}
