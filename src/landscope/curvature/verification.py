"""Are the model's second derivatives true? Automatic differentiation is trusted, but checked once.

A custom backward pass that forgets part of its graph, or a wrong formula in a library (the fused weight norm of torch
2.13), gives a Hessian that looks fine and is not. Before the first product, the product with a random vector on a few
samples is compared with the difference quotient of the gradient, (∇L(θ + hv) − ∇L(θ − hv)) / 2h, in float64.
"""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch import Tensor, nn

from landscope.core.errors import DifferentiationError
from landscope.core.probe import Probe
from landscope.core.seeding import generator, normal
from landscope.curvature.differentiation import hessian_reverse_over_reverse

__all__ = ["check_second_derivatives"]

SAMPLES = 4
STEP = 1e-7
"""Relative size of the step: small enough that hardly any rectifier switches, large enough for float64."""
ALLOWED = 0.05
"""Relative difference that is not yet an error; a true Hessian gives about 1e-6, a wrong one is off by tenths."""

_checked: WeakSet[nn.Module] = WeakSet()


def check_second_derivatives(probe: Probe) -> None:
    """Raise `DifferentiationError` if automatic second derivatives disagree with difference quotients; once per model."""
    model = probe.module("")
    if model in _checked:
        return
    _checked.add(model)
    try:
        twin = probe.few_in_float64(SAMPLES)
        if twin is None:
            return
        differences = [_difference(twin, attempt) for attempt in range(3)]
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return  # the model insists on its own precision, or cannot be differentiated: the product will say so
    if min(differences) > ALLOWED:
        raise DifferentiationError(
            f"automatic differentiation gives second derivatives that differ from difference quotients of the gradient by "
            f"{100 * min(differences):.0f} %. An operation of the model or the loss has a backward pass whose own derivative is "
            f"wrong or cut off (a custom torch.autograd.Function, .detach(), .data or .item() on the way). GGN needs first "
            f"derivatives only."
        )


def _difference(probe: Probe, attempt: int) -> float:
    """Relative difference between the product and the difference quotient, in units of their size or of rounding."""
    space, batch = probe.space, next(probe.batches())
    with probe.measuring():
        flat = probe.vector()
        v = normal(flat.shape, generator(attempt, "second derivatives"), flat.dtype, flat.device)
        h = STEP * float(flat.norm() / v.norm()) or STEP

        def gradient(at: Tensor) -> Tensor:
            leaves = {name: value.detach().requires_grad_() for name, value in space.unflatten(at).items()}
            loss = probe.loss_sum(leaves, batch)
            grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return space.flatten(dict(zip(leaves, grads, strict=True)))

        quotient = (gradient(flat + h * v) - gradient(flat - h * v)) / (2 * h)
        (product,) = hessian_reverse_over_reverse(lambda at: probe.loss_sum(at, batch), probe.params, space, v[None])
        noise = torch.finfo(flat.dtype).eps * float(gradient(flat).norm()) / h
    return float((product - quotient).norm()) / max(float(product.norm()), float(quotient.norm()), 100 * noise, 1e-300)
