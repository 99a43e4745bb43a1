"""Unpack a tar or zip archive that came from a network: every member checked before the first byte is written.

Refused: absolute paths, paths that climb out (`..`), links, devices, names twice, encrypted members, and archives
that unpack to more than a limit. The members are written into a folder beside the target which is then renamed: the
target is there whole or not at all, and a refused archive leaves nothing behind.
"""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from landscope.core.errors import DamagedFileError, UnsafeFileError

__all__ = ["unpack"]

_BYTES, _MEMBERS = 8 * 2**30, 500_000


@dataclass(frozen=True)
class _Member:
    name: str
    is_folder: bool
    is_file: bool
    size: int
    open: Callable[[], IO[bytes] | None]


def _tar_members(archive: tarfile.TarFile) -> list[_Member]:
    return [
        _Member(m.name, m.isdir(), m.isreg(), m.size, lambda m=m: archive.extractfile(m))  # type: ignore[misc]
        for m in archive
    ]


def _zip_members(archive: zipfile.ZipFile) -> list[_Member]:
    def member(info: zipfile.ZipInfo) -> _Member:
        kind = stat.S_IFMT(info.external_attr >> 16)
        plain = kind in (0, stat.S_IFREG, stat.S_IFDIR) and not info.flag_bits & 1
        return _Member(
            info.filename, info.is_dir(), plain and not info.is_dir(), info.file_size, lambda: archive.open(info)
        )

    return [member(info) for info in archive.infolist()]


def _refuse(archive: Path, member: str, why: str) -> UnsafeFileError:
    return UnsafeFileError(f"{archive}: the member {member!r} {why}. Nothing was unpacked; do not use this archive.")


def _checked(archive: Path, members: list[_Member]) -> list[tuple[PurePosixPath, _Member]]:
    """Files to write with their cleaned paths, or the error that refuses the archive."""
    files: dict[PurePosixPath, _Member] = {}
    for member in members:
        path = PurePosixPath(member.name)
        if path.is_absolute() or "\\" in member.name or ":" in member.name:
            raise _refuse(archive, member.name, "has an absolute path")
        if ".." in path.parts or "\0" in member.name:
            raise _refuse(archive, member.name, "climbs out of its folder")
        if member.is_folder:
            continue
        if not member.is_file:
            raise _refuse(archive, member.name, "is a link, a device or encrypted")
        if path in files:
            raise _refuse(archive, member.name, "is there twice")
        files[path] = member
    if any(parent in files for path in files for parent in path.parents):
        raise _refuse(archive, "", "is a file and a folder at once")
    total = sum(member.size for member in files.values())
    if total > _BYTES or len(files) > _MEMBERS:
        raise UnsafeFileError(f"{archive}: would unpack to {total:,} bytes in {len(files):,} files; refused")
    return list(files.items())


@contextmanager
def _members(archive: Path) -> Iterator[list[_Member]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            yield _zip_members(zipped)
    else:
        with tarfile.open(archive) as tarred:
            yield _tar_members(tarred)


def unpack(archive: Path, target: Path, folder: str) -> Path:
    """Unpack `archive` and put its top-level folder `folder` into `target`; returns the path of that folder.

    What was there under that name before is replaced, after the archive proved good.
    """
    target.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder}.", dir=target))
    try:
        with _members(archive) as members:
            for path, member in _checked(archive, members):
                out = aside / "new" / path
                out.parent.mkdir(parents=True, exist_ok=True)
                source = member.open()
                if source is None:
                    raise _refuse(archive, member.name, "has no content")
                with source, out.open("xb") as file:
                    shutil.copyfileobj(source, file, 2**20)
        fresh, final = aside / "new" / folder, target / folder
        if not fresh.is_dir():
            raise DamagedFileError(f"{archive}: holds no folder {folder!r}; it is not the archive it should be")
        if final.exists():
            os.replace(final, aside / "old")
        os.replace(fresh, final)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, NotImplementedError) as error:
        raise DamagedFileError(f"{archive}: cannot be unpacked ({error}); it is truncated or damaged") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final
