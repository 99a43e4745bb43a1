"""Which files make up a data set, where they may lie, and where they come from.

A set has one or more versions (CIFAR: binary, python); the first that is there whole is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from landscope.core.errors import DataFileError, MissingFileError, UnknownNameError
from landscope.data.places import BUNDLED, digest, find, read, search_folders

__all__ = ["Download", "Files", "Version", "locate", "survey"]


@dataclass(frozen=True, kw_only=True)
class Download:
    """One file at its official home; an archive names the folder it unpacks to."""

    urls: tuple[str, ...]
    path: str
    checksum: str
    unpacks_to: str | None = None


@dataclass(frozen=True, kw_only=True)
class Version:
    """One canonical form of a set: its files (with the checksum of the content, if one is published) in a folder."""

    name: str
    folders: tuple[str, ...]
    files: Mapping[str, str | None]
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    bundled: str | None = None

    def candidates(self, root: str | os.PathLike[str] | None) -> list[Path]:
        """Folders where this version may be, in the order of search."""
        found = [top / folder for top in search_folders(root) for folder in self.folders]
        return found + ([BUNDLED / self.bundled] if self.bundled else [])


@dataclass(frozen=True, kw_only=True)
class Files:
    """A version that was found; reads its files and remembers their checksums."""

    version: Version
    folder: Path
    root: str | os.PathLike[str] | None
    verify: bool

    def path(self, name: str) -> Path:
        """Where the file `name` (or `name.gz`) is."""
        path = find(self.folder, name)
        if path is None:
            raise MissingFileError(f"{self.folder / name}: not there, although other files of the set are")
        return path

    def read(self, name: str) -> bytes:
        """Content of the file `name`, compared with its published checksum."""
        return read(self.path(name), self.version.files.get(name) if self.verify else None)

    def checksums(self) -> dict[str, str]:
        """Checksum of every file: the published one, which `read` has compared, or the one of what is there."""
        return {
            name: (self.verify and published) or digest(read(self.path(name)), "sha256")
            for name, published in self.version.files.items()
        }


def locate(
    name: str,
    versions: Sequence[Version],
    *,
    root: str | os.PathLike[str] | None = None,
    version: str | None = None,
    verify: bool = True,
) -> Files:
    """Files of the data set `name` in the first version that is there whole; the error says what belongs where."""
    if version is not None and version not in {v.name for v in versions}:
        raise UnknownNameError.among(f"version of {name}", version, [v.name for v in versions])
    wanted = [v for v in versions if version in (None, v.name)]
    for candidate in wanted:
        for folder in candidate.candidates(root):
            if all(find(folder, file) for file in candidate.files):
                return Files(version=candidate, folder=folder, root=root, verify=verify)
    raise MissingFileError(_missing(name, wanted, root))


def _missing(name: str, versions: Sequence[Version], root: str | os.PathLike[str] | None) -> str:
    searched = ", ".join(str(folder) for folder in search_folders(root))
    first = versions[0]
    place = first.candidates(root)[0]
    lines = [f"the data set {name!r} is not there (searched: {searched})."]
    if any(v.downloads for v in versions):
        lines.append(f"Run `landscope data get {name}`, or put these files there yourself:")
    else:
        lines.append(f"{first.by_hand} Put these files there yourself:")
    lines += [f"  {place / file}  ({checksum or 'no checksum is published'})" for file, checksum in first.files.items()]
    return "\n".join(lines)


def survey(
    version: Version, root: str | os.PathLike[str] | None, *, verify: bool
) -> tuple[Literal["present", "damaged", "missing"], Path, tuple[str, ...]]:
    """State of one version, the folder it is or would be in, and what is wrong, file by file."""
    folders = version.candidates(root)
    for folder in folders:
        there = {file: find(folder, file) for file in version.files}
        if not any(there.values()):
            continue
        problems = [f"{folder / file}: missing" for file, path in there.items() if path is None]
        for file, path in there.items():
            if path is not None and verify:
                try:
                    read(path, version.files[file])
                except (DataFileError, OSError) as error:
                    problems.append(str(error))
        return ("damaged" if problems else "present"), folder, tuple(problems)
    return "missing", folders[0], ()
