"""channels_last on a CPU: kept where it is safe, left out where a kernel of the CPU would write past its workspace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from landscope.training import train
from landscope.training.spec import TrainingSpec, training_spec
from landscope.training.task import memory_format

CPU = torch.device("cpu")


def _spec(asked: bool) -> TrainingSpec:
    return training_spec({"model": "mlp", "channels_last": asked})


@pytest.mark.parametrize(
    ("layer", "kept"),
    [
        (nn.Conv2d(8, 16, 1, stride=2), False),
        (nn.Conv2d(8, 16, 1, stride=(1, 2)), False),
        (nn.Conv2d(32, 64, 1, stride=2, groups=4), False),
        (nn.Conv2d(16, 32, 1, stride=2), True),
        (nn.Conv2d(8, 16, 1), True),
        (nn.Conv2d(8, 16, 3, stride=2), True),
        (nn.Linear(8, 8), True),
    ],
)
def test_only_narrow_strided_pointwise_convolutions_keep_a_cpu_from_it(layer, kept):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(layer))
    assert memory_format(_spec(True), model, CPU) == (torch.channels_last if kept else torch.contiguous_format)
    assert memory_format(_spec(False), model, CPU) == (torch.preserve_format if kept else torch.contiguous_format)
    assert memory_format(_spec(True), model, torch.device("cuda")) == torch.channels_last
    assert memory_format(_spec(False), model, torch.device("cuda")) == torch.preserve_format


def _rows(x: torch.Tensor, y: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return dict.fromkeys(("train", "validation", "test"), (x, y))


def _shortcut() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 1, stride=2), nn.Flatten(), nn.LazyLinear(2)
    )


def test_such_a_network_trains_as_in_the_usual_layout():
    x, y = torch.randn(25, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(25) % 2
    trained = {}
    for case, asked, own in (
        ("usual", False, torch.contiguous_format),
        ("asked for", True, torch.contiguous_format),
        ("as given", False, torch.channels_last),
    ):
        model = _shortcut()
        model(x)  # gives the lazy layer its weights
        model.to(memory_format=own)
        result = train(
            {"epochs": 2, "batch_size": 25, "channels_last": asked},
            model=model,
            data=_rows(x.to(memory_format=own), y),
            progress=False,
        )
        trained[case] = result.model.state_dict()
    for case in ("asked for", "as given"):
        assert trained[case].keys() == trained["usual"].keys()
        assert all(torch.equal(trained[case][name], trained["usual"][name]) for name in trained[case])


def test_images_lie_channels_last_elsewhere():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 3), nn.Flatten(), nn.Linear(144, 2)
    )
    seen = []
    model[0].register_forward_pre_hook(
        lambda _, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8) % 2
    train({"epochs": 1, "batch_size": 8, "channels_last": True}, model=model, data=_rows(x, y), progress=False)
    assert any(seen)  # the first pass is a look at the rows as they are
