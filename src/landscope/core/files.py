"""Files that are there whole or not at all.

A file is written under another name in its own folder, flushed to the disk, and renamed; then the folder is flushed, so that
a power cut after the return cannot undo it. A writer that dies on the way leaves the old file and a hidden `.….aside`. Whichever
library writes it, the file has the mode of any new file there: some libraries make theirs private, and a colleague must be able
to continue.

A link is followed: its target is written, and the link stays. Anything there that is not a regular file is neither replaced nor
opened.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from landscope.core.errors import LandscopeError, StoreError, StoreFullError

SUFFIX = ".aside"
LARGEST_RECORD = 256 * 2**20
"""Bytes of what was measured: a record, a history, a report."""
LARGEST_DOCUMENT = 16 * 2**20
"""Bytes of what says what is done, and by whom: a spec, a study, an attempt."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def not_there(path: Path) -> str:
    """That nothing has this name, with the nearest name there is.

    >>> not_there(Path("no-folder-of-this-name/x.yaml"))
    'no-folder-of-this-name/x.yaml: no such file or folder'
    """
    return f"{path}: no such file or folder{nearest_name(path)}"


def nearest_name(path: Path) -> str:
    """What to say of a path that is missing: "; did you mean …?" where a name beside it is near, otherwise nothing."""
    parts = [path, *path.parents]
    missing = next((part for part, above in pairwise(parts) if above.is_dir() and not part.exists()), None)
    if missing is None:
        return ""
    with suppress(OSError):
        beside = [each.name for each in missing.parent.iterdir()]
        for name in difflib.get_close_matches(missing.name, beside, n=3, cutoff=0.6):
            found = missing.parent / name / path.relative_to(missing)
            if found.exists():
                return f"; did you mean {found}?"
    return ""


def aside_of(path: Path) -> Path:
    """A hidden name in the same folder that is not taken."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{SUFFIX}")


def destination(path: Path) -> Path:
    """The file that is written under this name: what a link leads to. `OSError` where something else than a file is there."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EEXIST
        raise OSError(code, f"expected a regular file or nothing there, found {_kind(mode)}", str(path))
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def check_regular(path: Path, largest: int | None = None) -> None:
    """`ValueError` for anything but a regular file of at most `largest` bytes; nothing is opened.

    >>> check_regular(Path("/"))
    Traceback (most recent call last):
    ValueError: expected a regular file, found a folder
    """
    try:
        found = path.stat()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError("expected a regular file, found a link that leads to itself") from None
    _check(found, largest)


def read_regular(path: Path, largest: int) -> bytes:
    """The content of a regular file of at most `largest` bytes; `ValueError` says what is there instead.

    It never waits for something else that was put there, such as a FIFO, and never fills the memory.
    """
    check_regular(path, largest)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        _check(os.fstat(descriptor), largest)
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"expected {largest / 2**20:g} MiB at most, and the file is still growing")
    return content


