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
ATTEMPTS = 3
"""Directions that are tried; one that agrees is enough, since a wrong Hessian agrees in none."""
STEP = 1e-7
"""Relative size of the step: small enough that hardly any rectifier switches, large enough for float64."""
FINER = 4
"""A second step is so many times smaller: at a kink, two quotients differ, and neither tells anything."""
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
        differences = [found for attempt in range(ATTEMPTS) if (found := _difference(twin, attempt)) is not None]
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return  # the model insists on its own precision, or cannot be differentiated: the product will say so
    if differences and min(differences) > ALLOWED:
        raise DifferentiationError(
            f"automatic differentiation gives second derivatives that differ from difference quotients of the gradient by "
            f"{100 * min(differences):.0f} %. An operation of the model or the loss has a backward pass whose own derivative is "
            f"wrong or cut off (a custom torch.autograd.Function, .detach(), .data or .item() on the way). GGN needs first "
            f"derivatives only."
        )


def _difference(probe: Probe, attempt: int) -> float | None:
    """Relative difference between the product and the difference quotient, in units of their size or of rounding.

    `None` where the quotient has no limit, so that there is nothing to compare with.
    """
    space, batch = probe.space, next(probe.batches())
    with probe.measuring():
        flat = probe.vector()
        v = normal(flat.shape, generator(attempt, "second derivatives"), flat.dtype, flat.device)
        if attempt == ATTEMPTS - 1 and bool(flat.any()):
            v = v * flat.abs()  # weights that are all but 0 keep their signs, and rectifiers behind them their sides
        h = STEP * float(flat.norm() / v.norm()) or STEP

        def gradient(at: Tensor) -> Tensor:
            leaves = {name: value.detach().requires_grad_() for name, value in space.unflatten(at).items()}
            loss = probe.loss_sum(leaves, batch)
            grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return space.flatten(dict(zip(leaves, grads, strict=True)))

        def quotient(step: float) -> Tensor:
            return (gradient(flat + step * v) - gradient(flat - step * v)) / (2 * step)

        coarse, fine = quotient(h), quotient(h / FINER)
        (product,) = hessian_reverse_over_reverse(lambda at: probe.loss_sum(at, batch), probe.params, space, v[None])
        noise = torch.finfo(flat.dtype).eps * float(gradient(flat).norm()) * FINER / h
    scale = max(float(product.norm()), float(coarse.norm()), 100 * noise, 1e-300)
    if (
        float((coarse - fine).norm()) > ALLOWED * scale
    ):  # a rectifier switches within the step: the quotient has no limit
        return None
    return float((product - coarse).norm()) / scale
