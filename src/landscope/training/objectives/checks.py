"""Whether the formulas of `flatness` hold for a layer as a network uses it, found out on the first batch.

They look at the layer's input and output only: the output must be W φ + b, and the loss must see the weight through it alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError, OperandError
from landscope.training.objectives.behind import Behind
from landscope.training.objectives.recording import Call

__all__ = ["check_call", "check_loss"]

APART = 0.02
"""Relative difference of two ways to compute the same; TF32 and half precision stay below."""


def check_loss(loss: Tensor) -> None:
    """A loss is one number with a graph."""
    if loss.numel() != 1:
        raise OperandError(
            f"FAM expects the loss as one number, a mean over the batch; this one has shape {tuple(loss.shape)}. Leave out "
            f"`reduction='none'`, or take the mean first."
        )
    if not loss.requires_grad or not torch.is_grad_enabled():
        raise OperandError(
            "FAM expects a loss with its graph; this one has none. Was the forward pass, or this call, inside `torch.no_grad()`? "
            "Evaluate with the plain loss."
        )


def check_call(call: Call, at: Behind, loss: Tensor, name: str) -> None:
    """Refuse a layer that does something else than its type says, and a weight that is also used elsewhere."""
    batched = 2 if isinstance(call.layer, torch.nn.Linear) else call.weight.dim()
    if call.inputs.dim() < batched:
        raise NotApplicableError(f"FAM expects a batch; {name!r} was called with {tuple(call.inputs.shape)}")
    phi, slope = (t.detach().to(at.dtype) for t in (call.inputs, at.slope))
    weight = call.weight.detach().to(at.dtype).flatten(1).requires_grad_()
    plain, bias = call.apply(weight, phi), call.layer.bias
    if bias is not None:
        plain = plain + bias.detach().view(-1, *[1] * (0 if batched == 2 else batched - 2))
    if _differ(call.outputs.detach().to(at.dtype), plain.detach()):
        raise NotApplicableError(
            f"{name!r} gives something else than its weight times its input plus its bias: another hook, a subclass or a random "
            f"parametrisation (spectral norm) changes it. Choose another layer."
        )
    if call.outputs.dtype != at.dtype or not (call.weight.is_leaf and call.weight.requires_grad):
        return  # half precision has too few digits to tell; a computed weight is a new tensor each time
    (through,) = torch.autograd.grad(plain, weight, slope)
    (whole,) = torch.autograd.grad(loss, call.weight, retain_graph=True)
    if _differ(whole.flatten(1), through):
        raise NotApplicableError(
            f"the loss depends on the weight of {name!r} in another way than through the layer's output: a weight that is used "
            f"twice, or a penalty on it. Choose another layer, or add the penalty afterwards: `fam(loss) + penalty`."
        )


def _differ(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() > APART * torch.maximum(a.abs().max(), b.abs().max()))
