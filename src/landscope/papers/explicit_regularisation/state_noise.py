"""The "SAM-sharpness" of papers 1 and 2: the loss under Gaussian noise on everything that a state dict holds.

    (L(s + ε_j) − L(s)) / ρ,   ε_j ~ N(0, ρ²/P),   s = all floating-point entries of the state dict

The maximum of 10 (paper 1) or the mean absolute value of 100 (paper 2). Against `random_sharpness`:

- the noise also hits the running means and variances of BatchNorm, and in paper 1 the temperature, which is a parameter there;
- ‖ε‖₂ is ρ only on average, and more than ρ with the buffers, which P does not count;
- the result is divided by ρ.

samples + 1 forward passes, each on an edited copy of the model.

Paper 1's published values are 20 to 400 times what this gives. They have the size, the order and the spread over seeds of

    max_j (L_{S_j}(s + ε_j) − L_{S_0}(s)) / ρ,   each loss on a random half S_j of the samples, 20 draws

that is of losses that were compared on different samples (`RedrawnSamplesSharpness`): the noise of a mean over half of them,
1.87 sd / √n / ρ for the largest of 20, sd the spread of the loss over samples. Noise on the weights adds next to nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from landscope.core.errors import NonFiniteLossError, NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator, normal
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.sharpness.random_noise import summaries
from landscope.probe.perturbed import check_positive
from landscope.probe.probe import Probe
from landscope.probe.rows.outputs import outputs_of
from landscope.probe.shared import loss_value

__all__ = ["RedrawnSamplesSharpness", "StateNoiseSharpness", "with_state_noise"]


def with_state_noise(probe: Probe, scale: float, rng: torch.Generator, temperature: bool) -> Probe:
    """The same data at a copy of the model with noise N(0, scale²) on every floating-point entry of its state dict.

    >>> probe = Probe(nn.BatchNorm1d(2), (torch.randn(4, 2), torch.tensor([0, 1, 0, 1])))
    >>> noisy = with_state_noise(probe, 0.1, generator(0), temperature=False)
    >>> bool((noisy.module("").running_var != 1).all()), bool((probe.module("").running_var == 1).all())
    (True, True)
    """

    def edit(model: nn.Module) -> None:
        for entry in model.state_dict().values():
            if entry.is_floating_point():
                entry.add_(normal(entry.shape, rng, torch.float32, entry.device).to(entry.dtype), alpha=scale)

    noisy = probe.with_model(edit)
    if not temperature:
        return noisy
    return noisy.at_temperature(probe.temperature + scale * float(normal((1,), rng, torch.float32)))


@register("explicit-regularisation/state_noise_sharpness")
@dataclass(frozen=True, kw_only=True)
class StateNoiseSharpness(Measure):
    """The `statistic` of (L(s + ε) − L(s))/ρ over `samples` noises ε of standard deviation ρ/√P on the whole state.

    P counts all parameters of the model, measured or not.

    Args:
        temperature: the temperature is a parameter too: noise on it, and P + 1 for P.

    >>> probe = Probe(nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")
    >>> estimate = StateNoiseSharpness(rho=0.1, samples=4)(probe)
    >>> len(estimate.details["changes"]), estimate.status.value
    (4, 'converged')
    """

    title, family, unit, better = "SAM-sharpness under noise on the whole state", Family.PERTURBATION, "loss/ρ", None
    cost = "a forward pass for each draw"

    rho: float = 0.05
    samples: int = 10
    statistic: Literal["max", "mean_abs"] = "max"
    temperature: bool = False

    def __post_init__(self) -> None:
        check_positive(rho=self.rho)
        if self.statistic not in ("max", "mean_abs"):
            raise ValueError(f"statistic must be 'max' or 'mean_abs', got {self.statistic!r}")
        if self.samples < 2:
            raise ValueError(f"samples must be at least 2, got {self.samples}")

    def _measure(self, probe: Probe) -> Estimate:
        parameters = sum(p.numel() for p in probe.module("").parameters()) + self.temperature
        scale = self.rho / math.sqrt(parameters)
        base = loss_value(probe)
        changes = []
        for j in range(self.samples):
            noisy = with_state_noise(probe, scale, generator(self.seed, "state noise", j), self.temperature)
            try:
                changes.append((noisy.value() - base) / self.rho)
            except NonFiniteLossError as error:
                raise NotApplicableError(
                    f"noise of size {scale:.2g} on the state makes the loss infinite or undefined (a running variance "
                    f"below zero?): rho = {self.rho:g} is too large for {parameters} parameters"
                ) from error
        rises = torch.tensor(changes, dtype=torch.float64)
        maximum = self.statistic == "max"
        return Estimate(
            summaries(rises)[self.statistic],
            stderr=None if maximum else float(rises.abs().std()) / math.sqrt(self.samples),
            status=Status.CONVERGED,
            reason="the maximum over a sample of directions has no standard error" if maximum else "",
            details={
                "changes": list(changes), "loss": base, "noise": scale, "parameters": parameters, **_five(rises.abs()),
            },
        )  # fmt: skip


def _five(sizes: torch.Tensor) -> dict[str, float]:
    """The statistics that paper 2 keeps.

    >>> _five(torch.tensor([1.0, 3.0, 2.0]))
    {'mean': 2.0, 'sd': 1.0, 'median': 2.0, 'max': 3.0, 'min': 1.0}
    """
    found = {"mean": sizes.mean(), "sd": sizes.std(), "median": sizes.median(), "max": sizes.max(), "min": sizes.min()}
    return {name: float(value) for name, value in found.items()}


@register("explicit-regularisation/redrawn_samples_sharpness")
@dataclass(frozen=True, kw_only=True)
class RedrawnSamplesSharpness(Measure):
    """The largest of (L_{S_j}(s + ε_j) − L_{S_0}(s))/ρ, each loss on a random `share` of the samples.

    Args:
        noise: ε as `StateNoiseSharpness` draws it; without, the weights stay as they are, and one forward pass suffices.

    >>> probe = Probe(nn.Linear(2, 1, bias=False), (torch.randn(64, 2), torch.randn(64, 1)), "mse")
    >>> still, moved = (RedrawnSamplesSharpness(noise=noise)(probe).value for noise in (False, True))
    >>> still > 0, 0.5 < moved / still < 2
    (True, True)
    """

    title, family, unit, better = "SAM-sharpness on redrawn samples", Family.PERTURBATION, "loss/ρ", None
    cost = "half a forward pass for each draw"

    rho: float = 0.05
    samples: int = 20
    share: float = 0.5
    noise: bool = True

    def __post_init__(self) -> None:
        check_positive(rho=self.rho)
        if self.samples < 2:
            raise ValueError(f"samples must be at least 2, got {self.samples}")
        if not 0 < self.share < 1:
            raise ValueError(f"share must lie between 0 and 1, got {self.share:g}")

    def _measure(self, probe: Probe) -> Estimate:
        outputs, n = outputs_of(probe), probe.n_samples
        while outputs.advance():
            pass
        losses = outputs.losses
        drawn = round(self.share * n)
        if losses is None or not probe.takes_rows or drawn < 1:
            raise NotApplicableError("samples are drawn again for every loss: it needs losses of single samples")
        subsets = [
            torch.randperm(n, generator=generator(self.seed, "redrawn", j))[:drawn] for j in range(self.samples + 1)
        ]
        base = float(losses[subsets[0]].mean())
        scale = self.rho / math.sqrt(sum(p.numel() for p in probe.module("").parameters()))
        changes = [
            ((self._moved(probe, scale, j, chosen) if self.noise else float(losses[chosen].mean())) - base) / self.rho
            for j, chosen in enumerate(subsets[1:])
        ]
        return Estimate(
            max(changes),
            stderr=None,
            status=Status.CONVERGED,
            reason="the maximum over a sample of directions has no standard error",
            details={"changes": [*changes], "loss": base, "spread": float(losses.std()), "drawn": drawn},
        )

    def _moved(self, probe: Probe, scale: float, j: int, chosen: torch.Tensor) -> float:
        noisy = with_state_noise(probe, scale, generator(self.seed, "state noise", j), temperature=False)
        return noisy.on_rows(chosen, torch.full((len(chosen),), probe.n_samples / len(chosen))).value()
