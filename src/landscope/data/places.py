r"""Where files of data sets live, and how one is read: found, unzipped, its checksum compared.

A file is looked for in the folder that was given, or else in `$LANDSCOPE_DATA` and then in the user's cache
(`$XDG_CACHE_HOME/landscope`, `%LOCALAPPDATA%\landscope` on Windows, `~/.cache/landscope` otherwise). `name.gz` does as
well as `name`; checksums are those of the unzipped content, so that it does not matter who zipped it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from landscope.core.errors import DamagedFileError
from landscope.core.unzipping import read_unzipped

__all__ = ["BUNDLED", "LARGEST", "check", "digest", "find", "read", "search_folders", "target_folder"]

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
    came = digest(content, expected.partition(":")[0])
    if came != expected:
        raise DamagedFileError(
            f"{path}: checksum {came} where {expected} was published ({len(content):,} bytes). The file is damaged or "
            "is another one of the same name: remove it and get it again, or pass verify=False if you made it yourself."
        )


def read(path: Path, checksum: str | None = None) -> bytes:
    """Content of a file, unzipped if it is gzip, compared with `checksum` if one is given."""
    content = read_unzipped(path, LARGEST)
    if checksum is not None:
        check(path, content, checksum)
    return content
