"""A model whose parameters are sharded over processes (FSDP2's `fully_shard`): every process holds a part of each.

FSDP's own hooks do not survive a private copy and other values for the parameters. The copy is an ordinary module whose
parameters are the parts that this process holds, as flat tensors, and each unit of FSDP's (`fully_shard` was called on it)
gathers its whole weights while it is called. Gathering and its transpose are linear and each other's derivative:

    G: parts ↦ whole weights on every process,    Gᵀ: a gradient on every process ↦ the part of their sum,

so that gradients and products with vectors come out as parts of the sums over all processes, and vectors live as the parameters
do. No process holds more than its parts and the weights of one unit (and of those around it): weights that a forward pass would
keep for its backward pass are dropped, and gathered once more when they are needed.

Every pass is a sequence of collectives, the same in all processes. Outside `summing` all of them look at the same rows.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from landscope.core.distributed import processes
from landscope.core.errors import ModelError
from landscope.core.parameters import ParameterSpace
from landscope.core.vectors import Vectors
from landscope.probe.copying import place

__all__ = [
    "Sharding",
    "Unit",
    "dropping_weights",
    "gather_in_units",
    "is_gathered",
    "keeping_weights",
    "local",
    "plain_modules",
    "sharding_of",
    "summing",
]


@dataclass(frozen=True)
class Part:
    """How one parameter of a shape is shared out: process r holds the numbers from `ends[r]` to `ends[r + 1]` of it."""

    shape: torch.Size
    ends: tuple[int, ...]

    @property
    def sizes(self) -> list[int]:
        """How many numbers each process holds."""
        return [stop - start for start, stop in pairwise(self.ends)]


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
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


# The copy: modules without FSDP's hooks, units that gather.


def plain_modules(model: nn.Module, memo: dict[int, Any], copied: Any) -> None:
    """Add to the memo a copy of every unit of FSDP's, of the class that it had before and without FSDP's hooks.

    `copied` is `copy.deepcopy`; FSDP's own classes refuse it.
    """
    units = [module for module in model.modules() if _is_unit(module)]
    for unit in units:
        kind = type(unit).__mro__[2]  # (its class with FSDP, FSDPModule, its class, …)
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
                _forget([owner._parameters[key]])
                owner._parameters[key] = part
            self._put_away = []


# Gathering and its transpose.

_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before torch 2.13
_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_SLICE, _SUM, _NOTHING = "slice", "sum", "nothing"
_gives = _SLICE
"""What a process adds where gradients are summed: its own, or nothing; where all look at the same rows nothing is summed."""


@contextmanager
def summing(idle: bool = False) -> Iterator[None]:
    """Inside, every process works on rows of its own, or, where `idle`, only takes part in the others' work."""
    global _gives  # backward passes on a GPU run in threads of torch's, which see no context of this one
    before, _gives = _gives, _NOTHING if idle else _SUM
    try:
        yield
    finally:
        _gives = before


def gathered(parts: Sequence[Part], held: Sequence[Tensor]) -> list[Tensor]:
    """Whole parameters from what this process holds of each; those without derivatives by themselves."""
    wholes: dict[int, Tensor] = {}
    for moving in (True, False):
        some = [i for i, tensor in enumerate(held) if _moves(tensor) is moving]
        if some:
            layout, values = tuple(parts[i] for i in some), [held[i] for i in some]
            found = _Gather.apply(layout, *values)
            _remember(found, _Again(layout, [_plain(value) for value in values]))
            wholes |= dict(zip(some, found, strict=True))
    return [wholes[i] for i in range(len(held))]


def _moves(tensor: Tensor) -> bool:
    """Whether a derivative may be asked for."""
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return wrapped or tensor.requires_grad or forward_ad.unpack_dual(tensor).tangent is not None


