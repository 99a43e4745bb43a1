"""Other values for a model's parameters and buffers: a state dict, or a model of the same architecture."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from landscope.core.errors import NonFiniteWeightsError, OperandError
from landscope.core.frozen import unwrap
from landscope.core.probe import Probe

__all__ = ["State", "check_same_point", "moving", "read_state"]

State = Mapping[str, Tensor] | nn.Module
"""A state dict or a model."""


def moving(probe: Probe) -> dict[str, Tensor]:
    """Every parameter and real-valued buffer of the probe's model, measured or not."""
    model = probe.modules[""]
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach() for name, tensor in held.items() if tensor.is_floating_point()}


def read_state(probe: Probe, state: State, what: str) -> dict[str, Tensor]:
    """The real-valued tensors of a state that the probe's model has too, after checking that it is of the same architecture.

    Buffers that a state lacks (they need not be saved) are left out; running statistics are ignored where the probe uses
    those of the batches.
    """
    held = unwrap(state).state_dict() if isinstance(state, nn.Module) else state
    if not isinstance(held, Mapping):
        raise OperandError(f"{what} must be a state dict or a model, got {type(state).__name__}")
    model = probe.modules[""]
    own, known = moving(probe), set(model.state_dict())
    missing = [name for name, _ in model.named_parameters() if name not in held]
    if missing:
        raise OperandError(
            f"{what} lacks {missing[0]} ({len(missing)} of the model's parameters): another architecture?"
        )
    for name in held:
        layer = probe.modules.get(name.rpartition(".")[0])
        if name not in known and not isinstance(layer, _BatchNorm):
            raise OperandError(f"{what} holds {name!r}, which the probe's model does not have: another architecture?")
    out = {}
    for name, tensor in own.items():
        if name not in held:
            continue
        other = held[name].detach()
        if other.shape != tensor.shape:
            raise OperandError(f"{name} has shape {tuple(other.shape)} in {what}, expected {tuple(tensor.shape)}")
        if not bool(torch.isfinite(other).all()):
            raise NonFiniteWeightsError(f"{name} holds NaN or infinity in {what}: a diverged model is nowhere")
        out[name] = other
    return out


def check_same_point(origin: Mapping[str, Tensor], probe: Probe, what: str) -> None:
    """Refuse a probe at other values than the slice starts from: its losses would belong to another plane."""
    held = moving(probe)
    for name, tensor in origin.items():
        other = held.get(name)
        if other is None or other.shape != tensor.shape:
            raise OperandError(f"{what} has no {name} of shape {tuple(tensor.shape)}: it is of another architecture")
        if not torch.allclose(other.double().cpu(), tensor.double().cpu(), rtol=1e-5, atol=1e-8):
            raise OperandError(f"{what} has other values in {name} than the slice starts from: it is another model")
