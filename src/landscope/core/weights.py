"""Weights from a file into a model: safetensors, or a state dict that torch wrote. No code in a file is ever run."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from landscope.core.errors import CheckpointError
from landscope.core.files import nearest_name
from landscope.core.text import some

_NESTED = ("state_dict", "model_state_dict", "model")
_WRAPPERS = ("module.", "_orig_mod.")
_MOST_UNPACKED = 4
_ALWAYS_UNPACKED = 64 * 2**20
"""An archive may expand to this many times its size, and to this many bytes in any case."""


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU, without the prefixes that DataParallel and torch.compile add."""
    if not path.is_file():
        hint = nearest_name(path) or "; expected a checkpoint (safetensors or torch.save)"
        raise CheckpointError(f"{path}: no such file{hint}")
    with path.open("rb") as file:
        head = file.read(9)
    if len(head) < 9:
        raise CheckpointError(
            f"{path}: has {len(head)} bytes, so it is neither a safetensors file nor one that torch.save wrote; it was cut off "
            "while it was written or copied. Get it again"
        )
    content = _safetensors(path) if head[8:] == b"{" else _torch(path)
    for key in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if isinstance(content, nn.Module) or not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{path}: expected a state dict, found {_words(content)}: save model.state_dict()")
    weights = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if len(weights) < len(content):
        others = [str(name) for name in content if str(name) not in weights]
        raise CheckpointError(
            f"{path}: {some(others)} are not tensors. Save model.state_dict(), alone or under 'state_dict'"
        )
    if odd := [f"{name} ({kind})" for name, value in weights.items() if (kind := _odd_kind(value))]:
        raise CheckpointError(
            f"{path}: expected dense tensors with values, found {some(odd)}. Save the state dict of a model with plain weights"
        )
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def _safetensors(path: Path) -> object:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is damaged or not a safetensors file ({_first_line(error)})") from error


class _Bounded(io.BufferedReader):
    """A file that never allocates more than it holds, whatever length its content claims."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > io.DEFAULT_BUFFER_SIZE:
            size = min(size, max(0, os.fstat(self.fileno()).st_size - self.tell()))
        return super().read(size)


def _check_unpacked(path: Path) -> None:
    """Refuse an archive that expands to far more than its size: torch would allocate all of it."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except Exception:  # not an archive, or a damaged one, which torch finds as well
        return
    size = path.stat().st_size
    if unpacked > _MOST_UNPACKED * size + _ALWAYS_UNPACKED:
        raise CheckpointError(
            f"{path}: has {size / 2**20:,.1f} MiB and unpacks to {unpacked / 2**20:,.0f} MiB; expected at most {_MOST_UNPACKED} "
            "times its size. torch.save does not compress: save the weights with it again"
        )


def _torch(path: Path) -> object:
    _check_unpacked(path)
    try:
        if zipfile.is_zipfile(path) and path.suffix != ".safetensors":  # which torch would take for what it says
            return torch.load(path, map_location="cpu", weights_only=True)
        with _Bounded(path.open("rb", buffering=0)) as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch says the same of a whole pickled model and of a file that is not a pickle at all.
        if zipfile.is_zipfile(path):
            raise CheckpointError(
                f"{path}: holds more than tensors, such as a whole pickled model; that is code, which is not run. "
                "Save model.state_dict() instead"
            ) from error
        raise CheckpointError(f"{path}: is neither a safetensors file nor one that torch.save wrote") from error
    except Exception as error:  # torch and safetensors may raise any error on a broken file
        raise CheckpointError(
            f"{path}: is damaged, or neither a safetensors file nor one that torch.save wrote ({_first_line(error)})"
        ) from error


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, remedy: str) -> None:
    """Put weights into a model; every name and shape must match. `remedy` says what the reader may have got wrong.

    >>> load_weights(nn.Linear(2, 1), {"weight": torch.ones(1, 3)}, remedy="Look at --model")
    Traceback (most recent call last):
    landscope.core.errors.CheckpointError: the checkpoint does not fit the model: missing: bias; other shapes: weight (1×3
    in the checkpoint, 1×2 in the model). Look at --model
    """
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    # A tensor that two layers share is stored once by safetensors.
    given = {own[name].data_ptr() for name in weights if name in own and own[name].numel()}
    missing = [name for name in own if name not in weights and own[name].data_ptr() not in given]
    unexpected = [name for name in weights if name not in own]
    reshaped = [
        f"{name} ({_shape(value)} in the checkpoint, {_shape(own[name])} in the model)"
        for name, value in weights.items()
        if name in own and own[name].shape != value.shape
    ]
    learnt = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    retyped = [
        f"{name} ({_dtype(value)} in the checkpoint, {_dtype(own[name])} in the model)"
        for name, value in weights.items()
        if name in own and not _keeps_values(value, own[name], name in learnt)
    ]
    wrong = {"missing": missing, "unexpected": unexpected, "other shapes": reshaped, "other types": retyped}
    if any(wrong.values()):
        found = "; ".join(f"{what}: {some(names)}" for what, names in wrong.items() if names)
        raise CheckpointError(f"the checkpoint does not fit the model: {found}. {remedy}")
    model.load_state_dict(dict(weights), strict=False)


def _odd_kind(value: Tensor) -> str:
    """What makes a tensor unfit to be copied into a model; nothing where it is fit."""
    if value.is_meta:
        return "on the meta device, without values"
    if value.is_quantized:
        return "quantised"
    if value.is_nested:
        return "nested"
    return "" if value.layout is torch.strided else str(value.layout).removeprefix("torch.")


def _keeps_values(value: Tensor, own: Tensor, learnt: bool) -> bool:
    """Whether values mean the same in the model's type: imaginary parts would go, and codes be taken for weights."""
    if value.is_complex():
        return own.is_complex()
    return not learnt or value.is_floating_point() or not (own.is_floating_point() or own.is_complex())


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"


def _words(content: object) -> str:
    return "nothing" if isinstance(content, Mapping) else f"a {type(content).__name__}"
