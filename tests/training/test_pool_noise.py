"""Masks of a pool's members are the masks that torch draws for each of them alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from landscope.core.seeding import generator, normal, preserved_rng
from landscope.training.pool.noise import drawn, recorded, replayed

CPU = torch.device("cpu")


class Noisy(nn.Module):
    """A layer, the function itself, one that is off, one in place, and one on a transposed tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.off, self.inplace = nn.Dropout(0.3), nn.Dropout(0.0), nn.Dropout(0.6, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.off(self.first(x)) + 1
        x = F.dropout(x.t(), p=0.5, training=self.training).t()
        return self.inplace(x * 2)


def alone(net: nn.Module, x: Tensor, seed: int) -> Tensor:
    with preserved_rng():
        torch.manual_seed(seed)
        return net(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks_are_those_of_each_member(dtype: torch.dtype) -> None:
    net, seeds = Noisy(), [5, 2**62 + 3, 7]
    x = normal((3, 6, 4), generator(0), dtype)
    masks = drawn(recorded(lambda: net(x[0])), len(seeds), CPU, seeds)
    assert len(masks) == 3

    def member(row: Tensor, masks: list[Tensor]) -> Tensor:
        with replayed(masks):
            return net(row)

    together = vmap(member)(x, masks)
    for i, seed in enumerate(seeds):
        assert torch.equal(together[i], alone(net, x[i], seed))
    assert not torch.equal(masks[0][0], masks[0][1])


def test_evaluation_draws_nothing() -> None:
    net = Noisy().eval()
    assert recorded(lambda: net(torch.ones(2, 3))) == ()


def test_recording_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    recorded(lambda: nn.Dropout2d(0.5)(torch.ones(2, 3, 4, 4)))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_seeds_every_member_draws_differently() -> None:
    with preserved_rng():
        torch.manual_seed(0)
        (mask,) = drawn(recorded(lambda: F.dropout(torch.ones(2000), 0.75)), 2, CPU)
    assert set(mask.unique().tolist()) == {0.0, 4.0}
    assert not torch.equal(mask[0], mask[1])
    assert float((mask == 0).double().mean()) == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / 4000) ** 0.5)
