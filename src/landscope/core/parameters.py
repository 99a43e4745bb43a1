"""Parameter vectors: which parameters are measured, in which order they lie in a vector, and what of it lies in this process."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from landscope.core.distributed import least, sum_over_processes
from landscope.core.errors import NoParametersError, OperandError, UnknownNameError
from landscope.core.seeding import normal, rademacher

Selection = None | str | nn.Module | nn.Parameter | Iterable[str | nn.Module | nn.Parameter]
"""All that require a gradient (`None`), or names, patterns, layers, modules, parameters."""


@dataclass(frozen=True)
class ParameterSpace:
    """The order and shapes in which parameters lie in a flat vector of length `size`.

    >>> space = ParameterSpace(("w", "b"), (torch.Size([2, 3]), torch.Size([2])))
    >>> space.size, {name: tuple(t.shape) for name, t in space.unflatten(torch.arange(8.0)).items()}
    (8, {'w': (2, 3), 'b': (2,)})
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    devices: tuple[torch.device, ...] = ()
    """Where the parameters lie, where that is on several devices; vectors lie on the first."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """P, the number of entries in all."""
        return sum(self.sizes)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One vector (P,) of the named tensors, which may carry the same leading dimension: then (k, P)."""
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            tensor = tensors[name]
            lead = tensor.shape[: tensor.dim() - len(shape)]
            if tensor.shape[len(lead) :] != shape:
                raise OperandError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
            parts.append((tensor.to_dense() if tensor.is_sparse else tensor).reshape(*lead, -1))
        if self.devices:
            parts = [part.to(self.devices[0]) for part in parts]
        return torch.cat(parts, -1)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors of a vector (P,), as views."""
        if vector.shape != (self.size,):
            raise OperandError(f"expected a vector of shape ({self.size},), got {tuple(vector.shape)}")
        parts = vector.split(self.sizes)
        if self.devices:
            parts = tuple(part.to(device) for part, device in zip(parts, self.devices, strict=True))
        return {name: part.view(shape) for name, shape, part in zip(self.names, self.shapes, parts, strict=True)}

    def slices(self) -> dict[str, slice]:
        """Where each parameter lies in the vector."""
        out, start = {}, 0
        for name, size in zip(self.names, self.sizes, strict=True):
            out[name] = slice(start, start + size)
            start += size
        return out


def select_parameters(model: nn.Module, selection: Selection) -> tuple[str, ...]:
    """The names of the selected parameters, in the model's own order.

    A string is the exact name of a parameter, the name of a layer (all of its parameters), or a pattern with `*`, `?` or
    `[…]`. Tied weights count once, under their first name.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> select_parameters(net, ["0", "*.bias"])
    ('0.weight', '0.bias', '2.bias')
    """
    named = dict(model.named_parameters())
    if selection is None:
        chosen = {name for name, p in named.items() if p.requires_grad}
        if not chosen:
            if not named:
                raise NoParametersError(
                    "the model has no parameters at all: there is nothing whose change could be measured"
                )
            raise NoParametersError(
                f"the model has {len(named)} parameters, none of which requires a gradient. Call "
                f"model.requires_grad_(True), or name what to measure: Probe(..., params=['*'])."
            )
    else:
        wanted: Sequence[str | nn.Module | nn.Parameter]
        wanted = [selection] if isinstance(selection, (str, nn.Module, nn.Parameter)) else list(selection)
        chosen = set().union(*(_matching(model, named, item) for item in wanted))
        if not chosen:
            raise NoParametersError(
                "params= selects no parameters. Leave it out to measure all that require a gradient."
            )
    return tuple(name for name in named if name in chosen)


def _matching(model: nn.Module, named: Mapping[str, nn.Parameter], item: str | nn.Module | nn.Parameter) -> set[str]:
    first_name = {id(p): name for name, p in named.items()}
    if isinstance(item, nn.Parameter):
        if id(item) not in first_name:
            raise NoParametersError(f"a parameter of shape {tuple(item.shape)} was given that is not part of the model")
        return {first_name[id(item)]}
    if isinstance(item, nn.Module):
        inside = {first_name[id(p)] for p in item.parameters() if id(p) in first_name}
        if not inside:
            raise NoParametersError(f"the module {type(item).__name__} holds no parameters of the model")
        return inside
    every = dict(model.named_parameters(remove_duplicate=False))
    if item in every:
        return {first_name[id(every[item])]}
    layers = {name for name, _ in model.named_modules() if name}
    if item in layers:
        inside = {first_name[id(p)] for p in model.get_submodule(item).parameters()}
        if not inside:
            raise NoParametersError(
                f"the layer {item!r} ({type(model.get_submodule(item)).__name__}) has no parameters"
            )
        return inside
    matches = {first_name[id(p)] for name, p in every.items() if fnmatch.fnmatchcase(name, item)}
    matches |= {
        first_name[id(p)]
        for layer in layers
        if fnmatch.fnmatchcase(layer, item)
        for p in model.get_submodule(layer).parameters()
    }
    if not matches:
        raise UnknownNameError.among("parameter, layer or pattern", item, [*every, *layers])
    return matches


# How long vectors are, and what of them lies in this process.
#
# A vector of P numbers lies here as a whole, or, where parameters are sharded, in parts: every process holds some intervals of
# [0, P) and nothing else. Sums along a vector are then partial, and `add_up` makes them whole; random vectors are the same
# numbers whatever the number of processes. Everything that takes an inner product or a norm of such vectors asks here.


AT_ONCE = 2**20
"""Random numbers that are drawn together. A multiple of 16: torch's normal numbers are those of one long draw then."""


