"""Content of a file, zipped or not, up to a size: a few kilobytes of gzip can hold gigabytes."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from landscope.core.errors import DamagedFileError

__all__ = ["read_unzipped"]

_CHUNK = 2**20


def read_unzipped(path: Path, largest: int) -> bytes:
    """Content of a file, unzipped if it is gzip; `DamagedFileError` where that is more than `largest` bytes.

    Memory is taken as the content comes, so that a file is refused before it fills the machine.
    """
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    if not zipped:
        if path.stat().st_size > largest:
            raise DamagedFileError(f"{path}: has {path.stat().st_size:,} bytes; expected {_words(largest)} at most")
        return path.read_bytes()
    chunks: list[bytes] = []
    size = 0
    try:
        with gzip.open(path) as stream:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                if size > largest:
                    raise DamagedFileError(f"{path}: unzips to more than {_words(largest)}, the most that is read")
                chunks.append(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedFileError(f"{path}: cannot be unzipped ({error}); it is truncated or damaged") from error
    return b"".join(chunks)


def _words(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**29 else f"{size / 2**20:.3g} MiB"
