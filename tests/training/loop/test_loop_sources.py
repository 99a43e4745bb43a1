"""From a spec to a task: options that the data decides, ways to give data and models, and what is refused before it starts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from loop_runs import BASE, Settings, merged
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from landscope.core.errors import SpecError
from landscope.data import DATASETS, load
from landscope.specs.schema import parse
from landscope.training.loop.train import train
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task, make_task


def task(data: object, model: object, **settings: object) -> Task:
    return make_task(parse(TrainingSpec, {"data": data, "model": model, **settings}))


@pytest.mark.parametrize(
    ("data", "model", "outputs", "loss"),
    [
        ("digits", "softmax_regression", (10,), "cross_entropy"),
        ("digits", {"name": "resnet20", "width": 2}, (10,), "cross_entropy"),
        ("circles", "mlp", (2,), "cross_entropy"),
        ("abalone", "mlp", (1,), "mse"),
        ({"name": "functions", "function": "booth"}, "mlp", (1,), "mse"),
        (
            {"name": "shells", "size": 32, "n_train": 2, "n_validation": 1, "n_test": 1},
            {"name": "autoencoder3d", "channels": [2, 2, 2, 2, 2], "instance_norm": False},
            (1, 32, 32, 32),
            "dice",
        ),
        ("cora", "mlp", (7,), "cross_entropy"),
        pytest.param(
            "cora",
            "gat",
            (7,),
            "cross_entropy",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("torch_geometric") is None, reason="gat needs torch_geometric"
            ),
        ),
    ],
)
def test_the_data_decides_sizes_and_loss(data: object, model: object, outputs: tuple[int, ...], loss: str) -> None:
    made = task(data, model)
    assert made.forward(made.model, made.train.x[:3])[:2].shape[1:] == outputs
    assert made.loss.name == loss


def test_binary_targets_need_one_output() -> None:
    made = task("circles", "mlp", loss="binary_cross_entropy")
    assert made.forward(made.model, made.train.x[:3]).shape == (3, 1)
    result = train({**BASE, "loss": "binary_cross_entropy"})
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_images_are_flattened_for_networks_of_vectors() -> None:
    made = task("digits", {"name": "deep_linear", "width": 3})
    assert made.train.x.shape[1:] == (1, 8, 8)
    assert made.forward(made.model, made.train.x[:3]).shape == (3, 10)


@pytest.mark.parametrize("kind", ["splits", "tensors", "datasets", "function", "named"])
def test_ways_to_give_data(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = load("circles")
    pairs = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    expected = train(BASE)
    if kind == "function":
        (tmp_path / "own_rows.py").write_text(
            "from landscope.data import load\n\n\ndef rows(noise):\n    return load('circles', noise=noise)\n"
        )
        monkeypatch.chdir(tmp_path)
        result = train({**BASE, "data": {"name": "own_rows:rows", "noise": 0.1}})
        assert (
            result.history[0]["train_loss"]
            == train({**BASE, "data": {"name": "circles", "noise": 0.1}}).history[0]["train_loss"]
        )
        return
    given: object = {
        "splits": splits,
        "tensors": {key: tuple(pair) for key, pair in pairs.items()},
        "datasets": {key: TensorDataset(*pair) for key, pair in pairs.items()},
        "named": None,
    }[kind]
    assert train(BASE, data=given).scores == expected.scores


def test_a_function_of_ones_own_builds_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_training_nets.py").write_text(
        "from torch import nn\n\n\ndef net(width, num_classes=3, in_features=1):\n"
        "    return nn.Sequential(nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    spec = {**BASE, "model": {"name": "own_training_nets:net", "width": 5}}
    first, second = train(spec), train(spec)
    assert [layer.out_features for layer in first.model if isinstance(layer, nn.Linear)] == [5, 2]
    assert first.scores == second.scores
    assert first.scores != train({**spec, "seed": 9}).scores
    assert torch.equal(before, torch.get_rng_state())


def test_no_validation_rows() -> None:
    x, y = load("circles").train
    result = train(BASE, data={"train": (x, y)})
    assert set(result.scores["final"]) == {"train_loss", "train_error"}
    assert "validation_loss" not in result.history[0]


def test_text_is_masked_where_it_is_padding() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(1, 2)

        def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
            kept = attention_mask.float()
            return self.fc(((tokens * kept).sum(1) / kept.sum(1))[:, None])

    tokens = torch.tensor([[4, 2, 0, 0], [3, 3, 3, 0]])
    net = Mean()
    spec = parse(TrainingSpec, {"model": "mine", "epochs": 1})
    made = make_task(spec, model=net, data={"train": (tokens, torch.tensor([0, 1]))})
    assert torch.equal(made.forward(net, tokens), net.fc(torch.tensor([[3.0], [3.0]])))


def test_given_rows_are_not_called_by_the_name_of_another_data_set() -> None:
    spec = parse(TrainingSpec, {"model": "mine", "epochs": 1, "channels_last": True})
    with pytest.raises(SpecError, match="channels_last: is for images; the samples of the given data are 4"):
        make_task(spec, model=nn.Linear(4, 2), data={"train": (torch.zeros(3, 4), torch.tensor([0, 1, 0]))})


WRONG: dict[str, tuple[Settings, str]] = {
    "augmentation": ({"augmentation": {}}, "augmentation: is for images with labels; the samples of circles are 2"),
    "channels_last": ({"channels_last": True}, "channels_last: is for images"),
    "early_stopping": (
        {"early_stopping": {}, "data": {"name": "digits", "validation": 0}, "model": {"name": "mlp"}},
        "early_stopping: digits has no validation samples",
    ),
    "metric": (
        {"early_stopping": {"metric": "error"}, "data": "abalone"},
        "early_stopping.metric: abalone has no classes",
    ),
    "layer": ({"fam": {"layer": "head"}}, "fam.layer: unknown layer 'head'.*fc"),
    "no layer": ({"fam": {"layer": "output"}}, "fam.layer: "),
    "micro_batch": ({"sam": {"micro_batch": 64}}, "sam.micro_batch: 64 samples are more than a batch of 32"),
    "both": ({"sam": {"micro_batch": 8}, "accumulate": 2}, "sam.micro_batch and accumulate both cut the batch"),
    "evaluate_every": ({"evaluate_every": 0}, "evaluate_every: must be an integer ≥ 1, but is 0"),
    "patience": (
        {"evaluate_every": 2, "early_stopping": 1},
        "early_stopping.patience of 1 epochs is shorter than the 2 epochs between two evaluations",
    ),
    "one row": (
        {"evaluate_every": 3, "early_stopping": {}},
        "early_stopping reads .* a run of 3 epochs has only one",
    ),
    "one loss": ({"evaluate_every": 9, "convergence": {"below": 0.1}}, "convergence reads .* lower evaluate_every"),
    "drop_last": ({"drop_last": True, "batch_size": 101}, "drop_last: 100 samples are less than one batch of 101"),
    "snapshots": ({"snapshots": [13]}, "snapshots: step 13 is beyond the 12 steps"),
    "betas": (
        {"optimizer": {"name": "adam", "betas": [0.9, 1.0]}},
        r"optimizer: betas must each be ≥ 0 and < 1, got \[0.9, 1.0\]",
    ),
    "cutout": ({"augmentation": {"cutout": -3}}, "augmentation: crop and cutout are pixels, ≥ 0, but are 4 and -3"),
    "single row": (
        {"batch_size": 33},
        "batch_size: BatchNorm .* 100 samples in batches of 33 leave one for the last: set drop_last",
    ),
    "parts of a row": ({"accumulate": 3}, "batch_size: BatchNorm .* fewer parts"),
    "micro-batches of a row": ({"sam": {"micro_batch": 3}}, "batch_size: BatchNorm .* larger ones"),
    "smoothing": ({"label_smoothing": 0.1, "data": "abalone"}, "label_smoothing: is for cross_entropy"),
    "sizes": ({"model": {"in_features": 7}}, "model: mlp does not take the samples of circles, 2 of float32"),
    "classes": ({"model": {"num_classes": 1}}, "model: it has 1 outputs and circles has 2 classes"),
    "loss": ({"loss": "mse"}, "loss: mse compares outputs and targets of one shape"),
    "unknown": ({"optimiser": "sgd"}, "unknown key 'optimiser'; did you mean 'optimizer'"),
    "function": ({"data": "torch:nothing"}, "torch has no function 'nothing'"),
    "module": ({"model": {"name": "no_such_module:net"}}, "No module named 'no_such_module'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused_before_anything_starts(case: str, tmp_path: Path) -> None:
    settings, message = WRONG[case]
    with pytest.raises(SpecError, match=message):
        train(merged(BASE, settings), folder=tmp_path / "run")
    assert not list(tmp_path.glob("run/*.safetensors"))


def test_a_batch_larger_than_the_data_is_the_data() -> None:
    result = train({**BASE, "batch_size": 1000})
    assert result.history[-1]["step"] == 3


def test_mse_on_numbers() -> None:
    data = load("abalone")
    result = train({"data": "abalone", "model": {"name": "mlp", "widths": [8]}, "epochs": 1, "optimizer": {"lr": 0.01}})
    with torch.no_grad():
        expected = float(F.mse_loss(result.model(data.test.x).flatten(), data.test.y.flatten()))
    assert result.scores["final"]["test_loss"] == pytest.approx(expected, rel=1e-5)
    assert "train_error" not in result.history[0]


def test_every_data_set_has_a_usual_loss() -> None:
    assert {dataset.task for dataset in (DATASETS[name] for name in DATASETS)} <= {
        "classification", "regression", "reconstruction", "node classification", "text classification",
    }  # fmt: skip


def labelled(train: object, **others: object) -> dict[str, tuple[Tensor, Tensor]]:
    """Rows of two numbers with these labels."""
    labels = {name: torch.as_tensor(y) for name, y in {"train": train, **others}.items()}
    rng = torch.Generator().manual_seed(0)
    return {name: (torch.randn(len(y), 2, generator=rng), y) for name, y in labels.items()}


@pytest.mark.parametrize(
    ("data", "loss", "message"),
    [
        (labelled([-1, 1, -1, 1]), None, "the train samples of the given data: labels run from -1 to 1"),
        (labelled([0, 1, 1, -100]), None, "the train samples of the given data: labels run from -100 to 1"),
        (
            labelled([0, 1, -1, -100]),
            None,
            r"labels run from -100 to 1, .* outside are -100, -1\. Map the labels to 0 … C−1, or",
        ),
        (labelled([0, 1, 1, 0], validation=[0, -2]), None, "the validation samples .* labels run from -2 to 0"),
        (labelled([0, 1, 1, 0], test=[-1]), None, "the test samples .* labels run from -1 to -1"),
        (labelled([0, 1, 1, 0], test=[2]), None, "it has 2 outputs and the given data has 3 classes"),
        (
            labelled([[-1.0], [1.0]]),
            "binary_cross_entropy",
            "the train samples .* lie from 0 to 1, but run from -1 to 1",
        ),
    ],
)
def test_labels_that_the_loss_does_not_know(data: object, loss: str | None, message: str) -> None:
    model = nn.Linear(2, 1 if loss else 2)
    with pytest.raises(SpecError, match=message):
        train({"epochs": 1, "loss": loss}, model=model, data=data)


def test_positions_to_ignore_are_ignored() -> None:
    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, :, None].expand(-1, -1, 2)

    spec = {"epochs": 1, "loss": "cross_entropy"}
    result = train(spec, model=Twice(2, 2), data=labelled([[0, -100], [1, 0]]))
    assert result.finished
    with pytest.raises(SpecError, match="labels run from -1 to 1"):
        train(spec, model=Twice(2, 2), data=labelled([[0, -1], [1, 0]]))


def test_whole_numbers_are_no_classes_to_mse() -> None:
    data = labelled([50, 40, 60, 51], validation=[44])
    spec = {"epochs": 1, "loss": "mse"}
    result = train(spec, model=nn.Linear(2, 1), data=data)
    assert set(result.scores["final"]) == {"train_loss", "validation_loss"}
    assert not {key for key in result.history[0] if key.endswith("error")}
    with pytest.raises(SpecError, match=r"early_stopping.metric: .* no classes with the loss mse"):
        train({**spec, "early_stopping": {"metric": "error"}}, model=nn.Linear(2, 1), data=data)


def test_a_result_says_what_it_was_trained_on() -> None:
    assert "Linear on the given data, 1 epochs" in repr(
        train({"epochs": 1}, model=nn.Linear(2, 2), data=labelled([0, 1]))
    )
    assert "mlp on circles, 3 epochs" in repr(train(BASE))


@pytest.mark.parametrize("model", [nn.Linear(2, 2).requires_grad_(False), nn.Identity()])
def test_a_model_has_something_to_train(model: nn.Module) -> None:
    with pytest.raises(SpecError, match="has no parameters that are trained"):
        train({"epochs": 1}, model=model, data=labelled([0, 1]))


def test_a_single_image_is_enough_for_its_statistics() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x, y = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(5) % 2
    before = torch.get_rng_state()
    task = make_task(parse(TrainingSpec, {"model": "mine", "batch_size": 4}), model=net, data={"train": (x, y)})
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(task.model[1].running_mean, torch.zeros(2)), "looking leaves no trace"
