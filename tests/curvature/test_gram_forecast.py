"""What a Gram matrix is forecast to cost against the products that it makes, counted by torch."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from landscope.curvature.gram import gram
from landscope.curvature.gram.assembly import gram_multiplications
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe

CLASSES = 3


class Words(nn.Module):
    """The mean of the embeddings of a few words out of many."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(5_000, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.tokens(x).mean(1))


COSTED: dict[str, tuple[nn.Module, Tensor]] = {
    "few positions": (nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten()), torch.randn(12, 16, 4, 4)),
    "many positions": (nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten()), torch.randn(12, 3, 16, 16)),
    "groups": (nn.Sequential(nn.Conv2d(16, 64, 3, groups=4), nn.ReLU(), nn.Flatten()), torch.randn(12, 16, 8, 8)),
    "few words of many": (Words(), torch.randint(0, 5_000, (12, 5))),
}


@pytest.mark.parametrize("kind", COSTED)
def test_the_products_are_those_that_were_forecast(kind: str) -> None:
    body, x = COSTED[kind]
    net = body if isinstance(body, Words) else nn.Sequential(body, nn.ReLU(), nn.LazyLinear(CLASSES))
    net(x)
    probe = Probe(net, (x, torch.arange(len(x)) % CLASSES))
    batch = next(probe.batches())

    def in_place(_: tuple[int, ...], a: tuple[int, int], b: tuple[int, int], *more: object, **rest: object) -> int:
        return 2 * a[0] * a[1] * b[1]

    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place}) as counter:
        gram(probe, batch)
    aten = torch.ops.aten
    counted = sum(counter.get_flop_counts()["Global"].get(op, 0) for op in (aten.mm, aten.bmm, aten.addmm_))

    def outputs(params: Mapping[str, Tensor], piece: Batch) -> Tensor:
        z = probe.outputs(params, piece)
        assert isinstance(z, Tensor)
        return z

    forecast = 2 * gram_multiplications(probe, next(batch.pieces(1)), outputs, len(x), CLASSES)
    assert counted / 2 < forecast < 2 * counted
