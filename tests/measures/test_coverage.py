"""Estimates on the way, stopped early over many seeds: their bars and brackets hold the value on all rows, their bounds too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from landscope import Estimate, Measure, Probe
from landscope.core.estimate import Status
from landscope.measures import row_measure
from landscope.measures.sharpness.fisher_rao import FisherRao, FisherRaoHomogeneous
from landscope.measures.sharpness.gradients import GradientNoise, GradientNorm
from landscope.measures.sharpness.igs import InformationGeometricSharpness
from landscope.measures.sharpness.pac_bayes import PacBayesSigma
from landscope.measures.sharpness.random_noise import AverageSharpness, RandomSharpness
from landscope.measures.sharpness.relative_flatness import RelativeFlatness
from landscope.measures.sharpness.worst_case import AdaptiveSharpness, KeskarSharpness, SAMSharpness

ROWS, CLASSES = 640, 3
PROMISED = 0.92
"""Of the estimates on the way, at least; a 95 % bracket on small samples of skewed numbers."""


@cache
def trained(steps: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A small network on three overlapping clouds, some labels wrong, after this many steps."""
    rng = torch.Generator().manual_seed(5)
    centres = torch.tensor([[0.0, 2.0, 0.0, 0.0], [1.7, -1.0, 0.0, 0.0], [-1.7, -1.0, 0.0, 0.0]])
    y = torch.randint(0, CLASSES, (ROWS,), generator=rng)
    x = (centres[y] + 0.9 * torch.randn(ROWS, 4, generator=rng)).double()
    wrong = torch.rand(ROWS, generator=rng) < 0.03
    y = torch.where(wrong, (y + 1) % CLASSES, y)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, CLASSES, bias=False)).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net, x, y


@dataclass
class Kept:
    """What became of the promises of the estimates on the way."""

    held: list[bool] = field(default_factory=list)
    bars: int = 0
    widths: list[float] = field(default_factory=list)

    def add(self, early: Estimate, truth: float) -> None:
        room = 1e-9 * abs(truth)
        if early.status is Status.LOWER_BOUND:
            self.held.append(early.value <= truth + room)
        elif early.status is Status.UPPER_BOUND:
            self.held.append(truth <= early.value + room)
        elif early.status is Status.RUNNING:
            error = 2 * (early.stderr or 0.0)
            low, high = early.bracket or (early.value - error, early.value + error)
            self.held.append(low - room <= truth <= high + room)
            self.bars += 1
            self.widths.append((high - low) / 2 / abs(truth))

    def __str__(self) -> str:
        share = sum(self.held) / max(len(self.held), 1)
        width = sorted(self.widths)[len(self.widths) // 2] if self.widths else math.nan
        return f"{share:.1%} of {len(self.held)} hold; {self.bars} bars, the middle one {width:.0%} wide"


def looked_at(measure: Measure, steps: int, seeds: range) -> Iterator[tuple[list[Estimate], Estimate]]:
    """The estimates on the way and the last one, for every seed of the order of rows."""
    net, x, y = trained(steps)
    for seed in seeds:
        found = [e for e in measure.refine(Probe(net, (x, y), seed=seed)) if e is not None]
        yield found[:-1], found[-1]


MEASURES = {
    "fisher_rao": FisherRao(),
    "fisher_rao, root": FisherRao(root=True),
    "fisher_rao_homogeneous": FisherRaoHomogeneous(),
    "gradient_norm": GradientNorm(),
    "gradient_noise": GradientNoise(),
    "relative_flatness": RelativeFlatness(),
    "relative_flatness, exact forms": RelativeFlatness(layer="0"),
    "relative_flatness, random forms": RelativeFlatness(layer="0", max_probes=3),
    "average_sharpness": AverageSharpness(rho=0.05, samples=8),
    "random_sharpness": RandomSharpness(samples=6),
    "random_sharpness, mean_abs": RandomSharpness(samples=6, statistic="mean_abs"),
    "pac_bayes_sigma": PacBayesSigma(samples=6),
    "keskar_sharpness": KeskarSharpness(epsilon=0.01, steps=5),
    "sam_sharpness": SAMSharpness(),
    "sam_sharpness, three steps": SAMSharpness(steps=3),
}
BY_BATCHES = {
    "adaptive_sharpness": AdaptiveSharpness(batch_size=32, steps=3),
    "sam_sharpness": SAMSharpness(batch_size=32),
    "igs": InformationGeometricSharpness(rank=4, batch_size=32),
}


def kept_promises(measure: Measure, steps: int, seeds: range, batches: bool = False) -> Kept:
    kept = Kept()
    for seed in seeds:
        one = measure.with_settings(seed=seed) if batches else measure
        for early, last in looked_at(one, steps, range(seed, seed + 1)):
            for estimate in early:
                kept.add(estimate, last.value)
    return kept


@pytest.fixture(autouse=True)
def at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_measure, "OFTEN", 0.0)


@pytest.mark.parametrize("name", MEASURES)
def test_estimates_on_the_way_hold(name: str) -> None:
    kept = kept_promises(MEASURES[name], 200, range(25))
    assert kept.held, "nothing was said on the way"
    assert sum(kept.held) >= PROMISED * len(kept.held) - 2, str(kept)


@pytest.mark.parametrize("name", BY_BATCHES)
def test_batches_so_far_hold(name: str) -> None:
    kept = kept_promises(BY_BATCHES[name], 200, range(8), batches=True)
    assert kept.held
    assert bool(kept.bars) == (name != "adaptive_sharpness"), "what ascents find has no upper end"
    assert sum(kept.held) >= PROMISED * len(kept.held) - 2, str(kept)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, 200, 2000])
@pytest.mark.parametrize("name", [*MEASURES, *(f"{name} by batches" for name in BY_BATCHES)])
def test_estimates_on_the_way_hold_over_many_seeds(name: str, steps: int) -> None:
    batches = name.endswith(" by batches")
    measure = BY_BATCHES[name.removesuffix(" by batches")] if batches else MEASURES[name]
    kept = kept_promises(measure, steps, range(150), batches)
    assert sum(kept.held) >= PROMISED * len(kept.held), str(kept)
