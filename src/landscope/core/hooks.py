"""Hooks of the user's on the private copy: those that do nothing to the outputs go, those that make the function stay.

A hook that records activations or logs would run on every pass of every measure. One that computes a weight (weight norm,
spectral norm, pruning) or changes an output is part of the model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from landscope.core.batches import tensors_in
from landscope.core.checks import output_tensors
from landscope.core.copying import copied
from landscope.core.seeding import generator, normal

__all__ = ["drop_idle_hooks"]

NEARBY = 1e-2
"""How far the parameters are moved, relative to each: a hook that computes a weight from others shows there."""

Call = Callable[[int], tuple[tuple[object, ...], dict[str, object]]]
"""Arguments for the forward pass, others for every trial where that can be."""
Place = tuple[str, str, int]
"""Where a hook is: the name of the module, which of its dictionaries, and the key there."""


def drop_idle_hooks(model: nn.Module, call: Call) -> None:
    """Remove, in place, backward hooks and those forward hooks without which the outputs stay bit for bit the same."""
    places: list[Place] = []
    for name, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            module._backward_hooks.clear()
            module._backward_pre_hooks.clear()
            module._is_full_backward_hook = None
            kinds = ("_forward_hooks", "_forward_pre_hooks")
            places += [(name, kind, key) for kind in kinds for key in getattr(module, kind)]
    if places:
        for name, kind, key in _Trials(model, call).idle(places):
            del getattr(model.get_submodule(name), kind)[key]


class _Trials:
    """Forward passes of a copy with some hooks and without them, each trial at other parameters and for other rows.

    The pass without them comes first: what a hook left behind (a weight that it computed, an activation that it kept) belongs
    to an earlier trial then, and does not hide that the hook is missing.
    """

    def __init__(self, model: nn.Module, call: Call) -> None:
        self.model, self.call, self.trials = copied(model), call, 0
        self.active: set[Place] = set()
        """Hooks that returned something of their own, or wrote into what they were given."""

    def idle(self, places: list[Place]) -> list[Place]:
        """Those of some hooks that can go together."""
        if not places:
            return []
        same = self._same_without(places)
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

    def _same_without(self, places: list[Place]) -> bool:
        self.trials += 1
        rng = generator(self.trials, "hooks")
        moved = {
            name: value.detach() * (1 + NEARBY * normal(value.shape, rng, value.dtype, value.device))
            for name, value in self.model.named_parameters()
            if value.is_floating_point()
        }
        try:
            with self._without(places):
                without = self._outputs(moved)
            with self._noting(places):
                return _equal(without, self._outputs(moved))
        except Exception:  # the forward pass relies on a hook, or fails with them too, which later checks will say
            return False

    def _outputs(self, params: dict[str, Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return [
                tensor.clone()
                for tensor in output_tensors(functional_call(self.model, params, *self.call(self.trials)))
            ]

    def _hooks(self, place: Place) -> OrderedDict[int, Any]:
        name, kind, _ = place
        return getattr(self.model.get_submodule(name), kind)

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


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(
        x.shape == y.shape and bool(((x == y) | (x.isnan() & y.isnan())).all()) for x, y in zip(a, b, strict=True)
    )
