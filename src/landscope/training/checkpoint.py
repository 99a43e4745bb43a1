"""Files of tensors that are there whole or not at all.

A checkpoint is one safetensors file: every tensor of the state, and everything else as JSON in its header (or, where a long
history does not fit there, as a tensor of bytes), with a checksum over both. It is written aside, flushed to the disk and
renamed; the one before is kept, so that whatever happens to the last one (a full disk, a broken machine) a run goes on from a
state that was whole.
"""

from __future__ import annotations

import json
import os
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from landscope.core.errors import TrainingError
from landscope.core.files import check_regular, write_whole, writing
from landscope.core.json_text import parse_json
from landscope.core.schema import Plain

__all__ = ["forget_state", "load_state", "read_tensors", "save_state", "write_json", "write_tensors"]

STATE, PREVIOUS = "state.safetensors", "state.previous.safetensors"
_KEY, _SUM = "landscope", "checksum"
_LARGEST_HEADER = 2**24
"""A header may have 100 MB; longer texts are stored as bytes."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], plain: Plain = None) -> None:
    """Write tensors and plain values, whole or not at all."""
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(plain, sort_keys=True)
    if len(text) > _LARGEST_HEADER:
        own[_KEY] = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        text = ""
    with writing(path) as aside:
        save_file(own, aside, metadata={_KEY: text, _SUM: str(_checksum(own, text))})


def write_json(path: Path, value: Plain) -> None:
    """Write a JSON file, whole or not at all."""
    write_whole(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Plain]:
    """What `write_tensors` wrote; a file that is damaged is refused."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        text = about[_KEY]
        if about[_SUM] != str(_checksum(tensors, text)):
            raise ValueError("its checksum is wrong")
        plain = parse_json(text or tensors.pop(_KEY).numpy().tobytes(), finite=False)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise TrainingError(f"{path} is damaged or was not written by landscope: {error}") from error
    return tensors, plain


def save_state(folder: Path, tensors: Mapping[str, Tensor], plain: Plain) -> None:
    """Write the state of a run, keeping the one before."""
    aside = folder / f"{STATE}.new"
    write_tensors(aside, tensors, plain)
    if (folder / STATE).exists():
        os.replace(folder / STATE, folder / PREVIOUS)
    os.replace(aside, folder / STATE)
    _flush_folder(folder)


def load_state(folder: Path) -> tuple[dict[str, Tensor], Plain] | None:
    """The last state of a run, or the one before where that is damaged; `None` where there is none."""
    for name in (STATE, PREVIOUS):
        if not (folder / name).exists():
            continue
        try:
            return read_tensors(folder / name)
        except TrainingError as error:
            warnings.warn(f"{error}. The run goes on from the checkpoint before it, or from the start.", stacklevel=2)
    return None


def forget_state(folder: Path) -> None:
    """Remove the state of a run."""
    for name in (STATE, PREVIOUS):
        (folder / name).unlink(missing_ok=True)


def _checksum(tensors: Mapping[str, Tensor], text: str) -> int:
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, zlib.crc32(name.encode(), total))
    return total


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
