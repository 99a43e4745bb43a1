"""What a paper is: its studies at three sizes, its published numbers, and its claims put to the test.

`paper.yaml` in the folder of a paper holds its title, what its code did otherwise than its text, and its parts. A part is a study
(`landscope.studies.spec`) with a few keys more: which published numbers stand beside it, and a note. What it is at size `paper`
is written out; `small` and `tiny` are overlays, and so is a part that `extends` another one:

    parts:
      mlp:
        extends: softmax-regression
        without: [training.snapshots]              # keys that go
        training.epochs: 50                        # keys that change, dotted
        tiny: {training.epochs: 4, seeds: 1}       # further ones at that size

A part may ask for what the paper's code computed: `as_published: all`, or a list of names, in a split adds the measures of that
name in the section `measures` of the file, as published.NAME and corrected.NAME. What comes out is an ordinary study.

`tiny` takes seconds and shows that everything runs; `small` takes minutes to an hour and a half for each part on two cores;
`paper` is what the paper did, for one GPU.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from landscope.core.errors import UnknownNameError
from landscope.specs.documents import read_document
from landscope.specs.overlay import with_value, without
from landscope.specs.schema import parse
from landscope.studies.grid import levels
from landscope.studies.spec import StudySpec

if TYPE_CHECKING:
    from landscope.papers.framework.claims import Claim
    from landscope.papers.framework.records import Kept

__all__ = [
    "HUNDRED_CLASSES",
    "PAPERS",
    "SIZES",
    "Figure",
    "Paper",
    "PaperMeasure",
    "Papers",
    "Part",
    "Published",
    "Size",
    "is_on_cifar100",
    "on_cifar100",
    "stands_in",
]

Size: TypeAlias = Literal["tiny", "small", "paper"]
SIZES: tuple[Size, ...] = ("tiny", "small", "paper")
HOME = Path(__file__).parent.parent
NAMES = (
    "explicit-regularisation",
    "function-centric",
    "false-friend",
    "fam",
    "adaptive-sharpness",
    "does-sharpness-predict",
)


@dataclass(frozen=True, kw_only=True)
class Published:
    """Which published numbers stand beside a part.

    `rows` picks them from the table by its columns, such as {data: cifar10}; `conditions` names our condition for each of the
    paper's, `columns` our column for each of its metrics ("METRIC", or "DATA METRIC" where a table has several data sets),
    where the names differ. Where the paper's code trained otherwise than its text says, `corrected` names for such a condition of
    ours the one that does what the text says. `checkpoints` says which weights a table or a metric shows
    ({1 early stopping: best}); otherwise the first that are there.
    """

    rows: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)
    corrected: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    checkpoints: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One study of a paper, and which published numbers stand beside it."""

    study: StudySpec
    published: Published = field(default_factory=Published)
    pool: bool = False
    """Whether the seeds of a condition are trained together, as one program, where that is faster."""
    alone: bool = False
    """Whether its runs are made one after another on a machine, since what they measure is time."""
    note: str = ""
    """What differs from the paper: data, size, number of seeds."""
    reduced: str = ""
    """In what its trainings fall short of the paper's at size `paper`: its claims are not tested."""
    instead: str = ""
    """What stands for the paper's data or network, in few words: verdicts on its claims say so."""
    classes: int | None = None
    """Of a classification: networks whose training loss is above half of that of guessing among them have not learnt."""


@dataclass(frozen=True, kw_only=True)
class PaperMeasure:
    """What a paper's code computed under one name, slips included, and what it should have measured: measures with settings."""

    published: dict[str, object]
    corrected: dict[str, object]
    unit: str = ""
    """Where the corrected value is in another unit than the published one: the entry of its details that is not."""
    difference: str
    """How the published measure differs from the corrected one."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A scatter of the models of a part, for the page of results."""

    part: str
    x: str
    y: str
    title: str
    x_label: str = ""
    y_label: str = ""
    at: str = "final"
    log: tuple[Literal["x", "y"], ...] = ()


