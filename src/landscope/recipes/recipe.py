"""What a recipe is: the studies of a paper at three sizes, its published numbers, and its claims put to the test.

A recipe has parts, each one study with a report of its own. `tiny` takes seconds and shows that everything runs; `small` takes
minutes to an hour and a half for each part on two cores; `paper` is what the paper did, for one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from landscope.core.registry import Registry
from landscope.studies.spec import StudySpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FAILED", "RECIPES", "Claim", "Claims", "Part", "Recipe", "Size", "Verdict"]

Size: TypeAlias = Literal["tiny", "small", "paper"]
Verdict: TypeAlias = Literal["holds", "does not hold", "cannot be told"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something that a paper says, and what our records say of it."""

    text: str
    verdict: Verdict
    why: str
    """With the numbers and n."""
    part: str = ""
    records: tuple[str, ...] = ()
    """Keys of the runs that it rests on."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One study of a recipe, and which published numbers stand beside it.

    `published` picks rows of the table of published numbers by its columns, such as {"data": "cifar10"}; `conditions` names our
    condition for each of the paper's, `columns` our column for each of its metrics ("METRIC", or "DATA METRIC" where a table has
    several data sets), where the names differ. Where the paper's code trained otherwise than its text says, `corrected` names
    for such a condition of ours the one that does what the text says.
    """

    study: StudySpec
    published: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    corrected: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    """Which weights a table or a metric of the paper shows: {"1 early stopping": "best"}; otherwise the first that are there."""
    pool: bool = False
    """Whether the seeds of a condition are trained together, as one program, where that is faster."""
    alone: bool = False
    """Whether its runs are made one after another on a machine, since what they measure is time."""
    note: str = ""
    """What differs from the paper: data, size, number of seeds."""


FAILED = "failed"
Claims: TypeAlias = "Callable[[Mapping[str, pd.DataFrame]], Sequence[Claim]]"
"""From the table of each part (one row per measured model; see `Study.table`) to verdicts. A part that is missing or short of
models makes claims that cannot be told, not errors. `attrs[FAILED]` of a table tells how many runs of a condition failed."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A paper, ready to be run."""

    name: str
    title: str
    paper: str
    """Who, where, when."""
    parts: Callable[[Size], Mapping[str, Part]]
    claims: Claims
    differences: tuple[str, ...] = ()
    """What the paper's code did otherwise than its text, and what was corrected here."""
    remarks: tuple[str, ...] = ()
    """What a reader of the results should keep in mind."""


RECIPES: Registry[Recipe] = Registry("recipe")
"""Recipes by exact name."""