STRIP = 2**24
"""Entries of long vectors that are worked on at once: what is made of them is small, and sums over strips are exact."""


@dataclass(frozen=True)
class Vectors:
    """Vectors of `size` numbers, of which this process holds those in `held`, or all of them (`None`).

    >>> Vectors(4).length, Vectors(4, ((0, 1), (2, 4))).length
    (4, 3)
    """

    size: int
    held: tuple[tuple[int, int], ...] | None = None

    @property
    def length(self) -> int:
        """How many numbers of a vector lie here."""
        return self.size if self.held is None else sum(stop - start for start, stop in self.held)

    def add_up(self, partial: Tensor) -> Tensor:
        """The whole of sums along vectors: over all processes, where each holds a part of every vector."""
        if self.held is None or not partial.numel():
            return partial
        return sum_over_processes(partial.contiguous())

    def finite(self, rows: Tensor) -> bool:
        """Whether no entry is infinite or not a number, in any process.

        >>> Vectors(2).finite(torch.tensor([1.0, torch.nan]))
        False
        """
        strips = rows.reshape(-1).split(max(1, min(STRIP, rows.numel() // 16)))
        wrong = torch.stack([(~torch.isfinite(strip)).any() for strip in strips]).double().sum()
        return not bool(self.add_up(wrong))

    def norms(self, rows: Tensor) -> Tensor:
        """‖v‖ of every row (…, length).

        >>> Vectors(2).norms(torch.tensor([[3.0, 4.0]]))
        tensor([5.])
        """
        if self.held is None:
            wide = torch.promote_types(rows.dtype, torch.float32)
            return torch.linalg.vector_norm(rows, dim=-1, dtype=wide)
        return self.add_up(torch.linalg.vector_norm(rows, dim=-1).double().square()).sqrt().to(rows.dtype)

    def least(self, number: float) -> float:
        """The smallest of the numbers that the processes hold: what all of them can do."""
        return number if self.held is None else least(number)

    def normal(self, rng: torch.Generator, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Independent standard normal numbers (length,), those of one vector that is drawn as a whole."""
        return self._drawn(lambda count: normal((count,), rng, dtype, device))

    def signs(self, count: int, rng: torch.Generator, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Rows (count, length) of independent ±1, those of whole vectors that are drawn one after the other."""
        rows = [self._drawn(lambda count: rademacher((count,), rng, dtype)) for _ in range(count)]
        return torch.stack(rows).to(device)

    def _drawn(self, draw: Callable[[int], Tensor]) -> Tensor:
        """What this process holds of a vector that is drawn: every process draws all of it, a stretch at a time."""
        if self.held is None:
            return draw(self.size)
        ends = [*range(AT_ONCE, self.size - 15, AT_ONCE), self.size]
        kept: list[list[Tensor]] = [[] for _ in self.held]
        for at, end in pairwise([0, *ends]):
            stretch = draw(end - at)
            for parts, (start, stop) in zip(kept, self.held, strict=True):
                parts.append(stretch[max(start, at) - at : max(min(stop, end) - at, 0)].clone())
        return torch.cat([part for parts in kept for part in parts])

    def units(self, start: int, stop: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The unit vectors e_start … e_(stop−1), as rows.

        >>> Vectors(4, ((0, 1), (2, 4))).units(2, 4, torch.float32, torch.device("cpu"))
        tensor([[0., 1., 0.],
                [0., 0., 1.]])
        """
        numbers = torch.cat([torch.arange(a, b) for a, b in self.held or ((0, self.size),)])
        return (numbers == torch.arange(start, stop)[:, None]).to(device, dtype)
