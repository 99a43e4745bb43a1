"""Traces from fresh signs for every chunk of rows: their bars, known from single products, against dense matrices."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from landscope import Probe
from landscope.curvature import dense
from landscope.curvature.chunk_traces import ChunkTraces

SEEDS = 60


@pytest.fixture(scope="module")
def probe() -> Probe:
    """Some rows are much longer than others; labels of some do not count."""
    torch.manual_seed(0)
    x = torch.randn(48, 5, 4, dtype=torch.float64)
    x[:6] *= 4
    y = x[..., :3].argmax(2)
    y[::3, 2:] = -100
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    optimizer = torch.optim.Adam(net.parameters(), 2e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()

    class Last(nn.Sequential):
        def forward(self, x):
            return super().forward(x).transpose(1, 2)

    return Probe(Last(*net), (x, y))


class Known:
    """The Hessian of some rows as a dense matrix, which is found once: products of the operator take long."""

    found: ClassVar[dict[tuple[float, ...], torch.Tensor]] = {}

    def __init__(self, probe: Probe, compile: bool = False) -> None:
        rows = next(probe.batches())
        key = (*rows.raw[0][:, 0, 0].tolist(), float(rows.weights[0]))
        if key not in self.found:
            self.found[key] = dense.hessian(probe)
        self.matrix = self.found[key]

    def on(self, probe: Probe) -> Known:
        return Known(probe)

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        return self.matrix @ other


def traces(probe: Probe, seed: int, chunks: int, rounds: int, blocks=None, **options) -> ChunkTraces:
    found = ChunkTraces(probe, Known, blocks or (probe.space.names,), seed, "test", chunks, **options)
    for _ in range(rounds):
        for _ in found.round():
            pass
    return found


@pytest.mark.parametrize(("chunks", "rounds"), [(16, 1), (16, 3), (2, 1), (1, 2)])
def test_bars_of_single_products_cover(probe: Probe, chunks: int, rounds: int) -> None:
    truth = float(dense.hessian(probe).trace())
    means = [traces(probe, seed, chunks, rounds).mean for seed in range(SEEDS)]
    assert np.mean([abs(mean.value - truth) <= 2 * mean.stderr for mean in means]) >= 0.9
    off = [mean.value - truth for mean in means]
    assert abs(np.mean(off)) <= 3 * np.std(off) / math.sqrt(SEEDS)  # unbiased
    if chunks == 16:  # with few chunks bars are as wide as their freedom asks for
        assert np.median([mean.stderr for mean in means]) <= 1.5 * np.std(off)


@pytest.mark.parametrize("rounds", [1, 3])
def test_every_block_has_a_bar_that_covers(probe: Probe, rounds: int) -> None:
    diagonal = probe.space.unflatten(dense.hessian(probe).diagonal())
    blocks = tuple((name,) for name in probe.space.names)
    held = []
    for seed in range(SEEDS // 2):
        for (name,), mean in zip(blocks, traces(probe, seed, 16, rounds, blocks).means(), strict=True):
            held.append(abs(mean.value - float(diagonal[name].sum())) <= 2 * mean.stderr)
    assert np.mean(held) >= 0.9


def test_what_lies_along_a_basis_is_exact(probe: Probe) -> None:
    matrix = dense.hessian(probe)
    _, vectors = torch.linalg.eigh(matrix)
    basis = torch.cat((vectors[:, :2], vectors[:, -3:]), 1).T.contiguous()
    truth = float(matrix.trace())
    plain, deflated = ([traces(probe, seed, 16, 1, basis=b).mean for seed in range(20)] for b in (None, basis))
    spread = [np.std([mean.value for mean in means]) for means in (plain, deflated)]
    assert spread[1] < spread[0]
    assert np.mean([abs(mean.value - truth) <= 2 * mean.stderr for mean in deflated]) >= 0.85
    everything = traces(probe, 0, 16, 1, basis=vectors.T.contiguous()).mean
    assert everything.value == pytest.approx(truth, rel=1e-9)


def test_the_error_over_the_data(probe: Probe) -> None:
    """A chunk for every row, without the noise of probes: the spread of m_i (tr H_i − tr H) over rows."""
    one = [probe.on_rows(torch.tensor([i]), torch.full((1,), float(probe.n_samples))) for i in range(probe.n_samples)]
    rows = torch.tensor([float(dense.hessian(row).trace()) for row in one]).double()
    shares = probe.shares(probe.rows(torch.arange(probe.n_samples)))
    truth = float((rows - shares * rows.mean()).std() / math.sqrt(len(rows)))
    basis = torch.eye(probe.n_params, dtype=torch.float64)
    assert traces(probe, 0, len(rows), 1, basis=basis).mean.data_stderr == pytest.approx(truth, rel=1e-6)
    found = [traces(probe, seed, 16, 2).mean.data_stderr for seed in range(40)]  # chunks of three rows, two probes
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(truth, rel=0.3)


def test_the_first_chunks_tell_of_all(probe: Probe) -> None:
    truth, held = float(dense.hessian(probe).trace()), []
    for seed in range(SEEDS):
        found = ChunkTraces(probe, Known, (probe.space.names,), seed, "test", 16)
        for done, _ in enumerate(found.round(), 1):
            if done == 8:
                break
        assert not found.mean.complete
        held.append(found.mean.low <= truth <= found.mean.high)
    assert np.mean(held) >= 0.9