def probe_folder(path: Path) -> None:
    """`OSError` unless files can be made in a folder, or in its nearest ancestor that exists."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    probe = aside_of(there / "probe")
    try:
        probe.touch(exist_ok=False)
    finally:
        with suppress(OSError):
            probe.unlink()


def _check(found: os.stat_result, largest: int | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"expected a regular file, found {_kind(found.st_mode)}")
    if largest is not None and found.st_size > largest:
        raise ValueError(f"expected {largest / 2**20:g} MiB at most, found {found.st_size / 2**20:,.0f} MiB")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "something else")


@contextmanager
def writing(path: Path, *, flush: bool = True, inside: Path | None = None) -> Iterator[Path]:
    """A path to write to; what was written there becomes `path` when the block ends without an error.

    Without `flush` a power cut, though no death of a process, may leave it empty: for what can be written again.
    Missing folders are made: all of them, or those `inside` one that must be there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with writing(Path(folder) / "weights" / "final.bin") as aside:
    ...         _ = aside.write_bytes(b"12")
    ...     [file.name for file in (Path(folder) / "weights").iterdir()]
    ['final.bin']
    """
    path = destination(path)
    with _renamed(path, flush, inside) as aside:
        yield aside
        mode = _mode_of_new(path)
        if stat.S_IMODE(aside.stat().st_mode) != mode:
            aside.chmod(mode)


@contextmanager
def _renamed(path: Path, flush: bool, inside: Path | None) -> Iterator[Path]:
    if inside is not None:
        for folder in reversed(path.relative_to(inside).parents[:-1]):
            (inside / folder).mkdir(exist_ok=True)
    path = destination(path)
    aside = aside_of(path)
    if inside is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield aside
        if flush:
            _flush(aside, os.O_RDWR)
        os.replace(aside, path)
        if flush and os.name == "posix":
            _flush(path.parent, os.O_RDONLY)
    finally:
        with suppress(OSError):
            aside.unlink()


def write_whole(path: Path, content: bytes, *, flush: bool = True, inside: Path | None = None) -> None:
    """Write a file, whole or not at all; see `writing`."""
    with _renamed(path, flush, inside) as aside, aside.open("xb", buffering=0) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]


def _mode_of_new(path: Path) -> int:
    """The mode that a file made beside `path` gets: the umask's, or the folder's own. To ask for the umask is to set it."""
    probe = aside_of(path)
    try:
        probe.touch(exist_ok=False)
        return stat.S_IMODE(probe.stat().st_mode)
    finally:
        probe.unlink(missing_ok=True)


def _flush(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Files of a store: errors name the file and the remedy. Writers that die leave a hidden `.….aside`, which the next owner of the
# folder sweeps up.


@contextmanager
def writing_in_store(path: Path, *, inside: Path) -> Iterator[Path]:
    """Like `writing`, with errors of a store."""
    with store_errors(path), writing(path, inside=inside) as aside:
        yield aside


def write_in_store(path: Path, content: bytes, *, flush: bool = True, inside: Path | None = None) -> None:
    """Like `write_whole`, with errors of a store."""
    with store_errors(path):
        write_whole(path, content, flush=flush, inside=inside)


def create(path: Path, content: bytes) -> bool:
    """Create a file with its content unless it exists; of several processes that try, on any machine, one gets True."""
    aside = aside_of(path)
    try:
        aside.write_bytes(content)
        try:
            os.link(aside, path)
        except FileExistsError:
            return os.stat(aside).st_nlink == 2  # NFS may have done it and lost the answer
        except OSError:  # a filesystem without links: the file is there first, its content a moment later
            try:
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                return False
            os.write(descriptor, content)
            os.close(descriptor)
        return True
    finally:
        aside.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what dead writers have left under a folder; only its owner may."""
    for left in folder.rglob(f".*{SUFFIX}"):
        left.unlink(missing_ok=True)


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turn errors of the operating system, and of libraries that write files, into ones that name the file and the remedy."""
    try:
        yield
    except LandscopeError:
        raise
    except Exception as error:
        if is_full(error):
            raise StoreFullError(
                f"no space is left to write {path} ({error}). What was there before is untouched. Free some space, or "
                "raise the quota, and start again: finished runs are kept, and the others resume from their checkpoints"
            ) from error
        if isinstance(error, OSError):
            raise StoreError(
                f"cannot write {path}: {error}. Is the store's folder writable, and still there?"
            ) from error
        raise


def is_full(error: BaseException) -> bool:
    """Whether an error, or what caused it, says that a disk or quota is used up.

    >>> is_full(OSError(errno.ENOSPC, "No space left on device")), is_full(OSError(errno.EACCES, "Permission denied"))
    (True, False)
    """
    seen: BaseException | None = error
    while seen is not None:
        # writers in other languages (safetensors) give words only
        if (
            getattr(seen, "errno", None) in FULL
            or "No space left on device" in str(seen)
            or isinstance(seen, StoreFullError)
        ):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
