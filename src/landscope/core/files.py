"""Files that are there whole or not at all.

A file is written under another name in its own folder, flushed to the disk, and renamed; then the folder is flushed, so that
a power cut after the return cannot undo it. Whoever dies on the way leaves the old file, and a hidden `.….aside`. Whichever
library writes it, the file has the mode of any new file there: some make theirs for one user alone, and a colleague must be
able to go on.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["SUFFIX", "aside_of", "write_whole", "writing"]

SUFFIX = ".aside"


def aside_of(path: Path) -> Path:
    """A hidden name in the same folder that nobody else has."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{SUFFIX}")


@contextmanager
def writing(path: Path, *, flush: bool = True) -> Iterator[Path]:
    """A path to write to; what was written there becomes `path` when the block ends without an error.

    Without `flush` a power cut, though no death of a process, may leave it empty: for what can be written again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with writing(Path(folder) / "weights" / "final.bin") as aside:
    ...         _ = aside.write_bytes(b"12")
    ...     [file.name for file in (Path(folder) / "weights").iterdir()]
    ['final.bin']
    """
    with _renamed(path, flush) as aside:
        yield aside
        mode = _mode_of_new(path)
        if stat.S_IMODE(aside.stat().st_mode) != mode:
            aside.chmod(mode)


@contextmanager
def _renamed(path: Path, flush: bool) -> Iterator[Path]:
    aside = aside_of(path)
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


def write_whole(path: Path, content: bytes, *, flush: bool = True) -> None:
    """Write a file, whole or not at all."""
    with _renamed(path, flush) as aside, aside.open("xb", buffering=0) as file:
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
