"""The tables of `docs/specs.md`: every key of the files that Landscope reads, made from the dataclasses that read them."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from landscope.data import Augmentation
from landscope.specs.schema import Range
from landscope.studies.executors.local import LocalExecutor
from landscope.studies.executors.ray_cluster import RayExecutor
from landscope.studies.executors.slurm import SlurmExecutor
from landscope.studies.spec import (
    AnalysisSpec,
    CheckpointsSpec,
    CorruptionsSpec,
    LandscapeSpec,
    MeasuringSpec,
    SplitSpec,
    StudySpec,
    Taking,
)
from landscope.training.spec import (
    AveragingSpec,
    ConvergenceSpec,
    DataSpec,
    EarlyStoppingSpec,
    FAMSpec,
    ModelSpec,
    OptimizerSpec,
    SAMSpec,
    ScheduleSpec,
    TrainingSpec,
)

SECTIONS: Mapping[str, Mapping[str, type]] = {
    "A training": {
        "training": TrainingSpec,
        "data": DataSpec,
        "model": ModelSpec,
        "optimizer": OptimizerSpec,
        "schedule": ScheduleSpec,
        "sam": SAMSpec,
        "fam": FAMSpec,
        "averaging": AveragingSpec,
        "augmentation": Augmentation,
        "early_stopping": EarlyStoppingSpec,
        "convergence": ConvergenceSpec,
    },
    "A study": {
        "study": StudySpec,
        "measuring": MeasuringSpec,
        "splits": SplitSpec,
        "measures": Taking,
        "landscape": LandscapeSpec,
        "corruptions": CorruptionsSpec,
        "analysis": AnalysisSpec,
        "checkpoints": CheckpointsSpec,
    },
    "Executors": {
        "-e of --executor local": LocalExecutor,
        "-e of --executor ray": RayExecutor,
        "-e of --executor slurm": SlurmExecutor,
    },
}
NAMES: Mapping[object, str] = {kind: name for section in SECTIONS.values() for name, kind in section.items()}
NOT_KEYS = ("store", "work", "retry_failed")
"""Fields of executors that are no options of theirs."""
PLAIN: Mapping[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    object: "anything",
}


def spec_tables() -> str:
    """A section for each kind of file, a table for each mapping in it."""
    return "\n\n".join(
        f"## {title}\n\n" + "\n\n".join(_table(name, kind) for name, kind in kinds.items())
        for title, kinds in SECTIONS.items()
    )


def _table(name: str, kind: type) -> str:
    types_of, told = get_type_hints(kind, include_extras=True), _told(kind)
    short, rest = getattr(kind, "SHORTHAND", None), getattr(kind, "REST", None)
    rows = [
        f"| `{f.name}` | {_words(types_of[f.name])} | {_default(f)} | {told.get(f.name, '')} |"
        for f in fields(kind)
        if f.name not in (*NOT_KEYS, rest)
    ]
    notes = f"A bare value stands for `{short}`." if short else ""
    notes += f" All other keys are {rest}." if rest else ""
    table = "\n".join(["| key | value | default | |", "|---|---|---|---|", *rows])
    return "\n\n".join(filter(None, [f"### {name}", _prose(kind), notes, table]))


def _prose(kind: type) -> str:
    """The docstring without its examples."""
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(p.split()) for p in paragraphs if not p.lstrip().startswith(">>>"))


def _told(kind: type) -> dict[str, str]:
    """What stands below each field."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef), "a dataclass"
    found = {}
    for line, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(below, ast.Expr):
            found[line.target.id] = " ".join(str(ast.literal_eval(below.value)).split()).replace("|", "\\|")
    return found


def _default(field: Field[Any]) -> str:
    if field.default is MISSING and field.default_factory is MISSING:
        return "needed"
    value = field.default if field.default is not MISSING else field.default_factory()  # type: ignore[misc]
    if value is None or value in ((), {}):
        return "–"
    if is_dataclass(value) or isinstance(value, Mapping):
        return "its own"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"{len(value)} of them" if len(value) > 5 else f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _words(kind: object) -> str:
    """A type as a reader of YAML would say it."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in NAMES:
        return f"[mapping](#{NAMES[kind]})"
    if origin is Annotated:
        (bounds,) = (part for part in inner[1:] if isinstance(part, Range))
        return f"{PLAIN[inner[0]]} {bounds}"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(part) for part in inner if part is not type(None))
    if origin is tuple:
        return f"list: {_words(inner[0])}" if inner[-1] is Ellipsis else f"{len(inner)} × {_words(inner[0])}"
    if origin in (dict, Mapping):
        return f"mapping to {_words(inner[1])}" if inner[1] in NAMES else "mapping"
    return f"list: {_words(inner[0])}" if origin is Sequence else PLAIN[kind]
