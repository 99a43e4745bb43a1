"""Records of a recipe's part in one small file, from which its tables, figures and report are made again.

Values and error bars are kept as they are; what only figures draw (histories, curves, spectra) in fewer rows and digits.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from landscope.core.errors import DamagedFileError, LandscopeError
from landscope.core.estimate import Estimate
from landscope.core.files import write_whole
from landscope.core.json import LIST, OBJECT, TEXT, WHOLE, Plain, checked, parse_json, read_unzipped
from landscope.measures import Report
from landscope.specs.schema import parse, to_plain
from landscope.studies.record import Failure, MeasuredModel, Record
from landscope.studies.spec import StudySpec

__all__ = ["Bundle", "load_bundle", "save_bundle"]

LONG, LONGEST = 64, 512
"""Entries of a list in an estimate's details that are kept; of models that figures show, as many as the second."""
FEW = 16
"""Rows of the history of a model that no figure shows."""
DIGITS = 7
"""Of the numbers of histories and lists."""
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
        records = tuple(map(Record.from_dict, plain["records"]))
        failed = tuple(Failure(**checked(failure, "a failed run", _FAILURE)) for failure in plain.get("failed", ()))
        return Bundle(plain["recipe"], plain["part"], plain["size"], parse(StudySpec, plain["spec"]), records, failed)
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
    rows, entries = (LONG, LONGEST) if record.spec.get("figures") else (FEW, LONG)
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
    return replace(
        subject, reports=reports, extras={key: _lists_rounded(value) for key, value in subject.extras.items()}
    )


def _shortened(estimate: Estimate, most: int) -> Estimate:
    kept = {key: _lists_rounded(value) for key, value in estimate.details.items() if not _is_long(value, most)}
    return replace(estimate, details=kept)


def _lists_rounded(value: Plain) -> Plain:
    """Numbers in lists with fewer digits; those that stand alone as they are."""
    if isinstance(value, Mapping):
        return {key: _lists_rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(_lists_rounded(item)) for item in value]
    return value


def _rounded(value: Plain) -> Plain:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _is_long(value: object, most: int) -> bool:
    if isinstance(value, Mapping):
        return any(_is_long(item, most) for item in value.values())
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return len(value) > most or any(_is_long(item, most) for item in cast(Sequence[Plain], value))
