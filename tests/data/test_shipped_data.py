"""The sets that come with the package: counts and sums that everyone knows."""

from __future__ import annotations

import pytest
import torch

from landscope.data import load


def test_abalone() -> None:
    data = load("abalone", validation=0)
    assert data.card.counts == {"train": 3_342, "validation": 0, "test": 835}
    rings = torch.cat([data.train.y, data.test.y])
    assert (int(rings.min()), int(rings.max())) == (1, 29)
    assert float(rings.mean()) == pytest.approx(9.9337, abs=1e-4)
    sexes = torch.cat([data.train.x, data.test.x])[:, :3].sum(0)
    assert sexes.tolist() == [1528, 1307, 1342]


def test_cora() -> None:
    data = load("cora")
    assert data.card.counts == {"train": 140, "validation": 500, "test": 1_000}
    features, edges = data.extra["features"], data.extra["edge_index"]
    assert features.shape == (2_708, 1_433)
    assert set(features.unique().tolist()) == {0.0, 1.0}
    assert int(features.sum()) == 49_216
    assert edges.shape == (2, 10_556)
    assert set(torch.bincount(data.train.y).tolist()) == {20}
    assert data.train.x.tolist() == list(range(140))
    assert data.test.x.tolist() == list(range(1_708, 2_708))
    assert torch.bincount(data.test.y).tolist() == [130, 91, 144, 319, 149, 103, 64]
