"""Accuracy under corruption: the table against a plain loop, streaming, preparation, and its error bars."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from landscope.core.errors import OperandError
from landscope.data.corruptions import corrupt
from landscope.measures.robustness import Classifier, corruption_accuracy

NAMES = ["gaussian_noise", "contrast"]


def images(n: int = 40) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.rand(n, 1, 28, 28, generator=rng), torch.randint(0, 3, (n,), generator=rng)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(49, 3)).eval()


def test_every_entry_is_the_accuracy_on_the_corrupted_set() -> None:
    net, (x, y) = network(), images()
    table = corruption_accuracy(Classifier.of(net, batch_size=7), x, y, corrupt, NAMES, [1, 5], seed=3)
    for i, name in enumerate(NAMES):
        for j, severity in enumerate((1, 5)):
            right = net(corrupt(x, name, severity, seed=3)).argmax(1) == y
            assert table.accuracy[i, j] == pytest.approx(float(right.double().mean()))
    assert table.clean == pytest.approx(float((net(x).argmax(1) == y).double().mean()))
    assert table.mean.value == pytest.approx(table.accuracy.mean())


def test_errors_know_that_the_images_are_shared() -> None:
    net, (x, y) = network(), images()
    table = corruption_accuracy(net, x, y, corrupt, NAMES, [1, 3, 5])
    right = [net(corrupt(x, name, s, seed=0)).argmax(1) == y for name in NAMES for s in (1, 3, 5)]
    per_image = torch.stack(right).double().mean(0)
    assert table.mean.stderr == pytest.approx(float(per_image.std()) / math.sqrt(40))
    np.testing.assert_allclose(table.stderr, np.sqrt(table.accuracy * (1 - table.accuracy) / 39))
    same = corruption_accuracy(net, x, y, lambda images, *_, first_index: images, ["nothing"], [1, 2, 3])
    assert same.mean.stderr == pytest.approx(same.stderr[0, 0])  # three copies of one accuracy are no better known


def test_batches_change_nothing() -> None:
    net, (x, y) = network(), images()
    whole, cut = (
        corruption_accuracy(Classifier.of(net, batch_size=k), x, y, corrupt, ["shot_noise"]).accuracy for k in (40, 9)
    )
    np.testing.assert_array_equal(whole, cut)


def test_bytes_and_preparation() -> None:
    net, (x, y) = network(), images()
    levels = (x * 255).round().to(torch.uint8)
    as_bytes = corruption_accuracy(net, levels, y, corrupt, NAMES, [2])
    as_floats = corruption_accuracy(net, levels / 255, y, corrupt, NAMES, [2])
    np.testing.assert_array_equal(as_bytes.accuracy, as_floats.accuracy)
    flipped = corruption_accuracy(net, levels, y, corrupt, NAMES, [2], prepare=lambda b: 1 - b / 255)
    right = net(1 - corrupt(levels, "contrast", 2, seed=0) / 255).argmax(1) == y
    assert flipped.accuracy[1, 0] == pytest.approx(float(right.double().mean()))


def test_tables() -> None:
    net, (x, y) = network(), images()
    table = corruption_accuracy(net, x, y, corrupt, NAMES, [1, 2])
    frame = table.to_frame()
    assert frame.index.tolist() == NAMES
    assert frame.columns.tolist() == [1, 2, "mean"]
    long = table.to_long_frame()
    assert len(long) == 5
    assert long.iloc[0].corruption == "clean"
    assert long.iloc[3].accuracy == frame.loc["contrast", 1]
    assert table.mean.details == {"clean": table.clean, "corruptions": 2, "severities": 2, "samples": 40}


def test_progress_is_told() -> None:
    seen = []
    net, (x, y) = network(), images(4)
    corruption_accuracy(net, x, y, corrupt, NAMES, [1, 2], progress=lambda *args: seen.append(args))
    assert seen[0] == (0, 5, "clean")
    assert seen[-1] == (4, 5, "contrast 2")


def test_the_model_stays_as_it_was() -> None:
    net, (x, y) = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.9), nn.Flatten(), nn.Linear(784, 3)).train(), images()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    first, second = (corruption_accuracy(net, x, y, corrupt, NAMES, [1]).accuracy for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_refusals() -> None:
    net, (x, y) = network(), images()
    with pytest.raises(ValueError, match="empty"):
        corruption_accuracy(net, x, y, corrupt, [])
    with pytest.raises(OperandError, match="one label per input"):
        corruption_accuracy(net, x, y[:5], corrupt, NAMES)
    with pytest.raises(KeyError, match="gaussian_noise"):
        corruption_accuracy(net, x, y, corrupt, ["gaussian_noize"])
    with pytest.raises(ValueError, match="batch_size"):
        Classifier.of(net, batch_size=0)
