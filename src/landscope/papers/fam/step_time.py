"""What a training step of SAM and of FAM costs beside a plain one: section 5 of paper 4 has 20 to 40 % more.

All ways are timed in turns, in one process; a ratio of medians depends little on what else the machine does.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.measures.base import Measure
from landscope.papers.framework.claims import Claim
from landscope.papers.framework.questions import Question, larger
from landscope.papers.framework.values import Values
from landscope.probe.probe import Probe
from landscope.probe.shared import once_per_probe
from landscope.training.loop.program import SingleProgram
from landscope.training.spec import training_spec
from landscope.training.task import make_task

__all__ = ["StepTime", "step_claims"]

Way = Literal["plain", "sam", "fam_as_coded", "fam_whole"]
WAYS: dict[Way, dict[str, object]] = {
    "plain": {},
    "sam": {"sam": 0.05},
    "fam_as_coded": {"fam": {"strength": 1e-4, "gradient": "weights_only"}},
    "fam_whole": {"fam": {"strength": 1e-4}},
}
WARM_UP = 8
"""Steps before the clock: kernels are compiled, and the step recorded."""


@once_per_probe
def _times(probe: Probe, batch_size: int, steps: int, rounds: int) -> Mapping[Way, list[float]]:
    """Seconds of a step in each round."""
    batch = probe.ready(next(iter(probe.batches())).raw)
    if not (isinstance(batch, tuple | list) and len(batch) == 2) or probe.n_samples < batch_size:
        raise NotApplicableError(f"steps are timed on pairs of inputs and labels, {batch_size} at least")
    x, y = (part[:batch_size] for part in batch)
    fast = probe.device.type == "cuda"
    programs = {}
    for way, method in WAYS.items():
        spec = training_spec(
            {
                "model": "given", "epochs": WARM_UP + rounds * steps, "batch_size": batch_size, **method,
                "optimizer": {"lr": 1e-4, "momentum": 0.9}, "compile": fast, "precision": "bfloat16" if fast else "float32",
            }
        )  # fmt: skip
        task = make_task(spec, model=copy.deepcopy(probe.module("")).requires_grad_(True), data={"train": (x, y)})
        programs[way] = SingleProgram(task.to(probe.device))
    found: dict[Way, list[float]] = {way: [] for way in WAYS}
    numbers = dict.fromkeys(WAYS, 0)
    for turn in range(rounds + 1):
        for way, program in programs.items():
            start = _now(probe.device)
            for _ in range(steps if turn else WARM_UP):
                program.step(numbers[way])
                numbers[way] += 1
            if turn:
                found[way].append((_now(probe.device) - start) / steps)
    for program in programs.values():
        program.close()
    return found


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass(frozen=True, kw_only=True)
class StepTime(Measure):
    """Median seconds of a training step of one kind on the first samples, with the error of a median over `rounds`.

    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> StepTime(way="sam", batch_size=8, steps=1, rounds=2)(Probe(net, (torch.randn(8, 3), torch.arange(8) % 2))).value > 0
    True
    """

    way: Way = "plain"
    batch_size: int = 64
    steps: int = 50
    rounds: int = 7

    def __post_init__(self) -> None:
        if self.way not in get_args(Way):
            raise ValueError(f"way must be one of {', '.join(get_args(Way))}; got {self.way!r}")

    def _measure(self, probe: Probe) -> Estimate:
        taken = _times(probe, self.batch_size, self.steps, self.rounds)[self.way]
        spread = statistics.stdev(taken) if len(taken) > 1 else 0.0
        error = math.sqrt(math.pi / 2) * spread / math.sqrt(len(taken))
        return Estimate(
            statistics.median(taken), stderr=error, status=Status.CONVERGED, details={"seconds": list(taken)}
        )


PART = "overhead"
LEAST = 1.2


def step_claims() -> Iterator[Claim]:
    """Ratios of times over three networks; which machine and which code makes them says the report."""

    def slower(way: Way, than: Way, factor: float) -> Question:
        one, other = (Values(part=PART, column=f"train.seconds_of_{name}") for name in (way, than))
        return larger(
            one, other, pairs="run", log=True, factor=factor, label=f"{way} over {than}, less a factor of {factor:g}"
        )

    yield Claim(
        part=PART,
        text=f"{PART}: a step of SAM takes longer than one of FAM as coded",
        question=slower("sam", "fam_as_coded", 1.0),
    )
    for way, words in (("fam_as_coded", "FAM as coded"), ("fam_whole", "FAM with its whole gradient")):
        yield Claim(
            part=PART,
            text=f"{PART}: a step of {words} takes at least 20 % longer than a plain one",
            question=slower(way, "plain", LEAST),  # type: ignore[arg-type]
            paper="20 to 40 %",
        )
