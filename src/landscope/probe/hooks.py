"""Hooks of the user's on the private copy: those that do nothing to the numbers go, those that make the function stay.

A hook that records activations or logs would run on every pass of every measure. One that computes a weight (weight norm,
spectral norm, pruning), changes an output or hands something to the loss is part of the model. To keep a hook is always
right; it goes only where outputs and loss are bit for bit the same without it on all of the data. Backward hooks always go:
they cannot change the loss, and what they make of its gradient is not its gradient any more.
"""

from __future__ import annotations

import dis
import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from landscope.core.seeding import generator, normal
from landscope.probe.batches import Batch, map_tensors, tensors_in
from landscope.probe.checks import output_tensors
from landscope.probe.copying import behind
from landscope.probe.sharding.parts import Unit

if TYPE_CHECKING:
    from landscope.probe.probe import Probe

NEARBY = 1e-2
"""How far the parameters are moved, relative to each: a hook that computes a weight from others shows there."""
ROWS = 256
"""Samples at once where all of the data is looked at."""

Place = tuple[str, str, int]
"""Where a hook is: the name of the module, which of its dictionaries, and the key there."""


def drop_idle_hooks(probe: Probe) -> None:
    """Remove, in place, backward hooks and those forward hooks without which outputs and loss stay the same.

    The loss is compared where it is the user's own, and must be settled then. Data that is not held in memory would have to be
    read twice more: hooks stay there.
    """
    model = probe.module("")
    places: list[Place] = []
    for name, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            module._backward_hooks.clear()
            module._backward_pre_hooks.clear()
            module._is_full_backward_hook = None
            for kind in ("_forward_hooks", "_forward_pre_hooks"):
                places += [(name, kind, key) for key, hook in getattr(module, kind).items() if not _stays(hook)]
    if places and probe.holds_data:
        trials = _Trials(probe)
        for name, kind, key in trials.idle_everywhere(trials.idle(places)):
            del getattr(model.get_submodule(name), kind)[key]


def _stays(hook: Any) -> bool:
    """Whether a hook is not tried: one that may choose, and those that gather weights."""
    return isinstance(getattr(hook, "__self__", None), Unit) or _may_choose(hook)


def _may_choose(hook: Any) -> bool:
    """Whether a hook, or a function that it uses, may return something under one condition and nothing under another.

    Such a hook may be idle on the data and act at other parameters.
    """
    while isinstance(hook, functools.partial):
        hook = hook.func
    plain = isinstance(hook, (types.FunctionType, types.MethodType))
    function = hook if plain else type(hook).__dict__.get("__call__", hook)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType) or not _returns(function.__code__):
        return False
    used, seen = [function], {function}
    for each in used:
        if _returns(each.__code__) and _branches(each.__code__):
            return True
        fresh = {found for found in behind(each) if isinstance(found, types.FunctionType)} - seen
        used += fresh
        seen |= fresh
    return False


def _returns(code: types.CodeType) -> bool:
    """Whether a function may return something else than `None`."""
    nothing = False
    for step in dis.get_instructions(code):
        if step.opname == "RETURN_CONST" and step.argval is not None:
            return True
        if step.opname == "RETURN_VALUE" and (step.is_jump_target or not nothing):
            return True
        nothing = step.opname == "LOAD_CONST" and step.argval is None
    return False


def _branches(code: types.CodeType) -> bool:
    return any("JUMP" in step.opname and "IF" in step.opname for step in dis.get_instructions(code))


