"""Where a value lies among networks of the same kind, from our own studies (`references.json`).

Two networks are of one kind if they have the same architecture in broad terms (what their layers are, how many outputs), the
same loss, and sizes within a factor of three. Sharpness changes by orders of magnitude while a network is trained, so a value
is set only against networks whose training loss is within a factor of three, too. A measure that rescaled weights change is
set against networks with the same number of parameters only: for others it says nothing.

`python docs/references.py --write` makes the file from the records in `results/`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.measures.base import invariances

FILE = resources.files("landscope.measures.reading") / "references.json"
NEAR = 3.0
"""Factor in size and in training loss within which networks are set against each other."""
ENOUGH = 10
"""Networks below which a place among them says nothing."""
GRAPH_LAYER = "MessagePassing"
"""The base class of the layers of torch_geometric, which need not be installed."""


@dataclass(frozen=True)
class Kind:
    """Networks of one kind that were trained and measured alike: a number for each of them in every list."""

    title: str
    architecture: str
    outputs: int
    loss: str
    source: str
    """The records that they are from."""
    samples: int
    """On which each was measured."""
    parameters: Sequence[int]
    losses: Sequence[float]
    settings: Mapping[str, Mapping[str, Plain]]
    values: Mapping[str, Sequence[float | None]]

    def near(self, parameters: int, loss: float) -> list[int]:
        """The networks of similar size and training loss."""
        return [
            number
            for number, (size, own) in enumerate(zip(self.parameters, self.losses, strict=True))
            if parameters / NEAR <= size <= NEAR * parameters and loss / NEAR <= own <= NEAR * loss
        ]


@dataclass(frozen=True)
class Place:
    """How many of how many networks have a smaller value."""

    measure: str
    smaller: int
    of: int


@cache
def kinds() -> tuple[Kind, ...]:
    """All that are shipped.

    >>> len(kinds()) >= 5, min(len(kind.losses) for kind in kinds()) >= 20
    (True, True)
    """
    return tuple(Kind(**plain) for plain in json.loads(FILE.read_text(encoding="utf-8")))


def ranked(estimates: Mapping[str, Estimate]) -> bool:
    """Whether there is any value among these that networks are ranked by.

    >>> ranked({"loss": Estimate(0.1)}), ranked({"hessian_trace": Estimate(0.1)})
    (False, True)
    """
    known = {name for kind in kinds() for name in kind.values}
    return any(e.status.has_value and name in known for name, e in estimates.items())


def places(
    estimates: Mapping[str, Estimate], architecture: str, outputs: int, loss: str, parameters: int
) -> tuple[Kind, list[Place]] | None:
    """The kind that has the most networks comparable with this one, and where its values lie; `None` where none has enough."""
    own = estimates.get("loss")
    if own is None or not own.status.has_value or not own.value > 0:
        return None
    best: tuple[Kind, list[Place]] | None = None
    most = ENOUGH - 1
    for kind in kinds():
        if (kind.architecture, kind.outputs, kind.loss) != (architecture, outputs, loss):
            continue
        near = kind.near(parameters, own.value)
        found = [place for name, e in estimates.items() if (place := _place(kind, near, parameters, name, e))]
        if found and len(near) > most:
            best, most = (kind, found), len(near)
    return best


def _place(kind: Kind, near: Iterable[int], parameters: int, name: str, estimate: Estimate) -> Place | None:
    if name not in kind.values or not estimate.status.has_value or estimate.status.is_bound:
        return None
    stated = kind.settings[name]
    if any(key in estimate.settings and estimate.settings[key] != value for key, value in stated.items()):
        return None
    scaled = "layer_rescaling" not in invariances(name, estimate.settings)
    same = [number for number in near if not scaled or kind.parameters[number] == parameters]
    held = [value for number in same if (value := kind.values[name][number]) is not None]
    if len(held) < ENOUGH:
        return None
    return Place(name, sum(value < estimate.value for value in held), len(held))


def architecture(modules: Iterable[nn.Module]) -> str:
    """What the layers of a network are, in broad terms; empty where they are none of the kinds that are distinguished.

    >>> architecture(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).modules())
    'fully connected'
    >>> architecture(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)).modules())
    'convolutional with BatchNorm'
    >>> architecture(nn.LSTM(2, 2).modules())
    ''
    """
    layers = list(modules)
    if any(GRAPH_LAYER in (base.__name__ for base in type(layer).__mro__) for layer in layers):
        return "graph"
    if any(isinstance(layer, nn.MultiheadAttention) for layer in layers) or any(map(_attends, layers)):
        return "transformer"
    holding = [layer for layer in layers if next(layer.parameters(recurse=False), None) is not None]
    if not holding or not all(isinstance(layer, nn.Linear | _ConvNd | _BatchNorm) for layer in holding):
        return ""
    normalised = any(isinstance(layer, _BatchNorm) for layer in holding)
    convolutional = any(isinstance(layer, _ConvNd) for layer in holding)
    return ("convolutional" if convolutional else "fully connected") + " with BatchNorm" * normalised


def _attends(layer: nn.Module) -> bool:
    """Whether it is a model of Hugging Face's libraries with heads of attention."""
    return getattr(getattr(layer, "config", None), "num_attention_heads", None) is not None


def outputs(modules: Iterable[nn.Module]) -> int:
    """How many numbers the last weight layer puts out; 0 where there is none.

    >>> outputs(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)).modules())
    3
    """
    last = [layer for layer in modules if isinstance(layer, nn.Linear | _ConvNd)][-1:]
    return int(last[0].weight.shape[0]) if last else 0
