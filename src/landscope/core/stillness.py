"""Does the point stay where it is? A forward pass may change what it computes with: weights, statistics, counters.

Parameters and buffers are compared bit for bit with what they were. A buffer that changes without changing any output (a
counter) is harmless; anything else would make each pass that of another function. So would a loss that keeps a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from landscope.core.batches import Batch
from landscope.core.checks import output_tensors
from landscope.core.errors import LossError, ModelError

if TYPE_CHECKING:
    from landscope.core.probe import Probe

__all__ = ["check_still", "still"]

REPEATS = 4
"""Passes at construction within which outputs must not drift."""
PARTS = 64
"""A tensor is compared through the sums of the bits of so many parts of it."""
ALLOWED_UNITS = 1000
"""Relative change of outputs in units of the machine epsilon that kernels with varying order of summation may cause."""


@dataclass
class _Record:
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    outputs: list[Tensor] | None = None
    losses: dict[int, tuple[Callable[..., Tensor], Tensor]] = field(default_factory=dict)
    """For each loss function, by its id, its value on the first rows."""


_records: WeakKeyDictionary[nn.Module, _Record] = WeakKeyDictionary()


@contextmanager
def still(probe: Probe) -> Iterator[None]:
    """Refuse the work within where the model has moved by then."""
    _record(probe.module(""))
    yield
    check_still(probe)


def _record(model: nn.Module) -> _Record:
    if model not in _records:
        buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        _records[model] = _Record(_sums(model), buffers)
    return _records[model]


def _sums(model: nn.Module) -> dict[str, Tensor]:
    return {name: _bits(parameter) for name, parameter in model.named_parameters()}


def _bits(tensor: Tensor) -> Tensor:
    """Sums of the bits of parts of a tensor, as integers: equal where the tensor is."""
    if not tensor.numel() or tensor.layout != torch.strided:
        return torch.zeros(0)
    whole = tensor.detach().contiguous().flatten()
    words = whole.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(whole.element_size(), torch.int64))
    return torch.stack([part.sum(dtype=torch.int64) for part in words.chunk(PARTS)])


def check_still(probe: Probe) -> None:
    """Refuse a model whose parameters, or whose outputs for the first rows, are not what they were when it was recorded."""
    model = probe.module("")
    record = _record(model)
    now = _sums(model)
    moved = [name for name, sums in record.parameters.items() if not torch.equal(sums, now[name])]
    if moved:
        raise ModelError(
            f"the forward pass, or a hook, changes the parameter {', '.join(moved)}: every pass would measure other weights. "
            f"Remove the update from the model that you measure."
        )
    batch = probe.few
    with probe.measuring(), torch.no_grad():
        held = dict(model.named_buffers())
        changed = [name for name, old in record.buffers.items() if name in held and not _same(old, held[name])]
        if record.outputs is None:
            record.outputs = _outputs(probe, batch, record.buffers)
            for _ in range(REPEATS - 1):
                _outputs(probe, batch, {})
        change = _change(record.outputs, _outputs(probe, batch, {}))
    eps = torch.finfo(probe.dtype).eps
    if change > (16 if changed else ALLOWED_UNITS) * eps:
        what = (
            f"its buffer {', '.join(changed)} changes with every pass" if changed else "it keeps something that changes"
        )
        raise ModelError(
            f"the outputs for the same rows drift from pass to pass (relative change {change:.2g}): {what}. A sharpness is "
            f"defined for a fixed function. Update statistics in training mode only (if self.training: …), which is off here."
        )
    if not probe.loss.known:
        _check_loss_is_still(probe, record)


def _check_loss_is_still(probe: Probe, record: _Record) -> None:
    """Refuse a loss whose value for the same outputs is not what it was."""
    loss, batch = probe.loss, probe.few
    with probe.measuring(), torch.no_grad():
        outputs = probe.outputs(probe.params, batch)

        def value() -> Tensor:
            return loss.function(outputs, probe.second(batch)).detach().clone()

        if id(loss.function) not in record.losses:
            record.losses[id(loss.function)] = loss.function, value()
            for _ in range(REPEATS - 1):
                value()
        change = _change([record.losses[id(loss.function)][1]], [value()])
    if change > ALLOWED_UNITS * torch.finfo(probe.dtype).eps:
        raise LossError(
            f"the loss {loss.name!r} drifts from call to call for the same outputs (relative change {change:.2g}): it keeps a "
            f"state, such as a moving average. A sharpness is defined for a fixed loss. Switch the updates off (criterion.eval() "
            f"where they depend on self.training), or pass a loss without them."
        )


def _outputs(probe: Probe, batch: Batch, buffers: dict[str, Tensor]) -> list[Tensor]:
    """The outputs of the first rows, with copies of the given buffers put in."""
    values = {**probe.params, **{name: value.clone() for name, value in buffers.items()}}
    return [tensor.detach().clone() for tensor in output_tensors(probe.call(values, batch))]


def _same(old: Tensor, new: Tensor) -> bool:
    return old.shape == new.shape and torch.equal(_bits(old), _bits(new))


def _change(before: list[Tensor], after: list[Tensor]) -> float:
    """The largest relative change of what is finite."""
    worst = 0.0
    for a, b in zip(before, after, strict=False):
        if a.shape == b.shape and a.is_floating_point() and a.numel():
            scale = float(a[a.isfinite()].abs().max()) if bool(a.isfinite().any()) else 1.0
            difference = (a - b)[a.isfinite() & b.isfinite()].abs()
            worst = max(worst, float(difference.max()) / (scale or 1.0) if difference.numel() else 0.0)
    return worst
