"""What is checked of the private copy before its numbers are believed.

It must stay the same from pass to pass, its gradient must be that of the loss, and it must compute with its own tensors:
what reads the user's would be a constant, and would change with training. For that a forward pass is watched on a few rows.
No operation may read the storage of a tensor of the user's model, nor of a measured parameter of the copy where another
value was put in for it: a closure, a list or a global name holds on to those. A loss may read them as constants (a fixed
reference under `no_grad`), but no gradient may lead there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from landscope.core.errors import LossError, ModelError
from landscope.core.text import some
from landscope.core.torch_fixes import LightDispatchMode
from landscope.probe.batches import Batch, map_tensors, tensors_in
from landscope.probe.checks import output_tensors, quantised_layers
from landscope.probe.copying import place
from landscope.probe.first_derivatives import (
    checked_gradient,
    graph_behind,
    reaches_the_loss,
    refuse_half_precision,
)
from landscope.probe.hooks import drop_idle_hooks

if TYPE_CHECKING:
    from landscope.probe.probe import Probe


# Does the point stay where it is? A forward pass may change what it computes with: weights, statistics, counters.
#
# Parameters and buffers are compared bit for bit with what they were. A buffer that changes without changing any output (a
# counter) is harmless; anything else would make each pass that of another function. So would a loss that keeps a state.


REPEATS = 4
"""Values of a loss within which it must not drift; the model itself has about as many passes between two looks at it."""
PARTS = 64
"""A tensor is compared through the sums of the bits of this many parts of it."""
AT_ONCE = 2**22
"""Numbers that are added up in one operation."""
ALLOWED_UNITS = 1000
"""Relative change of outputs in units of the machine epsilon that kernels with varying order of summation may cause."""
ALLOWED_OF_A_LOSS = 16
"""The same for the value of a loss on a CPU, of outputs that are the same to the bit."""


@dataclass
class _Record:
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    outputs: list[Tensor] | None = None
    losses: dict[int, tuple[Callable[..., Tensor], Tensor]] = field(default_factory=dict)
    """For each loss function, by its id, its value on the first rows."""


_records: WeakKeyDictionary[nn.Module, _Record] = WeakKeyDictionary()


def take_record(probe: Probe) -> None:
    """Take down what the model is now, if that was not done before: `check_still` compares with it."""
    _record(probe.module(""))


@contextmanager
def still(probe: Probe) -> Iterator[None]:
    """Refuse the work within where the model has moved by then."""
    take_record(probe)
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
    if len(words) > AT_ONCE:  # they are held as 64-bit integers while they are added up
        return torch.stack([part.sum(dtype=torch.int64) for part in words.chunk(PARTS)])
    left = -len(words) % PARTS
    return torch.nn.functional.pad(words, (0, left)).view(PARTS, -1).sum(1, dtype=torch.int64)


def check_still(probe: Probe) -> object:
    """Refuse a model whose parameters, or whose outputs for the first rows, are not what they were when it was recorded.

    What it returns for these rows is given back.
    """
    model = probe.module("")
    record = _record(model)
    now = _sums(model)
    _refuse_moved([name for name, sums in record.parameters.items() if not torch.equal(sums, now[name])])
    batch = probe.few
    with probe.measuring(), torch.no_grad():
        held = dict(model.named_buffers())
        changed = [name for name, old in record.buffers.items() if name in held and not _same(old, held[name])]
        before = _recorded_outputs(probe)
        returned = probe.call(probe.params, batch)
        change = _change(before, output_tensors(returned))
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
        _check_loss_is_still(probe, record, returned)
    return returned


def _recorded_outputs(probe: Probe) -> list[Tensor]:
    """The outputs for the first rows, with copies of the buffers as they were recorded."""
    record = _record(probe.module(""))
    if record.outputs is None:
        values = {**probe.params, **{name: value.clone() for name, value in record.buffers.items()}}
        with probe.measuring(), torch.no_grad():
            record.outputs = [t.detach().clone() for t in output_tensors(probe.call(values, probe.few))]
    return record.outputs


def _refuse_moved(parameters: list[str]) -> None:
    if parameters:
        raise ModelError(
            f"the forward pass, or a hook, changes the parameter {', '.join(parameters)}: every pass would measure other "
            f"weights. Remove the update from the model that you measure."
        )


def _check_loss_is_still(probe: Probe, record: _Record, returned: object) -> None:
    """Refuse a loss whose value for the same outputs is not what it was."""
    loss, batch = probe.loss, probe.few
    with probe.measuring(), torch.no_grad():
        outputs = probe.compared(returned)

        def value() -> Tensor:
            return loss.function(outputs, probe.second(batch)).detach().clone()

        if id(loss.function) not in record.losses:
            record.losses[id(loss.function)] = loss.function, value()
            for _ in range(REPEATS - 1):
                value()
        change = _change([record.losses[id(loss.function)][1]], [value()])
    allowed = ALLOWED_OF_A_LOSS if probe.device.type == "cpu" else ALLOWED_UNITS
    if change > allowed * torch.finfo(probe.dtype).eps:
        raise LossError(
            f"the loss {loss.name!r} drifts from call to call for the same outputs (relative change {change:.2g}): it keeps a "
            f"state, such as a moving average. A sharpness is defined for a fixed loss. Switch the updates off (criterion.eval() "
            f"where they depend on self.training), or pass a loss without them."
        )


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


def guarded(probe: Probe, original: nn.Module, settle: Callable[[], None]) -> tuple[str, ...]:
    """Settle what is open at a new probe, and refuse a copy that is not what was given; notices about what was found."""
    if probe.loss.known:  # it reads outputs and targets, nothing that a hook may have kept
        drop_idle_hooks(probe)
    take_record(probe)
    settle()
    if not probe.loss.known:
        drop_idle_hooks(probe)
    _recorded_outputs(probe)
    check_isolated(probe, original, probe.few)
    returned = check_still(probe)
    notices = checked_gradient(probe, probe.few)
    if notices and (layers := quantised_layers(original)):
        raise ModelError(
            f"{notices[0]}, because {some(layers)} let no gradient through: they are quantised. Measure the model before "
            f"its quantisation, or only parameters that come after those layers: params=[…]."
        )
    if notices and not reaches_the_loss(probe):
        raise ModelError(
            f"the loss does not depend on any measured parameter ({some(probe.params)}): every derivative would be 0. A "
            f"tensor that was computed from them earlier is used in their place (self.w = self.weight.view(…) in __init__, "
            f"weights cached or merged for eval mode), or they belong to a part of the model that is not called. Compute such "
            f"tensors in the forward pass, switch the cache off, or measure other parameters: params=…."
        )
    notices += _which_output(probe, returned)
    if not probe.loss.known and not probe.loss.unexplained and _reads_past_the_outputs(probe, probe.few):
        notices += (
            "the loss reads something that the model computes besides its outputs: the GGN and the Fisher matrix leave that "
            "part out",
        )
    return notices


def _which_output(probe: Probe, outputs: object) -> tuple[str, ...]:
    """A word on models that return several tensors of which the loss takes the first."""
    if probe.loss.structured:
        return ()
    if not isinstance(outputs, (tuple, list)) or hasattr(outputs, "logits") or len(output_tensors(outputs)) < 2:
        return ()
    return (
        f"the model returns {len(output_tensors(outputs))} tensors; the loss takes the first, of shape {tuple(outputs[0].shape)}",
    )


def check_isolated(probe: Probe, original: nn.Module, batch: Batch) -> None:
    """Refuse a model or a loss that reads tensors which are not those it is given."""
    theirs = {**dict(original.named_parameters()), **dict(original.named_buffers())}
    given = {place(tensor) for tensor in tensors_in(batch.raw)}
    watched = {
        at: name
        for tensors in (theirs, probe.params)
        for name, tensor in tensors.items()
        if (at := place(tensor)) is not None and at not in given
    }
    with probe.measuring(), torch.no_grad():
        values = {name: value.clone() for name, value in probe.params.items()}
        before = _kept(probe.module(""))
        outputs, by_model = _reading(lambda: probe.outputs(values, batch), watched)
        new = {name for name, tensor in _kept(probe.module("")).items() if tensor is not before.get(name)}
        # no graph shows parameters without a gradient, nor always what a forward pass kept
        unseen = {name: theirs[name] for name in probe.params if name in theirs and not theirs[name].requires_grad}
        unseen |= {name: tensor for name, tensor in _kept(original).items() if name in new}
        places = {at: name for name, tensor in unseen.items() if (at := place(tensor)) and at not in given}
        _, by_loss = _reading(lambda: probe.loss_of(outputs, batch), places)
    by_loss += _differentiated(probe, original, batch)
    if by_model:
        raise ModelError(
            f"the forward pass reads {some(by_model)} past the module that holds it, so that a copy of the model still uses "
            f"the original's tensor: a forward that was replaced by a function, a list of parameters, or a global name. "
            f"Landscope measures a private copy. Define the forward pass as a method of a module that looks its parameters "
            f"up on self, or undo the replacement before measuring (accelerate: unwrap_model(model, "
            f"keep_fp32_wrapper=False); hooks: remove_hook_from_module(model, recurse=True))."
        )
    if by_loss:
        raise ModelError(
            f"the loss function reads {some(by_loss)} of your model directly, or something that was computed from it before. "
            f"Landscope moves the parameters of a private copy, for which that is a constant: a penalty on weights would have "
            f"no gradient. Return it from the model's forward pass together with the outputs, or leave it out; a fixed "
            f"reference belongs under torch.no_grad()."
        )


def _kept(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a model's layers keep as plain attributes, by name."""
    return {
        f"{name}.{key}" if name else key: value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, Tensor)
    }


