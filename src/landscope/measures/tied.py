"""Tied parameters: one tensor under several names, so that a measure of one layer is about the others, too.

A loss has one derivative in a tied weight, and it counts every use: with W₁ = W₂ = W the Hessian in W is
H₁₁ + H₁₂ + H₂₁ + H₂₂ of the untied weights. Eigenvalues, traces and norms are those of the tensor. Relative flatness, which FAM
penalises, is a property of a layer, and its value is that of H₁₁: the weight where the layer is called, the other uses held
constant (`uses="all"` takes the tensor). Either way the estimate says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.probe.probe import Probe


def other_names(probe: Probe, names: Sequence[str]) -> dict[str, list[str]]:
    """The other names in the model of each of the named parameters that has any.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    >>> net[1].weight = net[0].weight
    >>> other_names(Probe(net, (torch.randn(3, 2), torch.tensor([0, 1, 1]))), ["0.weight", "0.bias"])
    {'0.weight': ['1.weight']}
    """
    every = list(probe.module("").named_parameters(remove_duplicate=False))
    named = dict(every)
    found = {name: [other for other, p in every if p is named[name] and other != name] for name in names}
    return {name: others for name, others in found.items() if others}


OF_THE_TENSOR = "this is of the tensor in all its uses; for this layer's alone, untie a copy of the model"
OF_THE_LAYER = "this is of its use in this layer; uses='all' measures the tensor in all its uses"


def saying_ties(
    estimate: Estimate, probe: Probe, names: Sequence[str], used_elsewhere: bool = False, meaning: str = OF_THE_TENSOR
) -> Estimate:
    """The estimate of a layer with these parameters, with a note on those that the model also uses elsewhere.

    `used_elsewhere` marks a parameter whose other use has no name of its own (a functional call); `meaning` says of which uses
    the estimate is.
    """
    tied = other_names(probe, names)
    if not estimate.status.has_value or not (tied or used_elsewhere):
        return estimate
    also = "; ".join(f"{name} is one tensor with {', '.join(others)}" for name, others in tied.items())
    found = also or f"{', '.join(names)} is used elsewhere in the forward pass, too"
    note = f"{found}: {meaning}"
    shared: dict[str, Plain] = {name: list(others) for name, others in tied.items()}
    return replace(
        estimate,
        reason=f"{estimate.reason}; {note}" if estimate.reason else note,
        details={**estimate.details, "shared_with": shared},
    )
