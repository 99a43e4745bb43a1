"""Unpack a tar or zip archive that came from a network: every member checked before the first byte is written.

Refused: absolute paths, paths that climb out (`..`), links, devices, names twice or too long, encrypted members, and
archives that unpack to more than a limit. The members are written into a folder beside the target which is then renamed: the
target is there whole or not at all, and a refused archive leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from landscope.core.errors import DamagedFileError, DataFileError, UnsafeFileError

__all__ = ["unpack"]

_BYTES, _MEMBERS = 8 * 2**30, 500_000
_LONGEST_NAME, _LONGEST_PATH = 255, 1024
"""Bytes: the most that common file systems take for a name, and what leaves room for the folder it goes into."""
_LONGEST_HEADER = 2**20
"""Bytes of the headers that carry long names in tar files."""


@dataclass(frozen=True)
class _Member:
    name: str
    is_folder: bool
    is_file: bool
    size: int
    open: Callable[[], IO[bytes] | None]


class _Headers(tarfile.TarInfo):
    """A member of a tar file, whose long name or other headers are not read when they are absurdly long."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Headers:
        """The header in 512 bytes."""
        found = super().frombuf(buf, encoding, errors)
        if found.type in _NAMING and found.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {found.size:,} bytes")
        return found


_NAMING = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


def _tar_members(archive: tarfile.TarFile) -> Iterator[_Member]:
    for m in archive:
        yield _Member(m.name, m.isdir(), m.isreg(), m.size, lambda m=m: archive.extractfile(m))  # type: ignore[misc]


def _zip_members(archive: zipfile.ZipFile) -> Iterator[_Member]:
    def member(info: zipfile.ZipInfo) -> _Member:
        kind = stat.S_IFMT(info.external_attr >> 16)
        plain = kind in (0, stat.S_IFREG, stat.S_IFDIR) and not info.flag_bits & 1
        return _Member(
            info.filename, info.is_dir(), plain and not info.is_dir(), info.file_size, lambda: archive.open(info)
        )

    return map(member, archive.infolist())


def _refuse(archive: Path, member: str, why: str) -> UnsafeFileError:
    return UnsafeFileError(f"{archive}: the member {member!r} {why}. Nothing was unpacked; do not use this archive.")


def _checked(archive: Path, members: Iterable[_Member]) -> list[tuple[PurePosixPath, _Member]]:
    """Files to write with their cleaned paths, or the error that refuses the archive."""
    files: dict[PurePosixPath, _Member] = {}
    total = 0
    for count, member in enumerate(members, 1):
        path = PurePosixPath(member.name)
        if path.is_absolute() or "\\" in member.name or ":" in member.name:
            raise _refuse(archive, member.name, "has an absolute path")
        if ".." in path.parts or "\0" in member.name:
            raise _refuse(archive, member.name, "climbs out of its folder")
        longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
        if longest > _LONGEST_NAME or len(os.fsencode(path)) > _LONGEST_PATH:
            raise _refuse(
                archive,
                f"{member.name[:60]}…",
                f"has a name of {longest:,} bytes in a path of {len(os.fsencode(path)):,}; at most {_LONGEST_NAME} in "
                f"{_LONGEST_PATH:,} can be written",
            )
        total += max(0, member.size)
        if total > _BYTES or count > _MEMBERS:
            raise UnsafeFileError(
                f"{archive}: would unpack to {total:,} bytes or more, in {count:,} files or more; at most {_BYTES:,} bytes "
                f"in {_MEMBERS:,} files are unpacked"
            )
        if member.is_folder:
            continue
        if not path.parts:
            raise _refuse(archive, member.name, "has no name")
        if not member.is_file:
            raise _refuse(archive, member.name, "is a link, a device or encrypted")
        if path in files:
            raise _refuse(archive, member.name, "is there twice")
        files[path] = member
    if any(parent in files for path in files for parent in path.parents):
        raise _refuse(archive, "", "is a file and a folder at once")
    return list(files.items())


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[_Member]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            yield _zip_members(zipped)
    else:
        with tarfile.open(archive, tarinfo=_Headers) as tarred:
            yield _tar_members(tarred)


def _created(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("xb")


def _damaged(archive: Path, error: Exception) -> DamagedFileError:
    return DamagedFileError(
        f"{archive}: cannot be unpacked ({error or type(error).__name__}); it is truncated or damaged"
    )


def unpack(archive: Path, target: Path, folder: str) -> Path:
    """Unpack `archive` and put its top-level folder `folder` into `target`; returns the path of that folder.

    What was there under that name before is replaced, after the archive proved good.
    """
    target.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder}.", dir=target))
    try:
        with _members(archive) as members:
            for path, member in _checked(archive, members):
                source = member.open()
                if source is None:
                    raise _refuse(archive, member.name, "has no content")
                with source, _created(aside / "new" / path) as file:
                    shutil.copyfileobj(source, file, 2**20)
        fresh, final = aside / "new" / folder, target / folder
        if not fresh.is_dir():
            raise DamagedFileError(f"{archive}: holds no folder {folder!r}; it is not the archive it should be")
        if final.exists():
            os.replace(final, aside / "old")
        os.replace(fresh, final)
    except DataFileError:
        raise
    except OSError as error:
        if error.errno is None:  # from a reader of zipped data
            raise _damaged(archive, error) from error
        raise DataFileError(f"{archive}: cannot be unpacked into {target} ({error}). Nothing was unpacked") from error
    except Exception as error:  # the readers of archives raise whatever a broken one leads them into
        raise _damaged(archive, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final
