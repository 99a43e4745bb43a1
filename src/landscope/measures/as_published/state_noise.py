"""The "SAM-sharpness" of papers 1 and 2: the loss under Gaussian noise on everything that a state dict holds.

    (L(s + ε_j) − L(s)) / ρ,   ε_j ~ N(0, ρ²/P),   s = all floating-point entries of the state dict

The maximum of 10 (paper 1) or the mean absolute value of 100 (paper 2). Against `random_sharpness`:

- the noise also hits the running means and variances of BatchNorm, and in paper 1 the temperature, which is a parameter there;
- ‖ε‖₂ is ρ only on average, and more than ρ with the buffers, which P does not count;
- the result is divided by ρ.

samples + 1 forward passes, each on an edited copy of the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from landscope.core.errors import NonFiniteLossError, NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator, normal
from landscope.measures.base import Measure
from landscope.measures.sharpness.random_noise import summaries
from landscope.probe.perturbed import check_positive
from landscope.probe.probe import Probe
from landscope.probe.shared import loss_value

__all__ = ["StateNoiseSharpness", "with_state_noise"]


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

    key: ClassVar[str] = "state_noise_sharpness"

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
            details={"changes": list(changes), "loss": base, "noise": scale, "parameters": parameters},
        )
