"""On a GPU: recorded steps are the steps themselves, runs resume, a NaN loss is found a little later and named exactly."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from loop_runs import BASE, METHODS, Settings, distance, interrupted, merged
from torch import Tensor, nn

from landscope.core.errors import NonFiniteTrainingError
from landscope.core.seeding import generator
from landscope.training.loop.train import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LONG: Settings = {"epochs": 6, "optimizer": {"lr": 0.02}}
ROUNDING = 2e-3
"""Of 24 steps in float32: kernels add up in another order, and later steps start from its results."""
IMAGES: Settings = {
    "model": {"name": "resnet20", "width": 4},
    "epochs": 3,
    "batch_size": 16,
    "optimizer": {"lr": 0.01},
    "augmentation": {},
    "channels_last": True,
    "precision": "bfloat16",
    "early_stopping": {},
}


def images() -> dict[str, tuple[Tensor, Tensor]]:
    rng = generator(0, "images")
    x, y = torch.randn(90, 3, 32, 32, generator=rng), torch.arange(90) % 10
    return {"train": (x, y), "validation": (x[:20], y[:20])}


@pytest.mark.parametrize("method", METHODS)
def test_recorded_steps_are_the_steps(method: str) -> None:
    # three epochs: six replays, and rounding errors that have not grown too much
    spec = merged(BASE, METHODS[method], {"epochs": 3, "model": {"dropout": 0.3}})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*cannot be recorded")
        recorded = train(spec, device="cuda")
    eager = train(spec, device="cuda", graphs=False)
    assert distance(recorded.model, eager.model) < ROUNDING
    assert recorded.history[-1]["train_loss"] == pytest.approx(eager.history[-1]["train_loss"], rel=ROUNDING)


@pytest.mark.parametrize("method", ["momentum", "adam", "sam", "fam", "ema", "decoupled"])
def test_the_gpu_does_what_the_cpu_does(method: str) -> None:
    spec = merged(BASE, METHODS[method], {"model": {"dropout": 0.0}, "epochs": 3})
    assert distance(train(spec, device="cuda").model.cpu(), train(spec, device="cpu").model) < ROUNDING


@pytest.mark.parametrize("method", ["momentum", "sam", "everything"])
def test_runs_go_on(method: str, tmp_path: Path) -> None:
    spec = merged(BASE, METHODS[method], {"epochs": 6})
    assert (
        distance(interrupted(spec, tmp_path, 5, 13, device="cuda").model, train(spec, device="cuda").model) < ROUNDING
    )


def test_images_in_lower_precision() -> None:
    recorded, eager = (train(IMAGES, data=images(), device="cuda", graphs=graphs) for graphs in (None, False))
    assert recorded.history[-1]["train_loss"] == pytest.approx(eager.history[-1]["train_loss"], rel=0.05)
    assert recorded.best is not None
    assert next(recorded.model.parameters()).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("method", ["momentum", "sam", "fam"])
def test_compiled_steps_are_the_steps(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, recorded; the model that comes back is not compiled."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # kernels are chosen again, and 1e-3 apart with it
    spec = merged(IMAGES, METHODS[method], {"precision": "float32", "epochs": 2})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*cannot be recorded")
        fast = train(merged(spec, {"compile": True}), data=images(), device="cuda")
    plain = train(spec, data=images(), device="cuda")
    assert fast.history[-1]["train_loss"] == pytest.approx(plain.history[-1]["train_loss"], rel=ROUNDING)
    assert distance(fast.model, plain.model) < 5 * ROUNDING
    assert all("forward" not in vars(module) for module in fast.model.modules())


def test_float16_is_scaled() -> None:
    result = train(merged(BASE, {"precision": "float16", "sam": 0.05}), device="cuda")
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


class Waits(nn.Module):
    """Looks at its own numbers, which cannot be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.fc(x)
        return z * 2 if float(z.detach().sum()) > 1e9 else z


def test_what_cannot_be_recorded_runs_as_it_is() -> None:
    spec = {key: value for key, value in merged(BASE, LONG).items() if key != "model"}
    net = Waits()
    with pytest.warns(UserWarning, match="cannot be recorded"):
        recorded = train(spec, model=net, device="cuda")
    assert distance(recorded.model, train(spec, model=net, device="cuda", graphs=False).model) < ROUNDING


def test_a_loss_that_is_not_finite_is_named_exactly() -> None:
    x, y = torch.randn(100, 2, generator=generator(0, "rows")), torch.arange(100) % 2
    x[17] = torch.nan
    spec = merged(BASE, {"model": {"batch_norm": False}, "batch_size": 10})
    with pytest.raises(NonFiniteTrainingError) as cpu:
        train(spec, data={"train": (x, y)}, device="cpu")
    with pytest.raises(NonFiniteTrainingError) as cuda:
        train(spec, data={"train": (x, y)}, device="cuda")
    assert str(cpu.value) == str(cuda.value)