class _Trials:
    """Forward passes of a copy with some hooks and without them, each trial at other parameters and for other rows.

    The pass without them comes first: what a hook left behind (a weight that it computed, an activation that it kept) belongs
    to an earlier trial then, and does not hide that the hook is missing.
    """

    def __init__(self, probe: Probe) -> None:
        self.probe, self.trials = probe.with_model(lambda model: None), 0
        self.active: set[Place] = set()
        """Hooks that returned something of their own, or wrote into what they were given."""

    def idle(self, places: list[Place]) -> list[Place]:
        """Those of some hooks that can go together, on a few rows."""
        if not places:
            return []
        same = self._same_without(places, [_turned(self.probe.few, self.trials + 1)])
        rest = [place for place in places if place not in self.active]
        if same and len(rest) == len(places):
            return rest
        if len(rest) < len(places):
            return self.idle(rest)
        if len(places) == 1:
            return []
        middle = len(places) // 2
        first = self.idle(places[:middle])
        with self._without(first):
            return first + self.idle(places[middle:])

    def idle_everywhere(self, places: list[Place]) -> list[Place]:
        """Those of some hooks that can go together, on all of the data; none where others than the active ones matter."""
        while places:
            same = self._same_without(places, (piece for b in self.probe.batches() for piece in b.pieces(ROWS)))
            rest = [place for place in places if place not in self.active]
            if len(rest) == len(places):
                return places if same else []
            places = rest
        return []

    def _same_without(self, places: list[Place], batches: Iterable[Batch]) -> bool:
        self.trials += 1
        rng = generator(self.trials, "hooks")
        model = self.probe.module("")
        moved = {
            name: value.detach() * (1 + NEARBY * normal(value.shape, rng, value.dtype, value.device))
            for name, value in model.named_parameters()
            if value.is_floating_point()
        }
        same = True
        try:
            for batch in batches:
                ready = batch.prepared(self.probe.ready)
                with self._without(places):
                    without = self._numbers(moved, ready)
                with self._noting(places):
                    same &= _equal(without, self._numbers(moved, ready))
                if not same:
                    break
        except Exception:  # the forward pass relies on a hook, or fails with them too, which later checks will say
            return False
        return same

    def _numbers(self, params: dict[str, Tensor], batch: Batch) -> list[Tensor]:
        """Outputs, and the loss where it is the user's own; with a graph, for hooks that ask for gradients of activations."""
        with self.probe.measuring():
            leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
            outputs = self.probe.outputs(leaves, batch)
            found = output_tensors(outputs)
            if not self.probe.loss.known:
                found = [*found, self.probe.loss_of(outputs, batch)]
            return [tensor.detach().clone() for tensor in found]

    def _hooks(self, place: Place) -> OrderedDict[int, Any]:
        name, kind, _ = place
        return getattr(self.probe.module(name), kind)

    @contextmanager
    def _without(self, places: list[Place]) -> Iterator[None]:
        before = [(hooks, OrderedDict(hooks)) for hooks in map(self._hooks, places)]
        for place in places:
            del self._hooks(place)[place[2]]
        try:
            yield
        finally:
            for hooks, all_of_them in before:
                hooks.clear()
                hooks.update(all_of_them)

    @contextmanager
    def _noting(self, places: list[Place]) -> Iterator[None]:
        hooks = {place: self._hooks(place)[place[2]] for place in places}
        for place, hook in hooks.items():
            self._hooks(place)[place[2]] = self._noted(place, hook)
        try:
            yield
        finally:
            for place, hook in hooks.items():
                self._hooks(place)[place[2]] = hook

    def _noted(self, place: Place, hook: Callable[..., Any]) -> Callable[..., Any]:
        def noted(module: nn.Module, *given: Any) -> Any:
            before = [(tensor, tensor._version) for tensor in tensors_in(given)]
            result = hook(module, *given)
            if (result is not None and result is not given[-1]) or any(t._version != v for t, v in before):
                self.active.add(place)
            return result

        return noted


def _turned(batch: Batch, by: int) -> Batch:
    """A batch with its rows in turned order, where it is made of rows."""
    if not batch.divisible:
        return batch
    return Batch(map_tensors(lambda t: t.roll(by, 0) if t.dim() else t, batch.raw), batch.size, True)


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(
        x.shape == y.shape and bool(((x == y) | (x.isnan() & y.isnan())).all()) for x, y in zip(a, b, strict=True)
    )
