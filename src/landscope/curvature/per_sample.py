"""One number per sample: squared gradient norms, derivatives of the outputs, second derivatives along a direction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.func import jvp

from landscope.core.errors import DifferentiationError, LandscopeError, NotApplicableError
from landscope.core.memory import is_out_of_memory
from landscope.core.torch_fixes.nested_forward import nested_forward
from landscope.curvature.gram.row_norms import explicit_norms
from landscope.curvature.layer.geometry import Linear
from landscope.curvature.layer.sites import layer_sites, replaced_output, used_once, visits_all, weight_name
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.rows.outputs import row_order
from landscope.probe.shared import once_per_probe
from landscope.probe.totals import FORWARD

# ‖g_i‖² for every sample, g_i = ∂ℓ_i/∂θ, without holding all gradients.
#
# A linear layer that runs once has g_i = Σ_s δ_is φ_isᵀ (inputs φ, slopes δ at its outputs, positions s), so that
# ‖g_i‖² = Σ_st ⟨φ_is, φ_it⟩ ⟨δ_is, δ_it⟩ needs no gradient at all (Goodfellow 2015; Li et al. 2022): one forward and one
# backward pass for all such layers. Every other parameter goes through `vmap` of the gradient of one sample, a few samples at a
# time; where a model cannot be vmapped, through one sample after the other.


@once_per_probe
def linear_layers(probe: Probe) -> tuple[str, ...]:
    """Layers whose per-sample gradient norms follow from inputs and slopes: linear, by sample, weight used once and measured.

    As far as two samples tell; a batch that goes through one of them in another way takes its gradients instead.
    """
    return tuple(
        site.name
        for site in layer_sites(probe).values()
        if isinstance(probe.modules[site.name], Linear)
        and site.faithful
        and site.by_sample
        and weight_name(probe, site.name) in probe.params
        and used_once(probe, site.name)
        and _bias_is_own(probe, site.name)
    )


def _bias_is_own(probe: Probe, layer: str) -> bool:
    bias = probe.modules[layer]._parameters.get("bias")
    owners = [name for name, p in probe.modules[""].named_parameters(remove_duplicate=False) if p is bias]
    return bias is None or (len(owners) == 1 and owners[0] in probe.params)


def squared_gradient_norms(probe: Probe, batch: Batch) -> Tensor:
    """‖g_i‖² of a divisible piece of data, (n,) in float64.

    >>> probe = Probe(nn.Linear(2, 1), (torch.eye(2), torch.zeros(2, 1)), "mse")
    >>> norms = squared_gradient_norms(probe, next(probe.batches()))
    >>> z = probe.outputs(probe.params, next(probe.batches()))
    >>> bool(torch.allclose(norms, ((2 * z) ** 2 * 2).double().flatten()))      # inputs of norm 1, and a bias
    True
    """
    tapped = _slopes(probe, {name: probe.modules[name] for name in linear_layers(probe)}, batch)
    seen = {f"{name}.{key}".lstrip(".") for name in tapped for key, _ in probe.modules[name].named_parameters()}
    first = {id(p): name for name, p in probe.modules[""].named_parameters()}
    covered = {first[id(probe.modules[""].get_parameter(name))] for name in seen}
    rest = {name: p for name, p in probe.params.items() if name not in covered}
    total = torch.zeros(batch.size, dtype=torch.float64, device=probe.device)
    for name, (x, slope) in tapped.items():
        total += _linear_norms(x, slope, probe.modules[name]._parameters.get("bias") is not None)
    if rest:
        one = torch.ones(1, batch.size, 1, dtype=probe.dtype, device=probe.device)
        total += explicit_norms(probe, rest, batch, probe.loss_sum, one)
    return total


def _slopes(probe: Probe, layers: Mapping[str, nn.Module], batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
    """Inputs of the layers and slopes at their outputs, of those that the whole batch goes through, one row per sample."""
    if not layers:
        return {}
    inputs: dict[str, list[Tensor]] = {name: [] for name in layers}
    shifts: dict[str, list[Tensor]] = {name: [] for name in layers}
    with ExitStack() as stack:
        for name, module in layers.items():

            def tap(x: Tensor, out: Tensor, name: str = name) -> Tensor:
                inputs[name].append(x.detach().clone())
                shifts[name].append(torch.zeros_like(out).requires_grad_())
                return out + shifts[name][-1]

            stack.enter_context(replaced_output(module, tap))
        loss = probe.loss_sum(probe.params, batch)
    fitting = [name for name in layers if visits_all(inputs[name], shifts[name], batch)]
    if not fitting:
        return {}
    at = [shifts[name][0] for name in fitting]
    slopes = torch.autograd.grad(loss, at, allow_unused=True, materialize_grads=True)
    return {name: (inputs[name][0], slope) for name, slope in zip(fitting, slopes, strict=True)}


def _linear_norms(x: Tensor, slope: Tensor, bias: bool) -> Tensor:
    """Σ_st ⟨φ_s, φ_t⟩ ⟨δ_s, δ_t⟩ (+ ‖Σ_s δ_s‖²), by Gram matrices or by the gradients, whichever is smaller."""
    phi, delta = (
        x.flatten(1, -2) if x.dim() > 2 else x[:, None],
        slope.flatten(1, -2) if slope.dim() > 2 else slope[:, None],
    )
    positions, m, d = phi.shape[1], phi.shape[2], delta.shape[2]
    if positions == 1:
        weight = phi.square().sum((1, 2), dtype=torch.float64) * delta.square().sum((1, 2), dtype=torch.float64)
    elif positions**2 <= m * d:
        weight = ((phi @ phi.mT) * (delta @ delta.mT)).sum((1, 2), dtype=torch.float64)
    else:
        weight = (delta.mT @ phi).square().sum((1, 2), dtype=torch.float64)
    return weight + delta.sum(1).square().sum(1, dtype=torch.float64) if bias else weight


# How the outputs move with the parameters: J_i v for every sample, by one forward-mode derivative.


TANGENT_PASSES = 2 / 3
"""Cost of one forward-mode derivative, in gradients: twice a forward pass."""
TANGENT_LOAD = 0.5
"""Memory of one forward-mode derivative, in gradients: nothing is kept for a way back."""


def sample_rows(outputs: object, batch: Batch, what: str) -> Tensor:
    """The outputs, if they are one tensor with one row per sample."""
    if not isinstance(outputs, Tensor):
        raise NotApplicableError(f"{what} needs a model that returns one tensor, got {type(outputs).__name__}")
    if outputs.dim() == 0 or outputs.shape[0] != batch.size:
        raise NotApplicableError(
            f"{what} needs outputs with one row per sample, got {tuple(outputs.shape)} for {batch.size} samples"
        )
    return outputs


def output_tangents(probe: Probe, batch: Batch, direction: Mapping[str, Tensor], what: str) -> tuple[Tensor, Tensor]:
    """The outputs z and their derivative J v along `direction`, for one piece of data.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(2, 1), torch.zeros(2, 1)), "mse")
    >>> z, u = output_tangents(probe, next(probe.batches()), probe.params, "a doctest")
    >>> bool(torch.equal(z, u))                 # a linear map along its own weights
    True
    """

    def outputs(params: Mapping[str, Tensor]) -> Tensor:
        return sample_rows(probe.outputs(params, batch), batch, what)

    if any("Norm" in type(module).__name__ for module in probe.modules.values()):
        probe.ledger.leave_time_for_imports()
    try:
        found = jvp(outputs, (dict(probe.params),), (dict(direction),))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, LandscopeError) or is_out_of_memory(error):
            raise
        raise DifferentiationError(
            f"{what} needs a forward-mode derivative, which an operation of the model lacks: {str(error).splitlines()[0]}"
        ) from error
    return found[0], found[1]


# Second derivatives of every sample's loss along directions, and what they say about the data.
#
# vᵀ H_i v = d²/dt² ℓ_i(θ + t v) by forward mode over forward mode: all samples at once, at about four forward passes per
# direction. Their mean over samples is vᵀ H v; their spread is the sampling error of a top eigenvalue (v its vector) or,
# over random directions, of a trace.


PASSES = 4 * FORWARD


def second_derivatives(probe: Probe, batch: Batch, direction: Tensor) -> Tensor:
    """vᵀH_i v of every row of a piece (n,), for a direction v (P,); nothing is kept for a way back.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)), "mse")
    >>> second_derivatives(probe, next(probe.batches()), torch.ones(1))         # ℓ = (w x)²
    tensor([2., 8.])
    """
    way = probe.space.unflatten(direction)

    def slopes(at: dict[str, Tensor]) -> Tensor:
        return jvp(lambda params: probe.losses(params, batch), (at,), (way,))[1]

    with nested_forward():
        found: Tensor = jvp(slopes, (dict(probe.params),), (way,))[1]
    return found


MANY_ROWS, PART = 500, 4
"""Telling rows that an error over the data is taken from, or the fourth part of all where that is more: 500 of 1,500 came within
6 % of all of them on networks half trained, trained, and trained on wrong labels (12 orders each)."""


def second_derivative_moments(probe: Probe, directions: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean (k,) and covariance (k, k) over samples of v_jᵀ H_i v_j for the rows v_j; `None` where it is not available.

    The covariance is that of s_i (v_jᵀ H_i v_j − mean) where samples count for s_i in the loss (`Probe.shares`). It needs a loss
    per sample and operations with forward derivatives. Of many rows some telling ones (`MANY_ROWS`) stand for all.
    """
    if probe.loss.reduction != "per_sample" or probe.mode != "eval" or probe.n_samples < 2:
        return None
    count = max(MANY_ROWS, probe.n_samples // PART)
    order = row_order(probe) if probe.n_samples > count else None
    point = probe if order is None else probe.on_rows(order.rows[:count], 1 / order.probabilities(count))

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        q = torch.stack([second_derivatives(probe, batch, row) for row in directions]).double()
        s = probe.shares(batch)
        weighed, shares = (q, s) if batch.weights is None else (batch.weights.to(q) * q, batch.weights.to(s) * s)
        return weighed.sum(1), weighed @ q.T, weighed @ s, shares @ s

    try:
        total, products, crossed, squares = point.total(piece, load=2.0, passes=PASSES * len(directions), grad=False)
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, DifferentiationError):
            raise
        return None
    n = probe.n_samples
    mean = total / n
    mixed = torch.outer(mean, crossed)
    return mean, (products - mixed - mixed.T + squares * torch.outer(mean, mean)) / (n - 1)


def eigenvalue_data_error(probe: Probe, vector: Tensor) -> float | None:
    """Standard error over the data of λ = vᵀ H v: to first order the eigenvalue moves as its Rayleigh quotient."""
    moments = second_derivative_moments(probe, vector[None])
    return None if moments is None else math.sqrt(max(float(moments[1][0, 0]), 0.0) / probe.n_samples)


def trace_data_error(probe: Probe, directions: Tensor) -> float | None:
    """Standard error over the data of the trace, from random ±1 directions.

    The covariance of two independent directions' numbers over samples is the variance of tr H_i without the directions' own
    noise; the mean over pairs is unbiased. Where it comes out negative, because the directions' noise drowns it, their noise
    is left in: an upper bound.
    """
    moments = second_derivative_moments(probe, directions)
    if moments is None or len(directions) < 2:
        return None
    covariance = moments[1]
    k = len(directions)
    between = float(covariance.sum() - covariance.diagonal().sum()) / (k * (k - 1))
    with_noise = float(covariance.sum()) / k**2
    return math.sqrt((between if between > 0 else with_noise) / probe.n_samples)
