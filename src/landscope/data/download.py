"""Fetch one file over HTTP: resumed where it stopped, its checksum verified, renamed into place when it is whole.

The bytes go to `NAME.part` beside the target. A broken transfer leaves that file, and the next attempt asks for the
rest with a `Range` header. Only a file whose checksum is right ever gets its final name.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from landscope.core.errors import DamagedFileError, DownloadError

__all__ = ["Progress", "fetch"]

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
        if error.code == 416 and start:  # nothing is left to send, or the part is too long: the checksum will tell
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
    state = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            state.update(chunk)
    return f"{algorithm}:{state.hexdigest()}"


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
    place it must be put and the checksum, for those who carry it there by hand) and `DamagedFileError` if what came is
    not what was published; then no file is left behind.
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
            came = _digest(part, checksum.partition(":")[0])
            if came == checksum:
                os.replace(part, target)
                return target
            part.unlink()
            wrong = f"{url} gave a file with checksum {came} where {checksum} was published"
            if not resumed:  # a part of an older file may have been completed by a newer one: once more, from the start
                break
    if wrong:
        raise DamagedFileError(f"{target}: {wrong}. It was removed.")
    raise DownloadError(
        f"{target.name} could not be fetched. Put it at {target} yourself (checksum {checksum}), or run this again "
        "to go on where it stopped. What was tried:\n  " + "\n  ".join(failures)
    )
