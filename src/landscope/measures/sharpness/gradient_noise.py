"""The trace of the covariance of the per-sample gradients: how much the samples disagree about where to go.

    tr Cov = (1/n) Σ_i ‖g_i − ∇L‖² = (1/n) Σ_i ‖g_i‖² − ‖∇L‖²

Exact: the covariance of this data (1/n, not 1/(n − 1)). The squared norms take about one gradient where all layers are linear and
two to four otherwise (see `per_sample_gradients`), ∇L one (shared with other measures), the error bar two forward passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from landscope.core.batches import Batch
from landscope.core.errors import DifferentiationError, NotApplicableError
from landscope.core.estimate import Estimate, Plain
from landscope.core.probe import Probe
from landscope.measures.base import Measure, register
from landscope.measures.shared import gradient
from landscope.measures.sharpness.gradient_norm import slopes_along
from landscope.measures.sharpness.output_tangents import TANGENT_PASSES
from landscope.measures.sharpness.per_sample import mean_and_error, sums
from landscope.measures.sharpness.per_sample_gradients import linear_layers, squared_gradient_norms

__all__ = ["GradientNoise"]


@register("gradient_noise")
@dataclass(frozen=True, kw_only=True)
class GradientNoise(Measure):
    """tr Cov of the per-sample gradients, exact.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.tensor([[1.0], [-1.0]]), torch.ones(2, 1)), "mse")
    >>> abs(GradientNoise()(probe).value - 4.0) < 1e-4            # gradients 2w ∓ 2
    True
    """

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
