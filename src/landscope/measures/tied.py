"""Tied parameters: one tensor under several names, so that a measure of one layer is about the others, too.

A loss has one derivative in a tied weight, and it counts every use: with W₁ = W₂ = W the Hessian in W is
H₁₁ + H₁₂ + H₂₁ + H₂₂ of the untied weights. A measure of a layer keeps that meaning (the tensor, in all its uses), and notes it.
To measure one use alone, H₁₁, take a copy of the model with `layer.weight = nn.Parameter(layer.weight.detach().clone())`.
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


def saying_ties(estimate: Estimate, probe: Probe, names: Sequence[str], used_elsewhere: bool = False) -> Estimate:
    """The estimate of a layer with these parameters, with a note on those that the model also uses elsewhere.

    `used_elsewhere` marks a parameter whose other use has no name of its own (a functional call).
    """
    tied = other_names(probe, names)
    if not estimate.status.has_value or not (tied or used_elsewhere):
        return estimate
    also = "; ".join(f"{name} is one tensor with {', '.join(others)}" for name, others in tied.items())
    found = also or f"{', '.join(names)} is used elsewhere in the forward pass, too"
    note = f"{found}: this is of the tensor in all its uses; for this layer's alone, untie a copy of the model"
    shared: dict[str, Plain] = {name: list(others) for name, others in tied.items()}
    return replace(
        estimate,
        reason=f"{estimate.reason}; {note}" if estimate.reason else note,
        details={**estimate.details, "shared_with": shared},
    )