def _plain(tensor: Tensor) -> Tensor:
    """The values alone."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.detach()


def _all_gather(parts: Sequence[Part], held: Sequence[Tensor]) -> tuple[Tensor, ...]:
    width = max(map(sum, zip(*(part.sizes for part in parts), strict=True)))
    mine = held[0].new_zeros(width)
    torch.cat([tensor.reshape(-1) for tensor in held], out=mine[: sum(tensor.numel() for tensor in held)])
    everything = mine.new_empty(processes() * width)
    _GATHER(everything, mine)
    rows = [
        row.split([*sizes, width - sum(sizes)])
        for row, sizes in zip(everything.view(-1, width), zip(*(p.sizes for p in parts), strict=True), strict=True)
    ]
    return tuple(torch.cat([row[i] for row in rows]).view(part.shape) for i, part in enumerate(parts))


def _reduce_scatter(parts: Sequence[Part], wholes: Sequence[Tensor]) -> tuple[Tensor, ...]:
    rank, flat = dist.get_rank(), [whole.reshape(-1) for whole in wholes]
    if _gives == _SLICE:
        return tuple(t[p.ends[rank] : p.ends[rank + 1]].clone() for p, t in zip(parts, flat, strict=True))
    width = max(map(sum, zip(*(part.sizes for part in parts), strict=True)))
    given, mine = flat[0].new_zeros(processes(), width), flat[0].new_empty(width)
    if _gives == _SUM:
        for r, row in enumerate(given):
            some = [t[p.ends[r] : p.ends[r + 1]] for p, t in zip(parts, flat, strict=True)]
            torch.cat(some, out=row[: sum(t.numel() for t in some)])
    _SCATTER(mine, given.view(-1))
    sizes = [part.sizes[rank] for part in parts]
    return tuple(part.clone() for part in mine.split([*sizes, width - sum(sizes)])[:-1])


class _Gather(torch.autograd.Function):
    """Parts ↦ whole parameters; the derivative is the same map, its transpose adds up over processes."""

    @staticmethod
    def forward(layout: tuple[Part, ...], *held: Tensor) -> tuple[Tensor, ...]:
        return _all_gather(layout, held)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        ctx.layout = inputs[0]
        ctx.like = [(t.shape, t.dtype, t.device) for t in inputs[1:]]

    @staticmethod
    def backward(ctx: Any, *wholes: Tensor) -> tuple[Any, ...]:
        return None, *_Scatter.apply(ctx.layout, *wholes)

    @staticmethod
    def jvp(ctx: Any, _: None, *held: Tensor | None) -> tuple[Tensor, ...]:
        return _Gather.apply(ctx.layout, *_zeros_for_none(ctx, held))  # type: ignore[no-any-return]


class _Scatter(torch.autograd.Function):
    """A gradient of whole parameters on every process ↦ the part of their sum."""

    @staticmethod
    def forward(layout: tuple[Part, ...], *wholes: Tensor) -> tuple[Tensor, ...]:
        return _reduce_scatter(layout, wholes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        ctx.layout = inputs[0]
        ctx.like = [(t.shape, t.dtype, t.device) for t in inputs[1:]]

    @staticmethod
    def backward(ctx: Any, *held: Tensor) -> tuple[Any, ...]:
        return None, *_Gather.apply(ctx.layout, *held)

    @staticmethod
    def jvp(ctx: Any, _: None, *wholes: Tensor | None) -> tuple[Tensor, ...]:
        return _Scatter.apply(ctx.layout, *_zeros_for_none(ctx, wholes))  # type: ignore[no-any-return]


def _zeros_for_none(ctx: Any, given: Sequence[Tensor | None]) -> list[Tensor]:
    return [
        torch.zeros(shape, dtype=dtype, device=device) if tensor is None else tensor
        for tensor, (shape, dtype, device) in zip(given, ctx.like, strict=True)
    ]


# Weights that a forward pass keeps for its backward pass are dropped, and gathered again.


@dataclass(frozen=True, eq=False)
class _Again:
    """What whole parameters can be made of once more."""

    layout: tuple[Part, ...]
    held: list[Tensor]


@dataclass(frozen=True)
class _Dropped:
    """A whole parameter, or a view of one, that is not kept."""

    of: _Again
    index: int
    view: tuple[torch.Size, tuple[int, ...], int]


_whole: dict[int, tuple[_Again, int]] = {}
"""Where the whole parameters that exist now lie."""
_latest: list[tuple[_Again, tuple[Tensor, ...]]] = []
"""Those that a backward pass has gathered last."""


def _remember(wholes: Sequence[Tensor], of: _Again) -> None:
    for index, whole in enumerate(wholes):
        if (at := place(_plain(whole))) is not None:
            _whole[at] = of, index


def _forget(wholes: Sequence[Any]) -> None:
    for whole in wholes:
        _whole.pop(place(_plain(whole)) or 0, None)


def is_gathered(tensor: Tensor) -> bool:
    """Whether a tensor lies in weights that were gathered, which a backward pass gathers again."""
    return place(tensor) in _whole


def _pack(tensor: Tensor) -> Tensor | _Dropped:
    found = _whole.get(place(tensor) or 0)
    if found is None:
        return tensor.detach()
    return _Dropped(*found, (tensor.shape, tensor.stride(), tensor.storage_offset()))


def _unpack(kept: Tensor | _Dropped) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    if not _latest or _latest[0][0] is not kept.of:
        _let_go()
        with torch.no_grad():
            wholes = _all_gather(kept.of.layout, kept.of.held)
        _remember(wholes, kept.of)
        _latest.append((kept.of, wholes))
    return _latest[0][1][kept.index].as_strided(*kept.view)


def _let_go() -> None:
    while _latest:
        _forget(_latest.pop()[1])


_dropping = False


@contextmanager
def dropping_weights() -> Iterator[None]:
    """Inside, derivatives keep no whole weights."""
    global _dropping
    try:
        with saved_tensors_hooks(_pack, _unpack):
            _dropping = True
            yield
    finally:
        _dropping = False
        _let_go()


@contextmanager
def keeping_weights() -> Iterator[None]:
    """Inside, derivatives keep what they need: `torch.func` takes no hooks around what is kept."""
    if not _dropping:
        yield
        return
    torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        torch._C._autograd._push_saved_tensors_default_hooks(_pack, _unpack)
