"""What a run leaves behind: its spec, the models it made and every number measured on each of them, or why it failed.

Record              one run: spec, axes, seed, history, environment, cost
└── MeasuredModel         one set of weights of that run at one temperature: "final", "best", "average", "step 100"
    ├── reports     split → Report: every Estimate with its error bars, status and cost
    └── extras      plain data for figures: reliability tables, a landscape, layers, invariances
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from landscope.core.errors import DamagedFileError, SpecError
from landscope.core.estimate import Estimate
from landscope.core.files import check_regular
from landscope.core.json import LIST, NUMBER, OBJECT, TEXT, WHOLE, Plain, checked
from landscope.measures import Report
from landscope.measures.consistency import disagreement
from landscope.studies.store import Store

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
"""Of record.json; a reader refuses one that it does not know."""


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """One model that was measured."""

    checkpoint: str
    temperature: float = 1.0
    reports: Mapping[str, Report] = field(default_factory=dict)
    extras: Mapping[str, Plain] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Plain]:
        return {
            "checkpoint": self.checkpoint,
            "temperature": self.temperature,
            "reports": {split: report.to_dict() for split, report in self.reports.items()},
            "extras": dict(self.extras),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> MeasuredModel:
        found = checked(plain, "a measured model", _SUBJECT)
        return cls(
            checkpoint=found["checkpoint"],
            temperature=float(found["temperature"]),
            reports={split: Report.from_dict(report) for split, report in found["reports"].items()},
            extras=found["extras"],
        )


@dataclass(frozen=True)
class Failure:
    """A run that left no record: which one, and why. Weights that become NaN are a finding, too."""

    condition: str
    seed: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished run."""

    run: str
    """The key of its directory: the hash of its canonical spec."""
    condition: str
    """A name that people read: "weight decay", "sam · batch 256"."""
    axes: Mapping[str, Plain]
    """Axis → level, for every axis of the study."""
    seed: int
    spec: Mapping[str, Plain]
    subjects: tuple[MeasuredModel, ...]
    history: tuple[Mapping[str, Plain], ...] = ()
    """One row per epoch."""
    environment: Mapping[str, Plain] = field(default_factory=dict)
    """Versions, hardware, git commit, and the package's own files as git names their tree."""
    seconds: float = 0.0
    peak_memory: int = 0
    """Bytes."""

    def to_dict(self) -> dict[str, Plain]:
        return {
            "format": FORMAT,
            "run": self.run,
            "condition": self.condition,
            "axes": dict(self.axes),
            "seed": self.seed,
            "spec": dict(self.spec),
            "subjects": [subject.to_dict() for subject in self.subjects],
            "history": [dict(row) for row in self.history],
            "environment": dict(self.environment),
            "seconds": self.seconds,
            "peak_memory": self.peak_memory,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> Record:
        found = checked(plain, "a record", {"format": WHOLE})
        if found["format"] != FORMAT:
            raise SpecError(f"expected a record of format {FORMAT}, got {found['format']!r}")
        checked(plain, "a record", _RECORD, _OPTIONAL)
        if more := sorted(map(str, found.keys() - _RECORD.keys() - {"format"})):
            raise SpecError(f"expected a record with the keys {', '.join(_RECORD)}; got {', '.join(more)} as well")
        values = {key: value for key, value in found.items() if key not in ("format", "subjects", "history")}
        subjects = tuple(map(MeasuredModel.from_dict, found["subjects"]))
        history = tuple(checked(row, "a row of the history", {}) for row in found["history"])
        return cls(**values, subjects=subjects, history=history)


_SUBJECT = {"checkpoint": TEXT, "temperature": NUMBER, "reports": OBJECT, "extras": OBJECT}
_RECORD = {
    "run": TEXT, "condition": TEXT, "axes": OBJECT, "seed": WHOLE, "spec": OBJECT, "subjects": LIST, "history": LIST,
    "environment": OBJECT, "seconds": NUMBER, "peak_memory": WHOLE,
}  # fmt: skip
_OPTIONAL = ("environment", "seconds", "peak_memory")


# Records as tables: one row per estimate (long), or one row per measured model (wide).


def _identity(record: Record, subject: MeasuredModel) -> dict[str, Plain]:
    return {
        "run": record.run,
        "condition": record.condition,
        "seed": record.seed,
        "checkpoint": subject.checkpoint,
        "temperature": subject.temperature,
        **{f"axis.{axis}": level for axis, level in record.axes.items()},
    }


def _subjects(records: Iterable[Record]) -> Iterator[tuple[Mapping[str, Plain], MeasuredModel]]:
    for record in records:
        for subject in record.subjects:
            yield _identity(record, subject), subject


def long_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row per estimate: who (run, condition, seed, checkpoint, temperature, axes), split, measure, value, errors, status."""
    import pandas as pd

    rows = [
        {**identity, "split": split, "measure": name, **estimate.as_row()}
        for identity, subject in _subjects(records)
        for split, report in subject.reports.items()
        for name, estimate in report.items()
    ]
    return pd.DataFrame(rows)


def wide_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row per measured model: a column `split.measure` for each value, and gaps between the test and training splits."""
    import pandas as pd

    rows: list[dict[str, object]] = []
    for identity, subject in _subjects(records):
        row: dict[str, object] = dict(identity)
        for split, report in subject.reports.items():
            row |= {f"{split}.{name}": e.value if e.status.has_value else math.nan for name, e in report.items()}
        for name in ("loss", "error"):
            if f"test.{name}" in row and f"train.{name}" in row:
                row[f"gap.{name}"] = float(row[f"test.{name}"]) - float(row[f"train.{name}"])  # type: ignore[arg-type]
        rows.append(row)
    return pd.DataFrame(rows)


# How far the models of one condition agree: each model's mean disagreement with the others of its condition.


OUTPUTS = "outputs"


def outputs_file(checkpoint: str) -> str:
    """Where a run keeps the test outputs of one of its models.

    >>> outputs_file("step 100")
    'outputs/step-100.safetensors'
    """
    return f"{OUTPUTS}/{checkpoint.replace(' ', '-')}.safetensors"


def with_consistency(records: Sequence[Record], store: Store) -> list[Record]:
    """The records, each model with its mean disagreement with the others of its condition and checkpoint.

    Nothing is added where a condition has one model, or outputs were not kept. Temperature changes no prediction.
    """
    found: dict[tuple[str, str], Estimate] = {}
    kinds = {(record.condition, subject.checkpoint) for record in records for subject in record.subjects}
    for condition, checkpoint in sorted(kinds):
        runs = [record.run for record in records if record.condition == condition]
        outputs = {run: logits for run in runs if (logits := _outputs(store, run, checkpoint)) is not None}
        if len(outputs) < 2 or len({logits.shape for logits in outputs.values()}) > 1:
            continue
        matrix = disagreement(list(outputs.values())).matrix
        others = len(outputs) - 1
        for at, run in enumerate(outputs):
            with_others = np.delete(matrix[at], at)
            spread = float(with_others.std(ddof=1)) / others**0.5 if others > 1 else 0.0
            found[run, checkpoint] = Estimate(float(with_others.mean()), spread, details={"models": others + 1})
    return [_added(record, found) for record in records]


def _added(record: Record, found: dict[tuple[str, str], Estimate]) -> Record:
    subjects = tuple(
        replace(subject, reports={**subject.reports, "consistency": Report({"disagreement": estimate})})
        if (estimate := found.get((record.run, subject.checkpoint))) is not None
        else subject
        for subject in record.subjects
    )
    return replace(record, subjects=subjects)


def _outputs(store: Store, run: str, checkpoint: str) -> Tensor | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = store.run(run).path(outputs_file(checkpoint))
    if not os.path.lexists(path):
        return None
    try:
        check_regular(path)
        logits = load_file(path)["test"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{path} is damaged: {error}. Move the run's folder away and run the study again"
        ) from error
    return logits if logits.dim() == 2 and logits.shape[1] > 1 else None
