"""The folder of a run: it belongs to one spec."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from landscope.core.errors import SpecError
from landscope.core.files import LARGEST_DOCUMENT, read_regular
from landscope.core.importing import public_names
from landscope.core.json_text import parse_json
from landscope.core.schema import Plain, build, to_plain
from landscope.training.checkpoint import write_json
from landscope.training.result import SPEC, forget_result
from landscope.training.spec import TrainingSpec

__all__ = ["differences", "prepare_folder"]


def prepare_folder(folder: str | os.PathLike[str], spec: TrainingSpec, *, resume: bool, writes: bool) -> Path:
    """The folder, made where it is not there; one that holds a run of another spec is refused, unless it begins anew."""
    path, own = Path(folder), to_plain(spec)
    if path.exists() and not path.is_dir():
        raise SpecError(f"{path} is a file; the folder of a run was expected")
    if resume and (path / SPEC).is_file():
        try:
            there = parse_json(read_regular(path / SPEC, LARGEST_DOCUMENT), finite=False)
        except (OSError, ValueError) as error:
            raise SpecError(f"{path / SPEC} is damaged: {error}. Choose another folder, or resume=False") from error
        if differ := list(differences(_as_today(there), public_names(own))):
            raise SpecError(
                f"{path} holds a run of another spec: {'; '.join(differ)}. Choose another folder, or begin anew with resume=False"
            )
    if writes:
        path.mkdir(parents=True, exist_ok=True)
        if not resume:
            forget_result(path)
        write_json(path / SPEC, own)
    return path


def _as_today(there: Plain) -> Plain:
    """A spec as it is written today: with fields that came later at their defaults, and with public names."""
    with suppress(SpecError):  # what cannot be read is compared as it stands
        there = to_plain(build(TrainingSpec, there))
    return public_names(there)


def differences(there: Plain, here: Plain, key: str = "") -> Iterator[str]:
    """Where two specs differ, key by key.

    >>> list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    ['a.b is 1 there and 3 here']
    """
    if isinstance(there, dict) and isinstance(here, dict):
        for name in dict.fromkeys([*there, *here]):
            yield from differences(there.get(name), here.get(name), f"{key}.{name}" if key else name)
    elif there != here:
        yield f"{key} is {json.dumps(there)} there and {json.dumps(here)} here"
