r"""Where files of data sets live, and how one is read: found, unzipped, its checksum compared.

A file is looked for in the folder that was given, or else in `$LANDSCOPE_DATA` and then in the user's cache
(`$XDG_CACHE_HOME/landscope`, `%LOCALAPPDATA%\landscope` on Windows, `~/.cache/landscope` otherwise). `name.gz` does as
well as `name`; checksums are those of the unzipped content, so that it does not matter who zipped it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from landscope.core.errors import DamagedFileError, DataFileError, MissingFileError, UnknownNameError
from landscope.core.json import read_unzipped

BUNDLED = Path(__file__).parent / "files"

LARGEST = 4 * 2**30
"""No file of any set comes near this; it keeps a small .gz from filling the memory."""


def _cache() -> Path:
    if configured := os.environ.get("XDG_CACHE_HOME"):
        return Path(configured) / "landscope"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "landscope"
    return Path.home() / ".cache" / "landscope"


def search_folders(root: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """Folders that are searched, in this order.

    >>> [folder.name for folder in search_folders("somewhere")]
    ['somewhere']
    """
    if root is not None:
        return (Path(root).expanduser(),)
    if configured := os.environ.get("LANDSCOPE_DATA"):
        return (Path(configured).expanduser(), _cache())
    return (_cache(),)


def target_folder(root: str | os.PathLike[str] | None = None) -> Path:
    """Folder that downloads go to: the first that is searched."""
    return search_folders(root)[0]


def find(folder: Path, name: str) -> Path | None:
    """Path of the file `name` or `name.gz` in `folder`, if it is there.

    >>> find(BUNDLED / "abalone", "abalone.data").name
    'abalone.data.gz'
    """
    for candidate in (folder / name, folder / (name + ".gz")):
        if candidate.is_file():
            return candidate
    return None


def digest(content: bytes, algorithm: str) -> str:
    """Checksum as it is written in cards: `sha256:…` or `md5:…`.

    >>> digest(b"", "md5")
    'md5:d41d8cd98f00b204e9800998ecf8427e'
    """
    return f"{algorithm}:{hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()}"


def check(path: Path, content: bytes, expected: str) -> None:
    """Raise `DamagedFileError` unless `content`, which was read from `path`, has the checksum `expected`."""
    found = digest(content, expected.partition(":")[0])
    if found != expected:
        raise DamagedFileError(
            f"{path}: expected the published checksum {expected}, got {found} ({len(content):,} bytes). The file is damaged or "
            "is another one of the same name: remove it and get it again, or pass verify=False if you made it yourself."
        )


def read(path: Path, checksum: str | None = None) -> bytes:
    """Content of a file, unzipped if it is gzip, compared with `checksum` if one is given."""
    content = read_unzipped(path, LARGEST)
    if checksum is not None:
        check(path, content, checksum)
    return content


# Which files make up a data set, where they may lie, and where they come from.
#
# A set has one or more versions (CIFAR: binary, python); the first complete one is read.


@dataclass(frozen=True)
class Download:
    """One file at its official home, or at one of several; an archive names the folder it unpacks to."""

    urls: str | tuple[str, ...]
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
            raise MissingFileError(f"{self.folder / name}: missing, although other files of the set are there")
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
    """Files of the data set `name` in its first complete version; the error says what belongs where."""
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