def _differentiated(probe: Probe, original: nn.Module, batch: Batch) -> list[str]:
    """The measured parameters that the loss has a gradient for other than through the values that were put in for them."""
    held = {name: p for name, p in probe.module("").named_parameters() if name in probe.params}
    theirs = {name: p for name, p in original.named_parameters() if name in probe.params}
    with probe.measuring():
        leaves = {name: value.detach().clone().requires_grad_() for name, value in probe.params.items()}
        try:
            for parameter in held.values():
                parameter.requires_grad_()
            loss = probe.loss_sum(leaves, batch)
        except (RuntimeError, NotImplementedError, TypeError):  # what needs a gradient says that there is none
            return []
        finally:
            for parameter in held.values():
                parameter.requires_grad_(False)
        refuse_half_precision(loss, probe)
        _refuse_moved([name for name, leaf in leaves.items() if not torch.equal(leaf, probe.params[name])])
    names = {id(parameter): name for tensors in (held, theirs) for name, parameter in tensors.items()}
    found = {names.get(id(getattr(node, "variable", None))) for node in graph_behind(loss)}
    return [name for name in probe.params if name in found]


def _reads_past_the_outputs(probe: Probe, batch: Batch) -> bool:
    """Whether the loss still depends on measured parameters where the outputs are constants."""
    with probe.measuring():
        leaves = {name: value.detach().clone().requires_grad_() for name, value in probe.params.items()}
        try:
            outputs = map_tensors(torch.detach, probe.outputs(leaves, batch))
            if any(
                tensor.requires_grad for tensor in output_tensors(outputs)
            ):  # in something that cannot be looked into
                return False
            loss = probe.loss_of(outputs, batch)
        except (RuntimeError, NotImplementedError, TypeError):
            return False
    ours = set(map(id, leaves.values()))
    return any(id(getattr(node, "variable", None)) in ours for node in graph_behind(loss))


def _reading(function: Callable[[], Any], watched: Mapping[int, str]) -> tuple[Any, list[str]]:
    """What a function returns, and which of the watched tensors it reads."""
    mode = _Reads(watched)
    try:
        with mode:
            result = function()
    except (RuntimeError, NotImplementedError, TypeError):  # an operation that cannot be watched
        return function(), []
    return result, list(dict.fromkeys(mode.found))


class _Reads(LightDispatchMode):
    """Notes which of the watched storages operations read."""

    def __init__(self, watched: Mapping[int, str]) -> None:
        super().__init__()
        self.watched, self.found = watched, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs or {})):
            if isinstance(leaf, Tensor) and (at := place(leaf)) in self.watched:
                self.found.append(self.watched[at])  # type: ignore[index]
        return func(*args, **(kwargs or {}))
