"""Files of the store: there whole or not at all, with errors that name the file and the remedy.

Whoever dies while writing leaves the old file, and a hidden `.….aside` that the next owner of the folder sweeps up.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from landscope.core import files
from landscope.core.errors import LandscopeError, StoreError, StoreFullError

__all__ = ["create", "is_full", "store_errors", "sweep", "write_whole", "writing"]

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def writing(path: Path, *, flush: bool = True) -> Iterator[Path]:
    """A path to write to; what was written there becomes `path` when the block ends without an error (see `core.files`)."""
    with store_errors(path), files.writing(path, flush=flush) as aside:
        yield aside


def write_whole(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Write a file, whole or not at all."""
    with store_errors(path):
        files.write_whole(path, content, flush=flush)


def create(path: Path, content: bytes) -> bool:
    """Make a file, content and all, unless there is one; of several processes that try, on any machine, one gets True."""
    aside = files.aside_of(path)
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
    """Remove what writers that died have left under a folder; only its owner may."""
    for left in folder.rglob(f".*{files.SUFFIX}"):
        left.unlink(missing_ok=True)


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Errors of the operating system, and of libraries that write files, as ones that name the file and the remedy."""
    try:
        yield
    except LandscopeError:
        raise
    except Exception as error:
        if is_full(error):
            raise StoreFullError(
                f"no room is left to write {path} ({error}). What was there before is untouched. Free some room, or "
                "raise the quota, and start again: finished runs are kept, half-done ones go on from their checkpoint"
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
        # Writers in other languages (safetensors) put the error into words.
        if (
            getattr(seen, "errno", None) in FULL
            or "No space left on device" in str(seen)
            or isinstance(seen, StoreFullError)
        ):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
