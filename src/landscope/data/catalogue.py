"""What is here, what is missing, what is damaged; and fetching what is missing."""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import os
import shutil
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal
from urllib.parse import urlsplit

from landscope.core.errors import DamagedFileError, DataFileError, DownloadError, MissingFileError, UnsafeFileError
from landscope.data.dataset import DATASETS
from landscope.data.files import Version, locate, read, survey, target_folder

# Fetch one file over HTTP: resumed where it stopped, its checksum verified, renamed into place when it is whole.
#
# The bytes go to `NAME.part` beside the target. A broken transfer leaves that file, and the next attempt asks for the
# rest with a `Range` header. Only a file whose checksum is right ever gets its final name.


Progress = Callable[[str, int, int | None], None]
"""Called as `progress(file_name, bytes_so_far, bytes_in_all_or_None)`."""

_CHUNK = 1 << 18


def _request(url: str, start: int, timeout: float) -> http.client.HTTPResponse:
    if urlsplit(url).scheme not in {"http", "https"}:
        raise DownloadError(f"{url}: only http and https addresses are fetched")
    headers = {"User-Agent": "landscope", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    if not isinstance(response, http.client.HTTPResponse):
        raise DownloadError(f"{url}: led to something that is not HTTP")
    return response


def _transfer(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """Append what is missing to `part`; raises `OSError` or `HTTPException` when the connection fails."""
    start = part.stat().st_size if part.exists() else 0
    try:
        response = _request(url, start, timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing is left to send, or the part is too long: the checksum will show
            return
        raise
    with response:
        resumed = response.status == 206 and (response.headers["Content-Range"] or "").startswith(f"bytes {start}-")
        done = start if resumed else 0
        length = response.headers["Content-Length"]
        total = done + int(length) if length is not None and length.isdigit() else None
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(part.stem, done, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise http.client.IncompleteRead(b"", total - done)


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{found.hexdigest()}"


def fetch(
    urls: Sequence[str],
    target: Path,
    checksum: str,
    *,
    progress: Progress | None = None,
    attempts: int = 3,
    timeout: float = 30.0,
) -> Path:
    """Fetch `target` from the first of `urls` that gives it, resuming an earlier attempt.

    `checksum` is `md5:…` or `sha256:…`. Raises `DownloadError` if no address answers (the message names the file, the
    place it must be put and the checksum, for those who carry it there by hand) and `DamagedFileError` if the file is
    not the published one; then no file is left behind.
    """
    if target.is_file() and _digest(target, checksum.partition(":")[0]) == checksum:
        return target
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    wrong = ""
    for url in urls:
        for _ in range(attempts):
            resumed = part.exists()
            try:
                _transfer(url, part, progress, timeout)
            except urllib.error.HTTPError as error:
                failures.append(f"{url}: {error}")
                break
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{url}: {error or type(error).__name__}")
                continue
            found = _digest(part, checksum.partition(":")[0])
            if found == checksum:
                os.replace(part, target)
                return target
            part.unlink()
            wrong = f"{url} gave a file with checksum {found}; the published one is {checksum}"
            if not resumed:  # a part of an older file may have been completed by a newer one: once more, from the start
                break
    if wrong:
        raise DamagedFileError(f"{target}: {wrong}. It was removed.")
    raise DownloadError(
        f"{target.name} could not be fetched. Put it at {target} yourself (checksum {checksum}), or run this again "
        "to resume. Tried:\n  " + "\n  ".join(failures)
    )


# Unpack a tar or zip archive from a network: every member checked before the first byte is written.
#
# Refused: absolute paths, paths that climb out (`..`), links, devices, names twice or too long, encrypted members, and
# archives that unpack to more than a limit. The members are written into a folder beside the target which is then renamed: the
# target is there whole or not at all, and a refused archive leaves nothing behind.


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
"""Types of headers that carry names and other long texts."""


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
            raise _refuse(archive, member.name, "appears twice")
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

    What was there under that name before is replaced, once the archive has proved sound.
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
            raise DamagedFileError(f"{archive}: holds no folder {folder!r}; it is not the expected archive")
        if final.exists():
            os.replace(final, aside / "old")
        os.replace(fresh, final)
    except DataFileError:
        raise
    except OSError as error:
        if error.errno is None:  # from a reader of zipped data
            raise _damaged(archive, error) from error
        raise DataFileError(f"{archive}: cannot be unpacked into {target} ({error}). Nothing was unpacked") from error
    except Exception as error:  # the readers of archives may raise any error on a broken one
        raise _damaged(archive, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final


# What is here, what is missing, what is damaged.


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
    # A whole version goes before a damaged one, a damaged one before none.
    version, state, folder, problems = min(found, key=lambda f: ("present", "damaged", "missing").index(f[1]))
    hint = (
        "" if state == "present" else f"landscope data get {name}" if version.downloads else _by_hand(version, folder)
    )
    return SetStatus(name, dataset.title, state, version.name, folder, problems, dataset.licence, hint)


def _by_hand(version: Version, folder: Path) -> str:
    """Where to put the files of a version that cannot be downloaded."""
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
        fetch([item.urls] if isinstance(item.urls, str) else item.urls, target, item.checksum, progress=progress)
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
