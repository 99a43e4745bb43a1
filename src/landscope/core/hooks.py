"""Hooks of the user's on the private copy: those that do nothing to the outputs go, those that make the function stay.

A hook that records activations or logs would run on every pass of every measure. One that computes a weight (weight norm,
spectral norm, pruning) or changes an output is part of the model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from landscope.core.batches import tensors_in
from landscope.core.seeding import generator, normal

__all__ = ["drop_idle_hooks"]

NEARBY = 1e-2
"""How far the parameters are moved, relative to each: a hook that computes a weight from others shows there."""

Call = tuple[tuple[object, ...], dict[str, object]]


def drop_idle_hooks(model: nn.Module, call: Call) -> None:
    """Remove, in place, backward hooks and those forward hooks without which the outputs stay bit for bit the same."""
    found: list[tuple[OrderedDict[int, Any], int]] = []
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name in ("_backward_hooks", "_backward_pre_hooks"):
            getattr(module, name).clear()
        module._is_full_backward_hook = None
        found += [(hooks, key) for hooks in (module._forward_hooks, module._forward_pre_hooks) for key in hooks]
    if not found:
        return
    moved = _moved(model)

    def outputs() -> list[Tensor]:
        with torch.no_grad():
            return [tensor.clone() for tensor in tensors_in(functional_call(model, moved, *call))]

    try:
        active = _active(found, outputs)
        with_all = active.outputs
        _drop([item for number, item in enumerate(found) if number not in active.numbers], outputs, with_all)
    except Exception:  # a forward pass that fails: the checks that follow say so
        return


def _moved(model: nn.Module) -> dict[str, Tensor]:
    rng = generator(0, "hooks")
    return {
        name: value.detach() * (1 + NEARBY * normal(value.shape, rng, value.dtype, value.device))
        for name, value in model.named_parameters()
        if value.is_floating_point()
    }


class _Activity:
    """Which hooks return something of their own, or write into what they are given; and the outputs with all of them."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.outputs: list[Tensor] = []

    def noting(self, number: int, hook: Callable[..., Any]) -> Callable[..., Any]:
        def noted(module: nn.Module, *given: Any) -> Any:
            before = [(tensor, tensor._version) for tensor in tensors_in(given)]
            result = hook(module, *given)
            if (result is not None and result is not given[-1]) or any(t._version != v for t, v in before):
                self.numbers.add(number)
            return result

        return noted


def _active(found: Sequence[tuple[OrderedDict[int, Any], int]], outputs: Callable[[], list[Tensor]]) -> _Activity:
    activity = _Activity()
    hooks = [held[key] for held, key in found]
    try:
        for number, (held, key) in enumerate(found):
            held[key] = activity.noting(number, hooks[number])
        activity.outputs = outputs()
    finally:
        for (held, key), hook in zip(found, hooks, strict=True):
            held[key] = hook
    return activity


def _drop(
    group: list[tuple[OrderedDict[int, Any], int]], outputs: Callable[[], list[Tensor]], expected: list[Tensor]
) -> None:
    """Remove all of a group if that changes nothing, or else what can go of its halves."""
    if not group:
        return
    whole = [(held, OrderedDict(held)) for held, _ in group]
    for held, key in group:
        held.pop(key, None)
    try:
        same = _equal(outputs(), expected)
    except Exception:  # a hook that the forward pass relies on
        same = False
    if same:
        return
    for held, before in whole:
        held.clear()
        held.update(before)
    if len(group) > 1:
        middle = len(group) // 2
        _drop(group[:middle], outputs, expected)
        _drop(group[middle:], outputs, expected)


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.shape == y.shape and bool(((x == y) | (x.isnan() & y.isnan())).all()) for x, y in zip(a, b, strict=True)
    )
