"""What the first rows of an order say about all of them: inclusion probabilities, means without bias, bars that cover."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from landscope import Probe
from landscope.probe.rows.means import row_mean
from landscope.probe.rows.order import RowOrder, chunk_ends, seeded_order
from landscope.probe.rows.outputs import outputs_of, row_order

ROWS = 600


def population(kind: str) -> tuple[np.ndarray, torch.Tensor]:
    """Numbers of all rows, and sizes that know something about them: heavy tails, or none."""
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(0.0, 1.5 if kind == "heavy" else 0.1, ROWS)
    return sizes * rng.lognormal(0.0, 0.3, ROWS), torch.from_numpy(sizes)


def drawn(sizes: torch.Tensor | None, seed: int) -> RowOrder:
    return seeded_order(torch.arange(ROWS) * 7919, seed, sizes)


@pytest.mark.parametrize("rows", [1, 2, 19, 320, 2000, 50_000])
def test_chunks_cover_all_rows_once(rows: int) -> None:
    ends = chunk_ends(rows)
    assert ends[-1] == rows
    assert sorted(set(ends)) == ends
    assert max(np.diff([0, *ends])) <= max(256, rows // 128)


@pytest.mark.parametrize("part", [0.05, 0.2, 0.5])
def test_inclusion_probabilities_are_those_of_the_order(part: float) -> None:
    _, sizes = population("heavy")
    count, seeds = int(part * ROWS), 400
    seen, expected = np.zeros(ROWS), np.zeros(ROWS)
    for seed in range(seeds):
        order = drawn(sizes, seed)
        first = order.rows[:count].numpy()
        seen[first] += 1
        expected[first] = order.probabilities(count).numpy()  # of a row, the same whenever it is drawn
    known = expected > 0
    error = (
        4 * np.sqrt(expected * (1 - expected) / seeds) + 0.06
    )  # the probabilities of a fixed number of rows are approximate
    assert (np.abs(seen / seeds - expected)[known] <= error[known]).all()


@pytest.mark.parametrize("kind", ["heavy", "light"])
@pytest.mark.parametrize("part", [0.05, 0.2, 0.5])
def test_the_bracket_of_a_mean_covers(kind: str, part: float) -> None:
    values, sizes = population(kind)
    truth, count, held, found = values.mean(), int(part * ROWS), 0, []
    for seed in range(200):
        order = drawn(sizes, seed)
        mean = row_mean(values[order.rows[:count].numpy(), None], order)
        held += mean.low <= truth <= mean.high
        found.append(mean.value)
    assert held >= 0.92 * 200
    assert abs(np.mean(found) - truth) <= 4 * np.std(found) / np.sqrt(200) + 0.01 * truth


@pytest.mark.parametrize("sizes", [False, True])
def test_rows_that_are_all_alike_say_nothing_of_the_missing_ones(sizes: bool) -> None:
    """One row in twenty counts: where none of the first ones does, their spread of 0 is not an error bar."""
    values = (np.arange(ROWS) % 20 == 0) * 1.0
    for seed in range(100):
        order = drawn(torch.ones(ROWS, dtype=torch.float64) if sizes else None, seed)
        mean = row_mean(values[order.rows[:24].numpy(), None], order)
        if mean.value == 0:
            assert not mean.reliable
            assert mean.low == 0
    alike = row_mean(np.full((30, 1), 0.1), RowOrder(torch.arange(ROWS), None))
    assert not alike.reliable
    assert alike.low == pytest.approx(0.1 * 30 / ROWS)
    assert row_mean(np.full((ROWS, 1), 0.1), RowOrder(torch.arange(ROWS), None)).stderr == 0


def test_many_rows_outweigh_their_skew() -> None:
    """Cochran's rule: 25 γ² rows make a mean of skewed numbers normal enough."""
    values = np.random.default_rng(2).lognormal(0.0, 1.0, 1500)
    held = given = 0
    for seed in range(200):
        order = seeded_order(torch.arange(1500) * 7919, seed)
        mean = row_mean(values[order.rows[:700].numpy(), None], order)
        given += mean.reliable
        held += mean.reliable and mean.low <= values.mean() <= mean.high
    assert given >= 190
    assert held >= 0.92 * given


def test_noise_of_probes_is_left_when_every_row_is_read() -> None:
    rng = np.random.default_rng(1)
    units = np.repeat(np.arange(30), ROWS // 30)
    order, held = RowOrder(torch.arange(ROWS), None), 0
    for _ in range(200):
        noise = rng.standard_normal((30, 2))[units]
        held += abs(row_mean(5 + noise, order, units).value - 5) <= 2 * row_mean(5 + noise, order, units).stderr
    assert 0.9 * 200 <= held <= 199


def test_the_order_depends_on_the_samples_and_not_on_their_place() -> None:
    torch.manual_seed(0)
    net, x = torch.nn.Linear(3, 2), torch.randn(40, 3)
    y, turned = torch.arange(40) % 2, torch.randperm(40)
    plain, shuffled = row_order(Probe(net, (x, y))), row_order(Probe(net, (x[turned], y[turned])))
    assert plain is not None
    assert shuffled is not None
    assert torch.equal(plain.rows, turned[shuffled.rows])


def test_outputs_come_back_in_the_order_of_the_data() -> None:
    torch.manual_seed(0)
    net, x = torch.nn.Linear(3, 2), torch.randn(500, 3)
    outputs = outputs_of(Probe(net, (x, torch.arange(500) % 2)))
    while outputs.advance():
        pass
    assert outputs.outputs is not None
    assert torch.allclose(outputs.outputs, net(x))
