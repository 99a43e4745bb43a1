"""Norms: of the gradient, of its noise over samples, and of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from landscope.core.errors import DifferentiationError, NotApplicableError
from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.curvature.per_sample import (
    TANGENT_LOAD,
    TANGENT_PASSES,
    linear_layers,
    output_tangents,
    squared_gradient_norms,
)
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.tied import saying_ties
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.shared import gradient, mean_and_error, sums

__all__ = ["GradientNoise", "GradientNorm", "L2Norm", "slopes_along"]


# The norm of the gradient of the mean loss, ‖∇L‖₂: zero at a minimum, so it shows how far from one the network is.
#
# Another sample of the data would change ∇L by the mean of the per-sample gradients' deviations; to first order only their
# part along ∇L changes the norm: the standard error is that of the mean of ⟨g_i, ∇L⟩/‖∇L‖, one forward-mode derivative.


def slopes_along(probe: Probe, batch: Batch, direction: Tensor) -> Tensor:
    """⟨g_i, v⟩ for every sample of a piece, in float64: the change of its loss along v (P,)."""
    z, u = output_tangents(probe, batch, probe.space.unflatten(direction), "the spread of the gradient")
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(probe.loss_of(leaf, batch), leaf)
    return (slope * u).reshape(batch.size, -1).sum(1, dtype=torch.float64)


@register("gradient_norm")
@dataclass(frozen=True, kw_only=True)
class GradientNorm(Measure):
    """‖∇L‖₂ over all data; one gradient, and two forward passes for its error bar.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(2, 1), torch.zeros(2, 1)), "mse")
    >>> bool(abs(GradientNorm()(probe).value - 2 * abs(probe.vector().item())) < 1e-6)
    True
    """

    title = "gradient norm"
    family = Family.GRADIENT
    unit = "loss per parameter"
    better = None
    cost = "one gradient and two forward passes"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation", "logit_shift"})

    def _measure(self, probe: Probe) -> Estimate:
        slope = gradient(probe)
        norm = float(slope.double().norm())
        if norm == 0:
            return Estimate(norm)
        unit = slope / norm
        details: dict[str, Plain] = {"per_parameter": norm / probe.n_params**0.5}
        try:
            if probe.mode == "batch_statistics":
                raise NotApplicableError("samples share batch statistics, so there is no spread over single samples")
            total, squares = probe.total(
                lambda batch: sums(slopes_along(probe, batch, unit)),
                load=TANGENT_LOAD,
                passes=TANGENT_PASSES,
                grad=False,
            )
        except (DifferentiationError, NotApplicableError) as error:
            return Estimate(norm, details={**details, "no_data_stderr": str(error)})
        return Estimate(norm, data_stderr=mean_and_error(total, squares, probe.n_samples)[1], details=details)

    def passes(self, probe: Probe) -> float:
        """One gradient and one forward-mode derivative."""
        return 1.0 + TANGENT_PASSES


# The trace of the covariance of the per-sample gradients: how much the samples disagree about the direction of descent.
#
#     tr Cov = (1/n) Σ_i ‖g_i − ∇L‖² = (1/n) Σ_i ‖g_i‖² − ‖∇L‖²
#
# Exact: the covariance of this data (1/n, not 1/(n − 1)). The squared norms take about one gradient where all layers are
# linear and two to four otherwise (see `landscope.curvature.per_sample`), ∇L one (shared with other measures), the error bar
# two forward passes.


@register("gradient_noise")
@dataclass(frozen=True, kw_only=True)
class GradientNoise(Measure):
    """tr Cov of the per-sample gradients, exact.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.tensor([[1.0], [-1.0]]), torch.ones(2, 1)), "mse")
    >>> abs(GradientNoise()(probe).value - 4.0) < 1e-4            # gradients 2w ∓ 2
    True
    """

    title = "gradient noise"
    family = Family.GRADIENT
    unit = "loss² per parameter²"
    better = None
    cost = "the gradient of every sample: two to four gradients and two forward passes"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation", "logit_shift"})

    def _measure(self, probe: Probe) -> Estimate:
        if not next(probe.batches()).divisible:
            raise NotApplicableError(
                "the gradient of a single sample is not defined where the samples of a batch share its statistics, or come as "
                "one piece (a graph)"
            )
        slope = gradient(probe)
        square = float(slope.double().square().sum())
        details: dict[str, Plain] = {"gradient_norm": square**0.5}
        spread = True

        def piece(batch: Batch) -> tuple[Tensor, ...]:
            norms = squared_gradient_norms(probe, batch)
            apart = norms - 2 * slopes_along(probe, batch, slope) + square if spread else norms
            return (*sums(norms), *sums(apart))

        load, passes = (2.0, 1.0) if self._only_linear(probe) else (4.0, 3.0)
        try:
            total, squares, apart, apart_squares = probe.total(piece, load=load, passes=passes + TANGENT_PASSES)
        except DifferentiationError as error:
            spread = False
            details["data_stderr_of"] = f"the mean of ‖g_i‖² alone: {error}"
            total, squares, apart, apart_squares = probe.total(piece, load=load, passes=passes)
        second, _ = mean_and_error(total, squares, probe.n_samples)
        _, data_stderr = mean_and_error(apart, apart_squares, probe.n_samples)
        noise = max(second - square, 0.0)
        details |= {"second_moment": second, "noise_to_signal": noise / square if square > 0 else None}
        return Estimate(noise, data_stderr=data_stderr, details=details)

    def _only_linear(self, probe: Probe) -> bool:
        layers = {name.rpartition(".")[0] for name in probe.params}
        return layers <= set(linear_layers(probe))

    def passes(self, probe: Probe) -> float:
        """A gradient, the norms, and a forward-mode derivative."""
        return 1.0 + (1.0 if self._only_linear(probe) else 3.0) + TANGENT_PASSES


# The norm of the weights, ‖θ‖₂: of all measured parameters, or of one layer.


@register("l2_norm")
@dataclass(frozen=True, kw_only=True)
class L2Norm(Measure):
    """‖θ‖₂, or its square; costs nothing.

    Args:
        layer: only the parameters of this layer, or this parameter (`"fc.weight"`).
        squared: ‖θ‖₂² instead.

    >>> import torch
    >>> net = torch.nn.Linear(2, 2, bias=False)
    >>> torch.nn.init.ones_(net.weight).shape
    torch.Size([2, 2])
    >>> L2Norm()(Probe(net, (torch.randn(3, 2), torch.tensor([0, 1, 1]))))
    Estimate(2, exact)
    """

    title = "ℓ₂ norm"
    family = Family.WEIGHTS
    unit = "parameter"
    better = None
    cost = "nothing: the data is not read"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation"})
    layer: str | None = None
    squared: bool = False

    def _measure(self, probe: Probe) -> Estimate:
        at = probe if self.layer is None else probe.restrict(self.layer)
        squares = {name: float(p.double().square().sum()) for name, p in at.params.items()}
        total = sum(squares.values())
        by_layer = {layer: sum(squares[name] for name in names) ** 0.5 for layer, names in at.layers().items()}
        found = Estimate(
            total if self.squared else total**0.5, details={"parameters": at.n_params, "by_layer": by_layer}
        )
        return found if self.layer is None else saying_ties(found, probe, at.space.names)

    def passes(self, probe: Probe) -> float:
        """None: the data is not looked at."""
        return 0.0