Written: TypeAlias = "Mapping[str, object]"
OVERLAYS = ("small", "tiny")
OLD = ("as_published", "only")
ABOUT = ("extends", "sizes", "without", *OVERLAYS)
"""Keys of a part that say how it is made, not what it is."""


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper, ready to be run."""

    name: str
    title: str
    paper: str
    """Who, where, when."""
    differences: tuple[str, ...] = ()
    """What the paper's code did otherwise than its text, and what was corrected here."""
    remarks: tuple[str, ...] = ()
    """What a reader of the results should keep in mind."""
    question: str = ""
    lead: str = ""
    """What was found, in a sentence or two, for the head of the page of results."""
    answer: tuple[str, ...] = ()
    """Three lines for the paper's own screen."""
    also: tuple[str, ...] = ()
    """The texts of claims that are shown there, besides the headline ones."""
    surprise: str = ""
    figure: Figure | None = None
    measures: dict[str, PaperMeasure] = field(default_factory=dict)
    """What its code computed, and what it should have."""
    setup: str = ""
    """What lies in the data, the mode and the model rather than in a measure, and is needed to meet the tables."""
    written: dict[str, dict[str, object]]
    """The parts as they stand in the file."""
    folder: str
    """Where the file lies, and the module with the claims."""

    def __hash__(self) -> int:
        return hash(self.folder)

    @lru_cache(maxsize=32)  # noqa: B019  # there are six papers, and they live as long as the process
    def parts(self, size: Size) -> Mapping[str, Part]:
        """The parts that there are at a size."""
        return {
            name: self._part(name, size)
            for name, own in self.written.items()
            if size in cast("Sequence[Size]", own.get("sizes", SIZES))
        }

    def _part(self, name: str, size: Size) -> Part:
        keys = self._keys(name, size)
        own = {known.name: keys.pop(known.name) for known in fields(Part) if known.name in keys}
        study = parse(StudySpec, self.with_measures({"name": f"{self.name}-{name}", **keys}))
        if size == "tiny":  # nothing is published of stand-ins
            own |= {"published": {}, "note": "A stand-in of a few seconds, to show that everything runs."}
        published = parse(Published, own.pop("published", {}))
        return Part(study=study, published=published, **own)  # type: ignore[arg-type]

    def _keys(self, name: str, size: Size) -> dict[str, object]:
        """What a part is at a size: what it extends, then its own keys, then those of the size."""
        own = self.written[name]
        found = self._keys(str(own["extends"]), size) if "extends" in own else {}
        return _overlaid(_overlaid(found, own), cast(Written, own.get(size) or {}))

    def with_measures(self, study: Written) -> dict[str, object]:
        """The study, `as_published` written out in every split.

        Names of another paper's measures in place of a list (and `only` beside them, and the temperature `published`) are how
        records of version 0.1.0 ask for the same.
        """
        measuring = dict(cast(Written, study.get("measuring") or {}))
        splits = {name: self._split(split) for name, split in cast(Written, measuring.get("splits") or {}).items()}
        if splits:
            measuring["splits"] = splits
        if measuring.get("temperature") == "published":
            measuring["temperature"] = ["none", "fitted", f"{self.name}/temperature"]
        return {**study, "measuring": measuring} if measuring else dict(study)

    def _split(self, split: object) -> object:
        if not isinstance(split, Mapping) or split.get("as_published") is None:
            return (
                {key: value for key, value in split.items() if key not in OLD} if isinstance(split, Mapping) else split
            )
        asked, some = split["as_published"], split.get("only")
        names = some or (list(self.measures) if isinstance(asked, str) else asked)
        own = split.get("measures") or {}
        own = dict(own) if isinstance(own, Mapping) else dict.fromkeys(own)
        added = {
            f"{kind}.{name}": dict(getattr(self.measures[name], kind))
            for name in names
            for kind in ("published", "corrected")
        }
        rest = {key: value for key, value in split.items() if key not in OLD}
        tempered = rest.get("tempered")
        again = {} if tempered is None else {"tempered": [*cast("Sequence[str]", tempered), *added]}
        return {**rest, "measures": {**own, **added}, **again}

    @property
    def claims(self) -> Sequence[Claim]:
        """Its claims: what the function `claims` of the module of that name in its folder yields."""
        module = self._module("claims")
        return () if module is None else tuple(module.claims())

    @property
    def extra(self) -> Sequence[str]:
        """Lines of its appendix that need no records: what the function `lines` of its module `analytical` returns."""
        module = self._module("analytical")
        return () if module is None else tuple(module.lines())

    def shown(self, parts: Mapping[str, Kept]) -> Sequence[str]:
        """Lines of its appendix about what it shows and no claim is made of: the function `lines` of its module `shown`."""
        module = self._module("shown")
        return () if module is None else tuple(module.lines(parts))

    def _module(self, name: str) -> ModuleType | None:
        if not (Path(self.folder) / f"{name}.py").exists():
            return None
        return importlib.import_module(f"landscope.papers.{Path(self.folder).name}.{name}")


