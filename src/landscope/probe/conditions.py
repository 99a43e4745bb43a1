"""The conditions under which a model is evaluated and differentiated, whatever the caller has switched on or off.

Gradients on, autocast and inference mode off, attention through kernels that have second derivatives, full float32
precision unless TF32 is asked for, torch's own default type and device, global random state preserved. What a forward pass
switches on by itself is undone as well: autocast would round to half precision, and activation checkpointing would run
layers a second time when the parameters that were put in are gone. Everything is put back afterwards, and several threads
may be inside at once.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize
from torch.utils import checkpoint as checkpointing

from landscope.core.errors import ModelError
from landscope.core.memory import at_most
from landscope.core.seeding import preserved_rng
from landscope.core.shared_state import Precision, entered, plain_arithmetic
from landscope.core.text import first_line


@contextmanager
def measuring(
    device: torch.device,
    precision: Precision = "highest",
    recurrent: bool = False,
    dtype: torch.dtype | None = None,
    allowed: tuple[int, int] | None = None,
) -> Iterator[None]:
    """Evaluate inside this context; it can be nested.

    `recurrent` switches cuDNN and oneDNN off: their recurrent layers have no forward or second derivatives, and cuDNN's no
    backward pass in eval mode. `dtype` is the precision that is measured in: a default type other than that counts as not set.
    `allowed` bounds the memory (`landscope.core.memory.at_most`).
    """
    with ExitStack() as stack:
        stack.enter_context(entered("warnings", _fewer_warnings))
        stack.enter_context(plain_arithmetic(device, dtype, precision))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(preserved_rng())
        stack.enter_context(entered("attention", lambda: sdpa_kernel(SDPBackend.MATH)))
        stack.enter_context(entered("fast path", _no_encoder_fast_path))
        stack.enter_context(entered("parametrisations", _no_cached_weights))
        if allowed is not None:
            stack.enter_context(at_most(allowed))
        if recurrent:
            stack.enter_context(entered("mkldnn", lambda: _switched_off(torch.backends.mkldnn)))
            stack.enter_context(entered("cudnn", lambda: _switched_off(torch.backends.cudnn)))
        stack.enter_context(entered("forward passes", _plain_forward_passes))
        stack.enter_context(_in_this_thread())
        yield


def usable_device(name: str | torch.device) -> torch.device:
    """A device that tensors can be put on.

    >>> usable_device("gpu")
    Traceback (most recent call last):
    landscope.core.errors.ModelError: device 'gpu' cannot be used: Expected one of cpu, cuda, ...
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(f"device '{name}' cannot be used: {first_line(error)}. See: landscope doctor") from error
    return device


@contextmanager
def _fewer_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*There is a performance drop because we have not yet implemented")
        warnings.filterwarnings("ignore", message=".*torch.jit.script")  # torch's own, at the first forward derivative
        yield


@contextmanager
def _switched_off(backend: Any) -> Iterator[None]:
    """A backend off; its own `flags` context would touch the TF32 settings too."""
    before = backend.enabled
    backend.enabled = False
    try:
        yield
    finally:
        backend.enabled = before


@contextmanager
def _no_encoder_fast_path() -> Iterator[None]:
    """`nn.TransformerEncoderLayer` in eval mode would take a fused path without derivatives."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _no_cached_weights() -> Iterator[None]:
    """`parametrize.cached()` would give every pass the weights that the first one computed."""
    before, parametrize._cache_enabled = parametrize._cache_enabled, 0
    try:
        yield
    finally:
        parametrize._cache_enabled = before


# What forward passes switch on themselves

_here = threading.local()


@contextmanager
def _in_this_thread() -> Iterator[None]:
    """Other threads may train meanwhile: for them nothing changes."""
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1


def _measuring_here() -> bool:
    return getattr(_here, "depth", 0) > 0


@contextmanager
def _plain_forward_passes() -> Iterator[None]:
    """Autocast that a forward pass enters stays off, and checkpointed layers are called straight."""
    names = ("CheckpointFunction", "_checkpoint_without_reentrant_generator")
    stand_ins = (_straight, _nothing_around)
    enter = torch.autocast.__enter__
    found = {name: getattr(checkpointing, name) for name in names if hasattr(checkpointing, name)}
    torch.autocast.__enter__ = _staying_off(enter)  # type: ignore[method-assign]
    for name, make in zip(names, stand_ins, strict=True):
        if name in found:
            setattr(checkpointing, name, make(found[name]))
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]
        for name, value in found.items():
            setattr(checkpointing, name, value)


def _staying_off(enter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`torch.autocast.__enter__` that leaves autocast off where something is measured; `__exit__` puts back what was."""

    def __enter__(self: Any) -> Any:  # noqa: N807
        result = enter(self)
        if _measuring_here():
            torch.set_autocast_enabled(self.device, False)
        return result

    return __enter__


def _straight(function: Any) -> Any:
    """The face of checkpointing that runs backward passes within backward passes, without that."""

    class CheckpointFunction(function):  # type: ignore[misc]
        @classmethod
        def apply(cls, run: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            return run(*args) if _measuring_here() else function.apply(run, preserve, *args)

    return CheckpointFunction


def _nothing_around(around: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
    """What checkpointing does before and after it calls a layer, or nothing."""

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        if _measuring_here():
            yield None
        else:
            yield from around(*args, **kwargs)

    return generator
