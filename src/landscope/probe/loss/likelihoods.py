"""The distributions whose negative log density a loss may be, and their Fisher matrix at the outputs.

    categorical   B = diag(p) − p pᵀ,   p = softmax(z)
    bernoulli     B = diag(σ(z) (1 − σ(z)))
    gaussian      B = 2 I                (variance ½, whose −log density is (z − y)²)

averaged over the predictions of a sample, and weighed as its loss is. For these (natural parameters) B is also the second
derivative of the loss at the outputs, whatever the targets: that is how a declared likelihood is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from landscope.core.errors import LossError
from landscope.core.seeding import generator, normal
from landscope.probe.loss.losses import Loss
from landscope.probe.loss.targets import IGNORED, class_dimension

STEP = 1e-4
"""Of the difference quotient, in units of the outputs' size: its error is about 1e-8 in float64."""
ALLOWED = 1e-2


def output_curvature(loss: Loss, z: Tensor, tangent: Tensor, targets: object) -> Tensor:
    """B times a tangent at the outputs z of a batch, not divided by the number of samples.

    >>> loss = Loss(lambda z, y: (z - y).square().mean(1), "per_sample", likelihood="gaussian")
    >>> output_curvature(loss, torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(1, 2))
    tensor([[1., 1.]])
    """
    if loss.likelihood == "categorical":
        curved = _categorical(loss, z, tangent, targets)
    else:
        predictions = z.numel() // z.shape[0]
        p = z.sigmoid()
        curved = (p * (1 - p) if loss.likelihood == "bernoulli" else 2) * tangent / predictions
    weight = loss.sample_weights(z, targets)
    return curved if weight is None else curved * weight.to(z.dtype).view(-1, *[1] * (z.dim() - 1))


def _categorical(loss: Loss, z: Tensor, tangent: Tensor, targets: object) -> Tensor:
    """(diag(p) − p pᵀ) u along the classes, averaged over the positions of a sample that are not ignored."""
    assert isinstance(targets, Tensor)
    dim = class_dimension(z, targets, loss.classes_last)
    p = z.softmax(dim)
    curved = p * (tangent - (p * tangent).sum(dim, keepdim=True))
    if z.dim() == 2:
        return curved
    if targets.is_floating_point():
        return curved * z.shape[dim] * z.shape[0] / z.numel()
    kept = (targets != IGNORED).to(z.dtype)
    share = kept / kept.flatten(1).sum(1).clamp(min=1).view(-1, *[1] * (kept.dim() - 1))
    return curved * share.unsqueeze(dim)


def check_likelihood(loss: Loss, loss_of: Callable[[Tensor], Tensor], z: Tensor, targets: object) -> None:
    """Refuse a loss whose second derivative at the outputs is not that of the likelihood it was declared with.

    `loss_of` maps outputs (n, …) to the sum of their losses. A difference quotient of its gradient is compared, so that first
    derivatives suffice.
    """
    z = z.detach().double()
    u = normal(z.shape, generator(0, "likelihood"), z.dtype, z.device)
    h = STEP * max(1.0, float(z.abs().max()) if z.numel() else 1.0)
    expected = output_curvature(loss, z, u, targets)
    try:
        found = (_slope(loss_of, z + h * u) - _slope(loss_of, z - h * u)) / (2 * h)
    except (RuntimeError, TypeError, ValueError):
        return  # a loss that insists on its own precision, or has no derivative: measuring says so
    scale = max(float(expected.norm()), float(found.norm()))
    if not math.isfinite(scale) or float((found - expected).norm()) <= ALLOWED * scale:
        return
    times = float((found * expected).sum() / expected.square().sum()) if bool(expected.any()) else math.nan
    if math.isfinite(times) and times > ALLOWED and float((found - times * expected).norm()) <= ALLOWED * scale:
        what = f"it is {times:.4g} times that"
        remedy = "The predictions of a sample are averaged in a likelihood: divide by their number, or by the factor."
    else:
        what = f"the two differ by {100 * float((found - expected).norm()) / scale:.0f} %"
        remedy = "Declare another likelihood, or none (likelihood=None): the GGN exists for any loss."
    raise LossError(
        f"the loss {loss.name!r} was declared a {loss.likelihood} log-likelihood, and its second derivative at the outputs is "
        f"not that of one: {what}. {remedy}"
    )


def _slope(loss_of: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    leaf = z.detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(loss_of(leaf), leaf, allow_unused=True, materialize_grads=True)
    return slope
