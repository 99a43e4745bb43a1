"""One contract, every data set: on small samples in canonical formats, on what is shipped and what is computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from data_samples import COMPUTED, SAMPLES

from landscope.core.errors import NotApplicableError, UnknownNameError
from landscope.data import DATASETS, DataSplits, load

Loader = Callable[..., DataSplits]
CASES = [*SAMPLES, *COMPUTED, "abalone/shipped", "cora/shipped"]


@pytest.fixture(params=CASES)
def loader(request: pytest.FixtureRequest, sample_roots: dict[str, Path]) -> Loader:
    case: str = request.param
    name = case.partition("/")[0]
    if case in SAMPLES:
        options, root = SAMPLES[case][1], sample_roots[case]
        return lambda **more: load(name, root=root, verify=False, **{**options, **more})
    options = COMPUTED.get(case, {})
    return lambda **more: load(name, root="/nonexistent", **{**options, **more})


def splits_of(data: DataSplits) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {"train": data.train, "validation": data.validation, "test": data.test}


def test_every_registered_set_has_a_case() -> None:
    assert {case.partition("/")[0] for case in CASES} == set(DATASETS)


def test_contract(loader: Loader) -> None:
    data = loader()
    card = data.card
    for name, (x, y) in splits_of(data).items():
        assert len(x) == len(y) == card.counts[name] == len(data.indices[name]) > 0
        assert tuple(x.shape[1:]) == card.input_shape
        assert tuple(y.shape[1:]) == card.target_shape
        if card.classes:
            assert y.dtype == torch.int64
            assert 0 <= int(y.min()) <= int(y.max()) < card.n_classes
        else:
            assert y.dtype == torch.float32
            assert bool(torch.isfinite(y).all())
        if x.is_floating_point():
            assert x.dtype == torch.float32
            assert bool(torch.isfinite(x).all())
            if x.ndim >= 4:
                assert 0 <= float(x.min()) <= float(x.max()) <= 1
        else:
            assert x.dtype == torch.int64


def test_splits_are_disjoint(loader: Loader) -> None:
    everything = torch.cat(list(loader().indices.values()))
    assert len(everything.unique()) == len(everything)


def test_same_seed_same_data(loader: Loader) -> None:
    a, b = loader(seed=3), loader(seed=3)
    for name, (x, y) in splits_of(a).items():
        assert torch.equal(x, splits_of(b)[name][0])
        assert torch.equal(y, splits_of(b)[name][1])
    assert a.card == b.card


def test_card_is_complete_and_plain(loader: Loader) -> None:
    card = loader().card
    for field in ("name", "title", "task", "licence", "citation", "source", "version"):
        assert getattr(card, field)
    assert json.loads(json.dumps(card.to_dict()))["counts"] == dict(card.counts)
    assert card.checksums or card.version == "computed"
    assert all(value.startswith(("md5:", "sha256:")) for value in card.checksums.values())
    assert len(card.mean) == len(card.std)


def test_label_noise_touches_training_labels_only(loader: Loader) -> None:
    clean = loader()
    if not clean.card.classes:
        with pytest.raises(NotApplicableError):
            loader(label_noise=0.5)
        return
    noisy = loader(label_noise=0.5)
    changed = clean.train.y != noisy.train.y
    assert int(changed.sum()) == round(0.5 * len(changed))
    assert torch.equal(clean.test.y, noisy.test.y)
    assert torch.equal(clean.validation.y, noisy.validation.y)
    assert torch.equal(clean.train.x, noisy.train.x)


def test_train_size_keeps_a_part(loader: Loader) -> None:
    whole, part = loader(), loader(train_size=2)
    assert len(part.train.y) == 2
    assert set(part.indices["train"].tolist()) < set(whole.indices["train"].tolist())
    assert torch.equal(part.test.y, whole.test.y)


def test_held_out_training_rows_leave_the_whole_evaluation_set(loader: Loader) -> None:
    half = loader()
    if half.card.settings["validation"] == "own":
        with pytest.raises(NotApplicableError):
            loader(validation=1)
        return
    held = loader(validation=4)
    assert held.card.counts["validation"] == 4
    assert held.card.counts["train"] == half.card.counts["train"] - 4
    assert held.card.counts["test"] == half.card.counts["test"] + half.card.counts["validation"]
    everything = torch.cat(list(held.indices.values()))
    assert len(everything.unique()) == len(everything)
    assert len(loader(validation=0).validation.y) == 0


def test_unknown_options_are_named(loader: Loader) -> None:
    with pytest.raises(UnknownNameError, match="option"):
        loader(nonsense=1)


def test_unknown_set_lists_the_choices() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cifar10'"):
        load("cifar-10")
