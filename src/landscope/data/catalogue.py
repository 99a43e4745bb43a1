"""What is here, what is missing, what is damaged; and fetching what is missing."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from landscope.core.errors import DamagedFileError, DataFileError, MissingFileError
from landscope.data.archives import unpack
from landscope.data.dataset import DATASETS
from landscope.data.download import Progress, fetch
from landscope.data.places import read, target_folder
from landscope.data.source import Version, locate, survey

__all__ = ["SetStatus", "get", "list_status", "status"]


@dataclass(frozen=True)
class SetStatus:
    """State of one data set.

    `problems` says what is wrong, file by file, `hint` what to do about a set that cannot be loaded.
    """

    name: str
    title: str
    state: Literal["present", "missing", "damaged"]
    version: str
    folder: Path | None
    problems: tuple[str, ...]
    licence: str
    hint: str


def status(name: str, *, root: str | os.PathLike[str] | None = None, verify: bool = True) -> SetStatus:
    """State of the data set `name`; `verify` reads every file and compares checksums.

    >>> status("abalone").state
    'present'
    """
    dataset = DATASETS[name]
    if dataset.requires and importlib.util.find_spec(dataset.requires[0]) is None:
        hint = f"pip install 'landscope[{dataset.requires[1]}]'"
        return SetStatus(name, dataset.title, "missing", "", None, (), dataset.licence, hint)
    if not dataset.versions:
        return SetStatus(name, dataset.title, "present", "computed", None, (), dataset.licence, "")
    found = [(version, *survey(version, root, verify=verify)) for version in dataset.versions]
    # A whole version counts before a damaged one, a damaged one before none.
    version, state, folder, problems = min(found, key=lambda f: ("present", "damaged", "missing").index(f[1]))
    hint = (
        "" if state == "present" else f"landscope data get {name}" if version.downloads else _by_hand(version, folder)
    )
    return SetStatus(name, dataset.title, state, version.name, folder, problems, dataset.licence, hint)


def _by_hand(version: Version, folder: Path) -> str:
    """Where the files of a version go that cannot be downloaded."""
    files = ", ".join(version.files)
    return f"{version.by_hand} Put {files} into {folder} (LANDSCOPE_DATA names another place for data sets)."


def list_status(*, root: str | os.PathLike[str] | None = None, verify: bool = True) -> list[SetStatus]:
    """State of every data set, by name."""
    return [status(name, root=root, verify=verify) for name in DATASETS]


def get(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    version: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch the files of the data set `name` that are not here or damaged; returns the folder they are in.

    The first version that can be downloaded is taken unless `version` names one. Archives are unpacked and removed.
    `progress(file, bytes_so_far, bytes_in_all)` is called along the way.
    """
    dataset = DATASETS[name]
    now = status(name, root=root)
    if now.state == "present" and version in (None, now.version):
        return now.folder or target_folder(root)
    versions = [v for v in dataset.versions if version in (None, v.name)]
    chosen: Version | None = next((v for v in versions if v.downloads), None)
    if chosen is None:
        locate(name, dataset.versions, root=root, version=version)  # its error says which files belong where
        raise MissingFileError(f"{name!r} has no home to download it from. {now.hint}\n" + "\n".join(now.problems))
    folder = target_folder(root)
    for item in chosen.downloads:
        target = folder / item.path
        fetch(item.urls, target, item.checksum, progress=progress)
        if item.unpacks_to is not None:
            try:
                unpack(target, folder, item.unpacks_to)
            except DataFileError:
                target.unlink()
                raise
            target.unlink()
    for file, checksum in chosen.files.items():
        _set_aside(folder / chosen.folders[0] / file, checksum)
    return locate(name, [chosen], root=root).folder


def _set_aside(path: Path, checksum: str | None) -> None:
    """Rename a damaged unzipped file that would be read in place of the zipped one just fetched."""
    if checksum is None or not (path.is_file() and path.with_name(path.name + ".gz").is_file()):
        return
    try:
        read(path, checksum)
    except DamagedFileError:
        path.replace(path.with_name(path.name + ".damaged"))
