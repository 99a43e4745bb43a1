"""What a pool leaves: its members, tables of them, and evaluations of all of them as one program."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from landscope.data import Split
from landscope.measures.measuring import measure
from landscope.measures.resolve import Wanted
from landscope.measures.results import Report
from landscope.training.evaluate import SplitScore, autocast, evaluate
from landscope.training.loop.folder import FAILED, TrainingResult
from landscope.training.pool.passes import Passes, Stack, stacked
from landscope.training.schedule import Row
from landscope.training.spec import TrainingSpec
from landscope.training.task import AsCalled, Task

if TYPE_CHECKING:
    import pandas as pd

Overrides = Mapping[str, Sequence[object]]
"""Keys of a spec, such as "optimizer.lr", with one value for each member."""

Strategy = Literal["stacked", "sequential"]
"""All members as one program, or `train` for one after another."""


@dataclass(frozen=True)
class Choice:
    """How a pool is trained, and why."""

    strategy: Strategy
    reason: str


Which = Literal["final", "best", "average"]
SplitName = Literal["train", "validation", "test"]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The members of a pool, in the order of their seeds; each is what `train` returns for its spec.

    `choice` says whether they were trained as one program or one after another, and why. A member whose loss or weights became
    NaN or infinite has `finished=False` and is listed in `failed`; the weights that it keeps are from before that step
    (stacked) or from its last whole epoch (sequential).
    """

    members: tuple[TrainingResult, ...]
    overrides: Overrides = field(default_factory=dict)
    choice: Choice
    task: Task = field(repr=False)
    seconds: float

    @property
    def seeds(self) -> tuple[int, ...]:
        """The members' seeds, in order."""
        return tuple(member.spec.seed for member in self.members)

    @property
    def finished(self) -> bool:
        """Whether every member is done or has failed: nothing is left to resume."""
        return all(member.finished or member.stopped.startswith(FAILED) for member in self.members)

    @property
    def failed(self) -> dict[int, str]:
        """Why members failed, by their place in the pool."""
        reasons = {at: member.stopped for at, member in enumerate(self.members)}
        return {at: why.removeprefix(FAILED) for at, why in reasons.items() if why.startswith(FAILED)}

    @property
    def history(self) -> list[list[Row]]:
        """Each member's history, row by row."""
        return [member.history for member in self.members]

    def __len__(self) -> int:
        return len(self.members)

    def model(self, at: int, which: Which = "final") -> nn.Module:
        """A member's network, in evaluation mode."""
        member = self.members[at]
        found = {"final": member.model, "best": member.best, "average": member.average}[which]
        if found is None:
            asked = {"best": "early_stopping", "average": "averaging"}[which]
            raise ValueError(f"this pool keeps no {which} weights: its spec has no {asked}")
        return found

    def to_frame(self) -> pd.DataFrame:
        """One row per member: seed, the numbers that differ, epochs, why it ended, its scores."""
        import pandas as pd

        rows: list[dict[str, object]] = []
        for at, member in enumerate(self.members):
            numbers = {key: values[at] for key, values in self.overrides.items()}
            about = {"epochs": member.epochs, "stopped": member.stopped}
            rows.append({"seed": member.spec.seed, **numbers, **about, **member.scores.get("final", {})})
        return pd.DataFrame(rows)

    def history_frame(self) -> pd.DataFrame:
        """One row per member and row of its history."""
        import pandas as pd

        return pd.DataFrame(
            [{"member": at, "seed": m.spec.seed, **row} for at, m in enumerate(self.members) for row in m.history]
        )

    def losses(self, split: SplitName = "test", which: Which = "final") -> Tensor:
        """Each member's mean loss on a split, (n,) in float64, in evaluation mode; as one program if it was trained so."""
        samples: Split = getattr(self.task.data, split)
        if not len(samples.y):
            raise ValueError(f"{self.task.data.name} has no {split} samples")
        if self.choice.strategy == "stacked":
            scores: Sequence[SplitScore | None] = Passes(self.task).scores(self._stack(which), samples) or ()
        else:
            scores = [evaluate(self.task, model, samples) for model in self._models(which)]
        return torch.tensor([score.loss for score in scores if score is not None], dtype=torch.float64)

    def outputs(self, x: Tensor, which: Which = "final") -> Tensor:
        """Every member's outputs (n, N, …) for the inputs x (N, …), in evaluation mode; as one program if it was trained so."""
        x = x.to(self.task.train.y.device)
        if self.choice.strategy == "stacked":
            return Passes(self.task).outputs(self._stack(which), x)
        with torch.no_grad(), autocast(self.task, x.device):
            return torch.stack([self.task.forward(model, x) for model in self._models(which)])

    def _models(self, which: Which) -> list[nn.Module]:
        return [self.model(at, which) for at in range(len(self))]

    def _stack(self, which: Which) -> Stack:
        return stacked(self._models(which), self.task.train.y.device)

    def measure(
        self, measures: Wanted = None, *, split: SplitName = "train", which: Which = "final", seed: int = 0
    ) -> list[Report]:
        """`landscope.measure` for every member on one split; a member that failed is measured where it stands."""
        x, y = getattr(self.task.data, split)
        nets = [AsCalled(copy.deepcopy(model), self.task.forward).eval() for model in self._models(which)]
        return [measure(net, (x, y), measures, loss=self.task.loss, seed=seed) for net in nets]

    def __repr__(self) -> str:
        spec: TrainingSpec = self.members[0].spec
        done = sum(member.finished for member in self.members)
        what = f"{len(self)} × {spec.model.name} on {self.task.data.name}, {done} finished, {len(self.failed)} failed"
        return f"Pool({what}, {self.seconds:.1f} s, {self.choice.strategy}: {self.choice.reason})"
