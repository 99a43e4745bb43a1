"""An IterableDataset that gives every worker the same samples is refused; real duplicates are data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from landscope import Probe, errors, freeze

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, sharded: bool, repeats: int = 1) -> None:
        self.sharded, self.repeats = sharded, repeats
        self.first, self.step = 0, 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if self.sharded and worker else (self.first, self.step)
        for index in list(range(len(X)))[first::step] * self.repeats:
            yield X[index], Y[index]


def shard(worker: int) -> None:
    info = get_worker_info()
    info.dataset.first, info.dataset.step = worker, info.num_workers


@pytest.mark.parametrize("batch_size", [4, 5])
def test_samples_that_every_worker_gives_are_counted_once_or_not_at_all(batch_size: int) -> None:
    repeated = DataLoader(Stream(sharded=False), batch_size=batch_size, num_workers=2)
    with pytest.raises(errors.DataError, match="2 workers give 24 samples, one worker alone 12.*get_worker_info"):
        Probe(nn.Linear(4, 3), repeated)


def test_freezing_sees_it_too() -> None:
    with pytest.raises(errors.DataError, match="get_worker_info"):
        freeze(DataLoader(Stream(sharded=False), batch_size=4, num_workers=2))


def test_shares_real_duplicates_and_single_workers_are_accepted() -> None:
    for loader, n in (
        (DataLoader(Stream(sharded=True), batch_size=4, num_workers=2), 12),
        (DataLoader(Stream(sharded=True, repeats=2), batch_size=4, num_workers=2), 24),
        (DataLoader(Stream(sharded=False), batch_size=4, num_workers=2, worker_init_fn=shard), 12),
        (DataLoader(Stream(sharded=False), batch_size=4, num_workers=1), 12),
        (DataLoader(Stream(sharded=False, repeats=2), batch_size=4), 24),
    ):
        assert Probe(nn.Linear(4, 3), loader).n_samples == n


class Around:
    """A loader of somebody's own around torch's."""

    def __init__(self, loader: DataLoader[tuple[Tensor, Tensor]]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[object]:
        return iter(self.loader)


def test_behind_another_loader_they_are_counted_and_said() -> None:
    probe = Probe(nn.Linear(4, 3), Around(DataLoader(Stream(sharded=False), batch_size=4, num_workers=2)))
    assert probe.n_samples == 24
    assert any("every sample occurs 2 times" in notice for notice in probe.notices)
    assert not Probe(nn.Linear(4, 3), Around(DataLoader(Stream(sharded=True), batch_size=4, num_workers=2))).notices


class Whole(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(X.split(4), Y.split(4), strict=True)


def test_items_that_may_be_whole_batches_are_said_to_count_as_samples() -> None:
    (said,) = Probe(nn.Linear(4, 3), Whole()).notices
    assert "each item of the dataset (4×4 and 4) counts as one sample" in said
    probe = Probe(nn.Linear(4, 3), DataLoader(Whole(), batch_size=None))
    assert (probe.n_samples, probe.notices) == (12, ())
    assert Probe(nn.Linear(4, 3), Stream(sharded=False)).notices == ()