def _overlaid(below: Written, overlay: Written) -> dict[str, object]:
    """A mapping with some dotted keys gone, and others set.

    >>> _overlaid({"training": {"epochs": 9, "seed": 1}}, {"without": ["training.seed"], "training.epochs": 2})
    {'training': {'epochs': 2}}
    """
    found = dict(below)
    for key in cast("Sequence[str]", overlay.get("without", ())):
        found = without(found, key)
    for key, value in overlay.items():
        if key not in ABOUT:
            found = with_value(found, key, value)
    return found


class Papers(Mapping[str, Paper]):
    """The papers by exact name, each read from `paper.yaml` in its folder when it is asked for."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.folders = dict(folders)

    def __getitem__(self, name: str) -> Paper:
        if name not in self.folders:
            raise UnknownNameError.among("paper", name, self.folders)
        return _read(name, self.folders[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.folders)

    def __len__(self) -> int:
        return len(self.folders)


@lru_cache(maxsize=16)
def _read(name: str, folder: Path) -> Paper:
    document = read_document(folder / "paper.yaml")
    content = dict(cast(Written, document.content))
    return parse(Paper, {"name": name, "folder": str(folder), "written": content.pop("parts"), **content})


PAPERS = Papers({name: HOME / name.replace("-", "_") for name in NAMES})


def papers_by_network() -> dict[str, tuple[str, ...]]:
    """Name of a network → the papers whose studies train it.

    >>> papers_by_network()["vit32"]
    ('function-centric',)
    """
    found: dict[str, dict[str, None]] = {}
    for name, paper in PAPERS.items():
        for part in paper.parts("paper").values():
            for network in _networks(part.study):
                found.setdefault(network, {})[name] = None
    return {network: tuple(names) for network, names in found.items()}


def _networks(study: StudySpec) -> Iterator[str]:
    each = (level.changes for axis, written in study.axes.items() for level in levels(axis, written))
    for changes in (study.training or {}, *each):
        for model in (changes.get("model"), changes.get("model.name")):
            if model is not None:
                yield str(model["name"] if isinstance(model, Mapping) else model)


# Parts of a hundred classes: on CIFAR-100 where that is at hand, on a data set of its shape otherwise. The stand-in has as many
# images of the same size in as many classes; numbers published of CIFAR-100 are then those of other data, and the note says so.

HUNDRED_CLASSES, CIFAR100 = "tinyimagenet100_32", "cifar100"
STAND_IN = f"{HUNDRED_CLASSES} stands for CIFAR-100"
"""With this begins a sentence in the note of such a part."""


def on_cifar100(part: Part) -> Part | None:
    """The part on CIFAR-100 itself, or None if it is of other data.

    >>> study = StudySpec(name="s", training={"data": {"name": HUNDRED_CLASSES, "validation": 0}, "model": "vgg19"})
    >>> moved = on_cifar100(Part(study=study, note=f"As published. {STAND_IN}, which is not available here. In bfloat16."))
    >>> moved.study.training["data"], moved.note
    ({'name': 'cifar100', 'validation': 0}, 'As published. In bfloat16.')
    """
    if _data(part.study) != HUNDRED_CLASSES:
        return None
    training = dict(part.study.training or {})
    data = training["data"]
    training["data"] = {**data, "name": CIFAR100} if isinstance(data, Mapping) else CIFAR100
    note = re.sub(rf"{STAND_IN}[^.]*\.", "", part.note).replace(HUNDRED_CLASSES, CIFAR100)
    return replace(part, study=replace(part.study, training=training), note=" ".join(note.split()))


def stands_in(study: StudySpec) -> bool:
    """Whether a study is of the data that stands for CIFAR-100."""
    return _data(study) == HUNDRED_CLASSES


def is_on_cifar100(study: StudySpec) -> bool:
    """Whether a study is of CIFAR-100 itself."""
    return _data(study) == CIFAR100


def _data(study: StudySpec) -> object:
    data = (study.training or {}).get("data")
    return data.get("name") if isinstance(data, Mapping) else data
