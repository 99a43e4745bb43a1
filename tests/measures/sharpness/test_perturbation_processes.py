"""Two processes, each with its own part of the data, give the values of one process with all of it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from processes import run_together
from torch import nn

from landscope.measures.base import Measure
from landscope.measures.sharpness.pac_bayes import PacBayesSigma
from landscope.measures.sharpness.random_noise import AverageSharpness, RandomSharpness
from landscope.measures.sharpness.worst_case import AdaptiveSharpness, KeskarSharpness, SAMSharpness
from landscope.probe.probe import Probe

MEASURES: list[Measure] = [
    RandomSharpness(samples=3),
    AverageSharpness(samples=4),
    PacBayesSigma(samples=4),
    SAMSharpness(steps=2, restarts=2),
    KeskarSharpness(steps=2),
    AdaptiveSharpness(batch_size=4, steps=3, restarts=2),
    AdaptiveSharpness(batch_size=9, steps=3),
]


def results(rows: slice) -> list[list[float]]:
    """Value and data error of each measure on these samples."""
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(15, 4, generator=rng).double(), torch.arange(15) % 3
    estimates = [measure(Probe(net, (x[rows], y[rows]))) for measure in MEASURES]
    return [[e.value, e.data_stderr or 0.0] for e in estimates]


def work(rank: int, folder: Path) -> None:
    found = results(slice(0, 10) if rank == 0 else slice(10, 15))
    (folder / f"{rank}.json").write_text(json.dumps(found))


def test_uneven_shards_change_nothing(tmp_path: Path) -> None:
    run_together(work, tmp_path)
    alone = torch.tensor(results(slice(0, 15)))
    for rank in range(2):
        shared = torch.tensor(json.loads((tmp_path / f"{rank}.json").read_text()))
        torch.testing.assert_close(shared, alone, rtol=1e-6, atol=1e-9)
