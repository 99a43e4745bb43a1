"""Parts of a hundred classes: on CIFAR-100 where that is at hand, on a data set of its shape otherwise.

The stand-in has as many images of the same size in as many classes; numbers published of CIFAR-100 are then those of other data,
and the part's note says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from landscope.recipes.recipe import Part
from landscope.studies.spec import StudySpec

__all__ = ["HUNDRED_CLASSES", "OTHER_DATA", "STAND_IN", "is_on_cifar100", "on_cifar100"]

HUNDRED_CLASSES, CIFAR100 = "tinyimagenet100_32", "cifar100"
STAND_IN = f"{HUNDRED_CLASSES} stands for CIFAR-100, which could not be had"
"""With this begins a sentence in the note of such a part."""
OTHER_DATA = f"{STAND_IN}: the published numbers beside it are of other data."


def on_cifar100(part: Part) -> Part | None:
    """The part on CIFAR-100 itself, or None if it is of other data.

    >>> study = StudySpec(name="s", training={"data": {"name": HUNDRED_CLASSES, "validation": 0}, "model": "vgg19"})
    >>> moved = on_cifar100(Part(study=study, note=f"As published. {OTHER_DATA} In bfloat16."))
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


def is_on_cifar100(study: StudySpec) -> bool:
    """Whether a study is of CIFAR-100 itself."""
    return _data(study) == CIFAR100


def _data(study: StudySpec) -> object:
    data = (study.training or {}).get("data")
    return data.get("name") if isinstance(data, Mapping) else data
