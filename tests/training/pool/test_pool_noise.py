"""Dropout in a pool: every member draws its own masks, with the statistics that it would have alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.training.loop.train import train
from landscope.training.pool.train_pool import train_pool

P, FEATURES = 0.25, 500


class Noisy(nn.Module):
    """Mean and mean square of inputs after two dropouts: a layer's, and the function itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shift = nn.Dropout(P), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        kept = F.dropout(self.first(x), p=P, training=self.training)
        return torch.stack([kept.mean(1), kept.square().mean(1)], 1) + self.shift


def make_noisy() -> nn.Module:
    return Noisy()


def ones() -> dict[str, tuple[Tensor, Tensor]]:
    return {"train": (torch.ones(8, FEATURES), torch.zeros(8, 2))}


def spec(**options: object) -> dict[str, object]:
    """Weights that do not move: the loss of an epoch is a function of its masks."""
    still = {"lr": 0.0, "momentum": 0.0}
    return {"model": f"{__name__}:make_noisy", "epochs": 40, "batch_size": 8, "optimizer": still, **options}


def losses(seeds: list[int], **options: object) -> Tensor:
    """The loss of every member (first dimension) at every step."""
    pool = train_pool(spec(**options), seeds, data=ones(), strategy="stacked", device="cpu")
    return torch.tensor([[row["train_loss"] for row in rows] for rows in pool.history])


def test_members_and_steps_draw_separately_and_again_the_same() -> None:
    found = losses([3, 3, 8])
    assert len(found.unique()) == found.numel()
    assert torch.equal(found, losses([3, 3, 8]))
    assert not torch.equal(found, losses([3, 3, 9]))


@pytest.mark.parametrize("options", [{}, {"sam": 0.05}, {"accumulate": 2}])
def test_statistics_are_those_of_training_alone(options: dict[str, object]) -> None:
    """Mean and spread of 240 draws each, against 240 of `train`."""
    together = losses(list(range(6)), **options)
    alone = torch.tensor(
        [
            [row["train_loss"] for row in train(spec(seed=seed, **options), data=ones(), device="cpu").history]
            for seed in range(6)
        ]
    )
    error = float((together.var() / together.numel() + alone.var() / alone.numel()).sqrt())
    assert float(together.mean() - alone.mean()) == pytest.approx(0, abs=4 * error)
    assert float(together.std() / alone.std()) == pytest.approx(1, abs=4 / alone.numel() ** 0.5)


def test_the_share_of_zeros_is_p() -> None:
    """E[kept²] = 1/(1 − p)² for two dropouts of ones, each divided by 1 − p; the loss has E[kept²]² + E[kept]²."""
    expected = (1 / (1 - P) ** 4 + 1) / 2
    found = losses(list(range(6)))
    error = float(found.std()) / found.numel() ** 0.5
    assert float(found.mean()) == pytest.approx(expected, abs=4 * error + 10 / FEATURES)


def test_evaluation_draws_nothing() -> None:
    pool = train_pool(spec(epochs=1), 2, data=ones(), strategy="stacked", device="cpu")
    assert torch.equal(pool.outputs(torch.ones(3, FEATURES)), torch.ones(2, 3, 2))


def test_a_network_that_draws_is_compared_in_evaluation_mode() -> None:
    pool = train_pool(spec(epochs=1), 2, data=ones(), device="cpu")
    assert (pool.choice.strategy, pool.choice.reason) == ("stacked", "one program is faster")
