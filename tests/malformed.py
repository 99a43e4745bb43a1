"""A record, a study's spec and a bundle made by hand, and texts of JSON that no landscope has written."""

from __future__ import annotations

from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.studies.record import MeasuredModel, Record

REPORT = Report({"loss": Estimate(0.5, stderr=0.1), "igs": Estimate.not_applicable("a regression loss")}, {"n": 3})
SPEC: dict[str, object] = {
    "name": "circles",
    "training": {"data": "circles", "model": {"name": "mlp", "widths": [4]}, "epochs": 1, "batch_size": 20},
    "measuring": {"splits": {"train": ["loss"]}},
}


def record(run: str = "3f2a90c1d4e5b678") -> Record:
    return Record(
        run=run,
        condition="none",
        axes={"regulariser": "none"},
        seed=0,
        spec={"seed": 0},
        subjects=(MeasuredModel(checkpoint="final", reports={"train": REPORT}, extras={"layers": [1.0, 2.0]}),),
        history=({"epoch": 1, "step": 3, "train_loss": 0.5},),
        environment={"torch": "2"},
        seconds=1.5,
        peak_memory=1000,
    )


TEXTS: dict[str, bytes] = {
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "a string": b'"record"',
    "a list": b"[1, 2]",
    "a number": b"3",
    "null": b"null",
    "NaN": b"NaN",
    "half a character": rb'{"a": "\ud800"}',
    "a key twice": b'{"a": 1, "a": 2}',
    "empty": b"",
    "cut": b'{"a": [1, 2',
    "not UTF-8": b'{"a": "\xff"}',
}
"""What may stand where an object was expected."""

PLACES: tuple[tuple[str | int, ...], ...] = (
    (),
    ("format",),
    ("run",),
    ("axes",),
    ("seed",),
    ("spec",),
    ("subjects",),
    ("subjects", 0),
    ("subjects", 0, "temperature"),
    ("subjects", 0, "reports"),
    ("subjects", 0, "reports", "train"),
    ("subjects", 0, "reports", "train", "estimates"),
    ("subjects", 0, "reports", "train", "estimates", "loss"),
    ("subjects", 0, "reports", "train", "estimates", "loss", "value"),
    ("subjects", 0, "reports", "train", "estimates", "loss", "status"),
    ("subjects", 0, "reports", "train", "estimates", "loss", "cost"),
    ("subjects", 0, "extras"),
    ("history",),
    ("history", 0),
    ("environment",),
    ("seconds",),
    ("peak_memory",),
)
"""Where something else may stand in a record."""
WRONG = ([5], "x", True, 10**400)


def with_other(plain: object, place: tuple[str | int, ...], value: object) -> object:
    """A copy of plain values with another value at one place."""
    if not place:
        return value
    key, *rest = place
    if isinstance(plain, dict):
        return {**plain, key: with_other(plain[key], tuple(rest), value)}
    assert isinstance(plain, list | tuple)
    return [with_other(item, tuple(rest), value) if at == key else item for at, item in enumerate(plain)]
