"""What a run leaves behind: its spec, the models it made and every number measured on each of them; or why it failed.

Record              one run: spec, axes, seed, history, environment, cost
└── Subject         one set of weights of that run at one temperature: "final", "best", "average", "step 100"
    ├── reports     split → Report: every Estimate with its error bars, status and cost
    └── extras      plain data for figures: reliability tables, a landscape, layers, invariances
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from landscope.core.errors import SpecError
from landscope.core.plain_objects import LIST, NUMBER, OBJECT, TEXT, WHOLE, checked
from landscope.core.schema import Plain
from landscope.measures import Report

__all__ = ["FORMAT", "Failure", "Record", "Subject"]

FORMAT = 1
"""Of record.json; a reader refuses one that it does not know."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One model that was measured."""

    checkpoint: str
    temperature: float = 1.0
    reports: Mapping[str, Report] = field(default_factory=dict)
    extras: Mapping[str, Plain] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Plain]:
        """Plain values only."""
        return {
            "checkpoint": self.checkpoint,
            "temperature": self.temperature,
            "reports": {split: report.to_dict() for split, report in self.reports.items()},
            "extras": dict(self.extras),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> Subject:
        """The inverse of `to_dict`."""
        found = checked(plain, "a measured model", _SUBJECT)
        return cls(
            checkpoint=found["checkpoint"],
            temperature=float(found["temperature"]),
            reports={split: Report.from_dict(report) for split, report in found["reports"].items()},
            extras=found["extras"],
        )


@dataclass(frozen=True)
class Failure:
    """A run that left no record: which it was, and why. Weights that become NaN are a finding, too."""

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
    subjects: tuple[Subject, ...]
    history: tuple[Mapping[str, Plain], ...] = ()
    """One row per epoch."""
    environment: Mapping[str, Plain] = field(default_factory=dict)
    """Versions, hardware, git commit."""
    seconds: float = 0.0
    peak_memory: int = 0
    """Bytes."""

    def to_dict(self) -> dict[str, Plain]:
        """Plain values only."""
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
        """The inverse of `to_dict`."""
        found = checked(plain, "a record", {"format": WHOLE})
        if found["format"] != FORMAT:
            raise SpecError(f"expected a record of format {FORMAT}, got {found['format']!r}")
        checked(plain, "a record", _RECORD, _OPTIONAL)
        if more := sorted(map(str, found.keys() - _RECORD.keys() - {"format"})):
            raise SpecError(f"expected a record with the keys {', '.join(_RECORD)}; got {', '.join(more)} as well")
        values = {key: value for key, value in found.items() if key not in ("format", "subjects", "history")}
        subjects = tuple(map(Subject.from_dict, found["subjects"]))
        history = tuple(checked(row, "a row of the history", {}) for row in found["history"])
        return cls(**values, subjects=subjects, history=history)


_SUBJECT = {"checkpoint": TEXT, "temperature": NUMBER, "reports": OBJECT, "extras": OBJECT}
_RECORD = {
    "run": TEXT, "condition": TEXT, "axes": OBJECT, "seed": WHOLE, "spec": OBJECT, "subjects": LIST, "history": LIST,
    "environment": OBJECT, "seconds": NUMBER, "peak_memory": WHOLE,
}  # fmt: skip
_OPTIONAL = ("environment", "seconds", "peak_memory")
