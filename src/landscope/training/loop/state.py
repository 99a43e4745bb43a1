"""Everything that n ≥ 1 members change while they train, apart from what their program holds; with that, what a checkpoint holds.

Data order, augmentation, dropout and the learning rate are functions of the seed and the step: none of them has a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from landscope.core.json import Plain
from landscope.training.evaluate import precise
from landscope.training.loop.step import METRICS
from landscope.training.schedule import Row

Weights = Mapping[str, Tensor]
"""Parameters and buffers of n members by name, each (n, …)."""


def member(weights: Weights, at: int) -> dict[str, Tensor]:
    """One member's tensors by name, not copied."""
    return {name: value[at] for name, value in weights.items()}


def some(weights: Weights, places: Sequence[int]) -> dict[str, Tensor]:
    """Copies of the tensors of some members, in that order."""
    return {name: value.detach()[torch.tensor(places, device=value.device)] for name, value in weights.items()}


@dataclass
class State:
    """n members at an optimizer step; what is stacked has them in the order of `numbers`."""

    numbers: list[int]
    """Which members these are."""
    totals: Tensor
    """Sums of `METRICS` over the training samples since the last row of the history, (n, 3)."""
    history: list[list[Row]]
    step: int = 0
    """Optimizer steps done."""
    seconds: float = 0.0
    best: Weights = field(default_factory=dict)
    """The weights that were best on the validation samples."""
    average: Weights = field(default_factory=dict)
    averaged: int = 0
    """How many iterates the average holds."""

    @classmethod
    def fresh(cls, numbers: Sequence[int], device: torch.device) -> State:
        totals = torch.zeros(len(numbers), len(METRICS), dtype=precise(device), device=device)
        return cls(list(numbers), totals, [[] for _ in numbers])

    def take(self, places: Sequence[int]) -> State:
        return State(
            numbers=[self.numbers[at] for at in places],
            totals=self.totals[torch.tensor(places, device=self.totals.device)],
            history=[self.history[at] for at in places],
            step=self.step,
            seconds=self.seconds,
            best=some(self.best, places),
            average=some(self.average, places),
            averaged=self.averaged,
        )

    def tensors(self) -> dict[str, Tensor]:
        groups = {"best": self.best, "average": self.average}
        found = {f"{group}/{name}": value for group, weights in groups.items() for name, value in weights.items()}
        return {**found, "totals": self.totals}

    def plain(self) -> dict[str, Plain]:
        return {
            "numbers": list(self.numbers),
            "step": self.step,
            "seconds": self.seconds,
            "averaged": self.averaged,
            "history": [[dict(row) for row in rows] for rows in self.history],
        }

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], device: torch.device) -> State:
        """What `tensors` and `plain` were taken from, bit for bit."""

        def group(start: str) -> dict[str, Tensor]:
            return {key.removeprefix(start): t.to(device) for key, t in tensors.items() if key.startswith(start)}

        return cls(
            numbers=list(plain["numbers"]),
            totals=tensors["totals"].to(device),
            history=[[dict(row) for row in rows] for rows in plain["history"]],
            step=int(plain["step"]),
            seconds=float(plain["seconds"]),
            best=group("best/"),
            average=group("average/"),
            averaged=int(plain["averaged"]),
        )
