"""Everything that the members of a chunk change while they train together, and so everything that its checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from landscope.core.json import Plain
from landscope.training.loop.step import METRICS
from landscope.training.pool.program import Stack
from landscope.training.pool.updates import State
from landscope.training.schedule import Row

__all__ = ["ChunkState", "Health"]


@dataclass
class Health:
    """Which members still move, and at which step (from 0) the loss of the others was not finite."""

    alive: Tensor
    failed_at: Tensor

    @classmethod
    def of(cls, members: int, device: torch.device) -> Health:
        """All are well."""
        return cls(torch.ones(members, dtype=torch.bool, device=device), torch.full((members,), -1, device=device))


@dataclass
class ChunkState:
    """n members at an optimizer step; what is stacked has them in the order of `numbers`."""

    numbers: list[int]
    """Which members of the pool these are."""
    stack: Stack
    optimizer: State
    health: Health
    totals: Tensor
    """Sums of `METRICS` over the training rows since the last row of the history, (n, 3)."""
    history: list[list[Row]]
    step: int = 0
    seconds: float = 0.0
    best: dict[str, Tensor] = field(default_factory=dict)
    """Parameters and buffers that were best on the validation rows."""
    average: dict[str, Tensor] = field(default_factory=dict)
    averaged: int = 0
    """How many iterates the average holds."""

    @classmethod
    def fresh(cls, numbers: Sequence[int], stack: Stack, optimizer: State) -> ChunkState:
        """Before the first step."""
        device = next(iter(stack.params.values())).device
        totals = torch.zeros(len(numbers), len(METRICS), dtype=torch.float64, device=device)
        health = Health.of(len(numbers), device)
        return cls(list(numbers), stack, optimizer, health, totals, [[] for _ in numbers])

    def take(self, places: Sequence[int]) -> ChunkState:
        """The state of some members alone."""
        rows = torch.tensor(places, device=self.totals.device)

        def some(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: value[rows] for name, value in tensors.items()}

        return ChunkState(
            numbers=[self.numbers[at] for at in places],
            stack=self.stack.take(places),
            optimizer={name: some(tensors) for name, tensors in self.optimizer.items()},
            health=Health(self.health.alive[rows], self.health.failed_at[rows]),
            totals=self.totals[rows],
            history=[self.history[at] for at in places],
            step=self.step,
            seconds=self.seconds,
            best=some(self.best),
            average=some(self.average),
            averaged=self.averaged,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, by name."""
        groups: dict[str, Mapping[str, Tensor]] = {
            "params": self.stack.params,
            "buffers": self.stack.buffers,
            "best": self.best,
            "average": self.average,
            **{f"optimizer.{name}": tensors for name, tensors in self.optimizer.items()},
        }
        found = {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}
        return {**found, "totals": self.totals, "alive": self.health.alive, "failed_at": self.health.failed_at}

    def plain(self) -> dict[str, Plain]:
        """Everything else, as JSON knows it."""
        return {
            "numbers": list(self.numbers),
            "step": self.step,
            "seconds": self.seconds,
            "averaged": self.averaged,
            "history": [[dict(row) for row in rows] for rows in self.history],
        }

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], device: torch.device) -> ChunkState:
        """What `tensors` and `plain` were taken from, bit for bit."""

        def group(name: str) -> dict[str, Tensor]:
            start = f"{name}/"
            return {
                key.removeprefix(start): value.to(device) for key, value in tensors.items() if key.startswith(start)
            }

        remembered = sorted({key.partition("/")[0] for key in tensors if key.startswith("optimizer.")})
        return cls(
            numbers=list(plain["numbers"]),
            stack=Stack({k: v.requires_grad_() for k, v in group("params").items()}, group("buffers")),
            optimizer={name.removeprefix("optimizer."): group(name) for name in remembered},
            health=Health(tensors["alive"].to(device), tensors["failed_at"].to(device)),
            totals=tensors["totals"].to(device),
            history=[[dict(row) for row in rows] for rows in plain["history"]],
            step=int(plain["step"]),
            seconds=float(plain["seconds"]),
            best=group("best"),
            average=group("average"),
            averaged=int(plain["averaged"]),
        )
