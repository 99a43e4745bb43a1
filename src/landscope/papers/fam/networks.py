"""The ResNet-18 of paper 4's code, and the penalty that its code trained with.

Behind the features stand two linear layers without an activation, 512 → 64 → 10; the penalty is on the second. Its code reads a
Hessian ordered (out, in, out, in) as (in, out, out, in), and holds it constant (`as_published`):

    λ/m Σ_{i,j<d} ⟨w_i, w_j⟩ T_ij,   T_ij = Σ_{k<d} ∂²L/∂w_{kj}∂w_{ik} = mean over samples of φ_j Σ_k φ_k A_{ki}

with A = diag(p) − p pᵀ the curvature of the cross-entropy at the outputs, features φ, d neurons and m inputs. Only the weight
has a gradient of it, so the network can add that itself: whatever trains it needs to know nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from landscope.models.resnet import resnet18

__all__ = ["crossed_penalty", "resnet18_with_bottleneck"]

PENULTIMATE = 64


def crossed_penalty(weight: Tensor, features: Tensor, logits: Tensor) -> Tensor:
    """(1/m) Σ_{i,j} ⟨w_i, w_j⟩ T_ij with T held constant.

    >>> weight, features = torch.eye(2), torch.tensor([[1.0, 2.0]])
    >>> round(float(crossed_penalty(weight, features, features @ weight.T)), 4)       # ½ Σ_i φ_i p_i (φ_i − Σ_k p_k φ_k)
    0.0983
    """
    d, m = weight.shape
    with torch.no_grad():
        p, used = logits.softmax(-1), features[:, :d]
        curved = p * (used - (p * used).sum(-1, keepdim=True))  # Σ_k φ_k A_{ki}
        crossed = curved.T @ used / len(features)
    return (weight @ weight.T * crossed).sum() / m


class _WithGradientOf(torch.autograd.Function):
    """The outputs as they are; backwards the gradient of a penalty comes in, as if it had been added to the loss."""

    @staticmethod
    def forward(context: Any, outputs: Tensor, penalty: Tensor) -> Tensor:
        return outputs.view_as(outputs)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        (slope,) = slopes
        return slope, torch.ones((), dtype=torch.float32, device=slope.device)


class _PenalisedLinear(nn.Linear):
    """A classifier that is trained with λ times the crossed penalty on its weight."""

    strength = 0.0

    def forward(self, x: Tensor) -> Tensor:
        outputs = super().forward(x)
        if not (self.training and self.strength and torch.is_grad_enabled()):
            return outputs
        with torch.autocast(x.device.type, enabled=False):
            penalty = self.strength * crossed_penalty(self.weight.float(), x.float(), outputs.float())
        found: Tensor = _WithGradientOf.apply(outputs, penalty)
        return found


def resnet18_with_bottleneck(
    *, num_classes: int = 10, in_channels: int = 3, width: int = 64, crossed: float = 0.0
) -> nn.Module:
    """ResNet-18 with a linear layer of 64 units before the classifier; `crossed` is the λ of the code's own penalty.

    The default initialisation is PyTorch's, as in the code.

    >>> net = resnet18_with_bottleneck(width=4)
    >>> net(torch.zeros(2, 3, 32, 32)).shape, net.fc.weight.shape
    (torch.Size([2, 10]), torch.Size([10, 64]))
    """
    body = resnet18(num_classes=PENULTIMATE, in_channels=in_channels, width=width, init="pytorch")
    classifier = _PenalisedLinear(PENULTIMATE, num_classes)
    classifier.strength = crossed
    return nn.Sequential(OrderedDict(body=body, fc=classifier))
