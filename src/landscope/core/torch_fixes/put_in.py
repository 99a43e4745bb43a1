"""A model run with other values for its tensors, which it holds no longer when it is done.

`torch.func.functional_call` puts a value in under every name of a tensor, and takes them out in the same order. A module that has
two names (`nn.Sequential(layer, layer)`) is then given back what had been put in under its first one, and keeps it (torch 2.13).
Here every place takes a value once.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def functional_call(
    model: nn.Module, values: Mapping[str, Tensor], args: tuple[object, ...], kwargs: Mapping[str, object] | None = None
) -> object:
    """What the model returns with `values` in the place of the named parameters and buffers, wherever these are used.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> net = nn.Sequential(layer, layer)
    >>> out = functional_call(net, {"0.weight": torch.full((1, 1), 3.0)}, (torch.ones(1, 1),))
    >>> float(out), isinstance(layer.weight, nn.Parameter)
    (9.0, True)
    """
    named: dict[str, Tensor] = {}
    places: dict[Tensor, list[str]] = {}
    for prefix, module in model.named_modules():  # each once, under its first name
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                name = f"{prefix}.{key}" if prefix else key
                named[name] = tensor
                places.setdefault(tensor, []).append(name)
    every = {place: value for name, value in values.items() for place in _all(model, name, named, places)}
    return torch.func.functional_call(model, every, args, dict(kwargs or {}), tie_weights=False)


def _all(model: nn.Module, name: str, named: Mapping[str, Tensor], places: Mapping[Tensor, list[str]]) -> list[str]:
    """Every place of the named tensor, which may have other names; the name itself where the model holds no such tensor."""
    if name not in named:
        prefix, _, key = name.rpartition(".")
        holder = model.get_submodule(prefix)
        tensor = holder._parameters.get(key, holder._buffers.get(key))
        return [name] if tensor is None else places[tensor]
    return places[named[name]]
