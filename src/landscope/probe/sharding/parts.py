"""Which part of a sharded model's parameters lies here, and a copy of it without FSDP's hooks, whose units gather.

The copy is an ordinary module whose parameters are the parts that this process holds, as flat tensors; each unit of FSDP's
(`fully_shard` was called on it) gathers its whole weights while it is called.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from landscope.core.distributed import processes
from landscope.core.errors import ModelError
from landscope.core.parameters import ParameterSpace, Vectors
from landscope.probe.sharding.gathering import Part, forget, gathered


@dataclass(frozen=True)
class Sharding:
    """The parts of a model's parameters, by name, and which of the processes this is."""

    rank: int
    parts: dict[str, Part]

    def own(self, name: str, parameter: Tensor) -> Tensor:
        """What this process holds of a parameter, flat."""
        if hasattr(parameter, "to_local"):
            return local(parameter).reshape(-1)
        ends = self.parts[name].ends
        return parameter.reshape(-1)[ends[self.rank] : ends[self.rank + 1]]

    def row(self, name: str, number: int) -> slice:
        """Where a row of a parameter lies in what this process holds of it."""
        return self.parts[name].row(number, self.rank)

    def vectors(self, space: ParameterSpace) -> Vectors:
        """Vectors over some of the parameters."""
        held, start = [], 0
        for name in space.names:
            ends = self.parts[name].ends
            held.append((start + ends[self.rank], start + ends[self.rank + 1]))
            start += ends[-1]
        return Vectors(start, tuple(held))


def _is_unit(module: nn.Module) -> bool:
    """Whether `fully_shard` was called on a module; torch's sharding is imported by whoever called it, which takes a second."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def sharding_of(model: nn.Module) -> Sharding | None:
    """How the parameters of a model are shared out over several processes; `None` where each has all of them.

    FSDP keeps some weights gathered after a forward pass: they are given up, as after a backward pass.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ModelError(
                "the model is wrapped by FullyShardedDataParallel, whose flat parameters cannot be told apart. Shard it by "
                "torch.distributed.fsdp.fully_shard(model) (FSDP2; accelerate: fsdp_version=2) instead."
            )
        if getattr(module, "max_norm", None) is not None and any(_is_unit(unit) for unit in model.modules()):
            raise ModelError(
                "an embedding with max_norm changes its rows when it is called, which is not supported where the parameters are "
                "sharded. Cut the rows once and for all (torch.renorm) and set max_norm to None."
            )
        if _is_unit(module):
            module.reshard()  # type: ignore[operator]
    named = dict(model.named_parameters())
    if processes() == 1 or not any(hasattr(p, "to_local") for p in named.values()):
        return None
    return Sharding(dist.get_rank(), {name: _part(name, p) for name, p in named.items()})


def _part(name: str, parameter: Tensor) -> Part:
    """The rows of a DTensor as torch chunks them; of what every process has whole, an equal part."""
    count, rows, row = processes(), parameter.numel(), 1
    if hasattr(parameter, "to_local"):
        mesh = parameter.device_mesh  # type: ignore[attr-defined]
        by_rows = [place.is_shard(0) for place in parameter.placements]  # type: ignore[attr-defined]
        if by_rows != [True] or mesh.mesh.flatten().tolist() != list(range(count)):
            raise ModelError(
                f"{name} is placed {parameter.placements} on {mesh}: expected the rows of each parameter shared out over all "  # type: ignore[attr-defined]
                f"{count} processes. Shard by fully_shard(model) on one mesh dimension, without a shard_placement_fn and "
                f"without tensor parallelism."
            )
        rows, row = parameter.shape[0], parameter.numel() // max(parameter.shape[0], 1)
    chunk = -(-rows // count)
    return Part(parameter.shape, tuple(row * min(r * chunk, rows) for r in range(count + 1)))


def local(tensor: Tensor) -> Tensor:
    """What of a tensor lies in this process."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


# The copy: modules without FSDP's hooks, units that gather.


def plain_modules(model: nn.Module, memo: dict[int, Any], copied: Any) -> None:
    """Add to the memo a copy of every unit of FSDP's, of the class that it had before and without FSDP's hooks.

    `copied` is `copy.deepcopy`; FSDP's own classes refuse it.
    """
    units = [module for module in model.modules() if _is_unit(module)]
    for unit in units:
        kind: Any = type(unit).__mro__[2]  # (its class with FSDP, FSDPModule, its class, …)
        memo[id(unit)] = kind.__new__(kind)
    for unit in units:
        kept = {
            key: _without_fsdp(value) for key, value in vars(unit).items() if not key.startswith("__composable_api")
        }
        vars(memo[id(unit)]).update(copied(kept, memo))


def _without_fsdp(value: object) -> object:
    """Hooks other than FSDP's; anything else as it is."""
    if type(value) is not OrderedDict:
        return value
    return OrderedDict(
        (key, hook)
        for key, hook in value.items()
        if not str(getattr(hook, "__module__", "")).startswith("torch.distributed.fsdp")
    )


def gather_in_units(model: nn.Module, twin: nn.Module, sharding: Sharding) -> None:
    """Have each unit of the copy gather its weights: the modules of FSDP's, or all with parameters where there are none."""
    first = {id(p): name for name, p in twin.named_parameters()}
    theirs = dict(model.named_modules())
    units = {name for name, module in theirs.items() if _is_unit(module)}
    held: dict[str, dict[str, list[tuple[nn.Module, str]]]] = {}
    for name, module in twin.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                home = next((up for up in _upwards(name) if up in units), name)
                held.setdefault(home, {}).setdefault(first[id(parameter)], []).append((module, key))
    for home, places in held.items():
        unit = Unit(list(places.values()), [sharding.parts[name] for name in places])
        module = twin.get_submodule(home)
        module.register_forward_pre_hook(unit.enter, prepend=True)
        module.register_forward_hook(unit.leave, always_call=True)


def _upwards(name: str) -> Iterator[str]:
    """A module's name and those of the modules around it."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""


class Unit:
    """Modules whose weights are gathered together while one of them, which holds the others, is called."""

    def __init__(self, places: list[list[tuple[nn.Module, str]]], parts: list[Part]) -> None:
        """`places` are the modules that hold each parameter, with their names for it: several where weights are tied."""
        self._places, self._parts = places, parts
        self._put_away: list[tuple[nn.Module, str, Any]] = []
        self._depth = 0

    def enter(self, module: nn.Module, args: object) -> None:
        """Before the call: whole weights in the place of parts."""
        del module, args
        self._depth += 1
        if self._depth > 1:
            return
        held: list[Any] = [places[0][0]._parameters[places[0][1]] for places in self._places]
        for places, whole in zip(self._places, gathered(self._parts, held), strict=True):
            for owner, key in places:
                self._put_away.append((owner, key, owner._parameters[key]))
                owner._parameters[key] = whole  # type: ignore[assignment]

    def leave(self, module: nn.Module, args: object, output: object) -> None:
        """After it, or where it failed: the parts back in their place."""
        del module, args, output
        self._depth = max(self._depth - 1, 0)
        if self._depth == 0:
            for owner, key, part in self._put_away:
                forget([owner._parameters[key]])
                owner._parameters[key] = part
            self._put_away = []
