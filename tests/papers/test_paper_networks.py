"""Networks and data that only papers use, against what they stand for."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import landscope
from landscope import Probe
from landscope.models import MODELS
from landscope.papers import PAPERS, papers_by_network
from landscope.papers.false_friend.stability import BatchHessianVariance
from landscope.papers.fam.as_published import FAMNeuronwise
from landscope.papers.fam.networks import crossed_penalty, resnet18_with_bottleneck
from landscope.papers.function_centric.data import circles_of_the_paper, made_up_names, partly_random_labels
from landscope.papers.function_centric.networks import NameGPT, SmallDataViT
from landscope.training.loop.train import train


def rows(n: int = 30, features: int = 12, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(n, features, generator=g, dtype=torch.float64), torch.randint(classes, (n,), generator=g)


def test_the_studies_say_which_papers_train_a_network() -> None:
    found = papers_by_network()
    assert found["gat"] == ("adaptive-sharpness",)
    assert "false-friend" in found["vgg16"]
    assert {name for name in found if ":" not in name} <= set(MODELS)
    assert "vgg11" not in found


def test_only_the_command_and_names_of_old_records_know_a_paper() -> None:
    """FAM is an objective of training, too."""
    home = Path(landscope.__file__).parent
    words = [f"papers.{name.replace('-', '_')}" for name in PAPERS] + [name for name in PAPERS if "-" in name]
    knowing = {
        str(path.relative_to(home))
        for path in home.rglob("*.py")
        if path.parts[len(home.parts)] not in ("papers", "cli") and any(word in path.read_text() for word in words)
    }
    assert knowing == {"specs/names.py"}


def test_the_penalty_of_the_code_is_what_its_measure_gives() -> None:
    """In closed form, against Hessian products."""
    layer, (x, y) = nn.Linear(12, 5).double(), rows()
    found = crossed_penalty(layer.weight, x, layer(x))
    assert float(found.detach()) == pytest.approx(FAMNeuronwise()(Probe(layer, (x, y))).value, rel=1e-9)


def test_the_network_adds_the_gradient_of_its_penalty() -> None:
    strength = 0.3
    net = resnet18_with_bottleneck(width=2, crossed=strength).double()
    plain = copy.deepcopy(net)
    plain.fc.strength = 0.0
    x, y = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.arange(6) % 10
    F.cross_entropy(net(x), y).backward()
    features = plain.body(x)
    penalty = strength * crossed_penalty(plain.fc.weight, features, plain.fc(features))
    (F.cross_entropy(plain.fc(features), y) + penalty).backward()
    for own, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(own.grad, theirs.grad, rtol=1e-5, atol=1e-9)  # type: ignore[arg-type]
    assert penalty.abs() > 1e-4
    assert torch.equal(net.eval()(x), plain.eval()(x))


def test_training_with_it_differs_by_its_strength() -> None:
    def trained(crossed: float) -> torch.Tensor:
        model = {"name": "landscope:resnet18_with_bottleneck", "width": 2, "crossed": crossed}
        spec = {
            "data": {"name": "landscope:enlarged_digits", "times": 2},
            "model": model,
            "epochs": 1,
            "batch_size": 20,
        }
        return train(spec, progress=False).model.get_parameter("fc.weight").detach()

    assert torch.equal(trained(0.0), trained(0.0))
    assert 1e-4 < float((trained(0.0) - trained(2.0)).norm()) < 10


def test_the_variance_of_the_hessian_is_that_of_its_batches() -> None:
    layer, (x, y) = nn.Linear(12, 5, bias=False).double(), rows(32)
    found = BatchHessianVariance(batch_size=8, learning_rate=0.5, tol=1e-6)(Probe(layer, (x, y)))

    def matrix(at: slice) -> torch.Tensor:
        weight = layer.weight.detach()
        whole = torch.func.hessian(lambda w: F.cross_entropy(x[at] @ w.T, y[at]))(weight)
        return whole.reshape(60, 60)  # type: ignore[union-attr]

    parts = [matrix(slice(start, start + 8)) for start in range(0, 32, 8)]
    mean = matrix(slice(0, 32))
    variance = sum(part @ part for part in parts) / 4 - mean @ mean
    top = float(torch.linalg.eigvalsh(variance)[-1])
    assert found.value == pytest.approx(top, rel=1e-5)
    assert found.details["gradient_descent"] == 4.0
    assert found.details["sgd"] == pytest.approx((1 + (1 - 0.25 * top) ** 0.5) / 0.5, rel=1e-5)
    assert BatchHessianVariance(batch_size=8, learning_rate=100.0)(Probe(layer, (x, y))).details["sgd"] is None


def test_a_small_transformer_attends_to_all_but_itself() -> None:
    net = SmallDataViT(width=16, layers=1, heads=2, head_width=4, mlp_width=8).double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    attention = net.blocks[0].attention
    tokens = torch.randn(1, 5, 16, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(attention(tokens)[0, 2].sum(), tokens)
    others = [0, 1, 3, 4]
    assert float(slope[0, others].abs().min()) > 0
    value = attention.qkv.weight[2 * 8 :]  # a token acts on itself through its query alone, never through its value
    assert not torch.allclose(slope[0, 2], (attention.output.weight.sum(0) @ value), atol=1e-9)
    shifted = x.roll(4, 3)
    assert net(x).shape == (2, 10)
    assert not torch.allclose(net(x), net(shifted))
    assert sum(p.numel() for p in SmallDataViT().parameters()) == 6_475_248


def test_a_name_is_read_from_its_letters_alone() -> None:
    """What padding holds, and letters that are later than the last token, do not exist."""
    net = NameGPT(width=16, layers=2, heads=2).double()
    tokens = made_up_names(train=20, test=15)["train"].x
    before = net(tokens)
    with torch.no_grad():
        net.characters.weight[0] += 1.0  # of the padding
    assert torch.allclose(net(tokens), before)
    changed = tokens.clone()
    changed[:, -1] = 2 + (changed[:, -1] - 1) % 26
    assert not torch.allclose(net(changed), before)


def test_made_up_names_tell_their_language_without_being_certain() -> None:
    data = made_up_names()
    counts = torch.ones(15, 28, 28)
    for tokens, language in zip(data["train"].x, data["train"].y, strict=True):
        letters = tokens[tokens > 0] - 1
        pairs = torch.stack([torch.cat([torch.zeros(1, dtype=torch.long), letters[:-1]]), letters])
        counts[language].index_put_((pairs[0], pairs[1]), torch.ones(len(letters)), accumulate=True)
    chances = (counts / counts.sum(-1, keepdim=True)).log()
    right = 0
    for tokens, language in zip(data["test"].x[:600], data["test"].y[:600], strict=True):
        letters = tokens[tokens > 0] - 1
        before = torch.cat([torch.zeros(1, dtype=torch.long), letters[:-1]])
        right += int(chances[:, before, letters].sum(-1).argmax() == language)
    assert 0.85 < right / 600 < 0.99


def test_a_dose_of_random_labels() -> None:
    shares = [0.0, 0.5, 1.0]
    images = [partly_random_labels(of="digits", share=share, train_size=400) for share in shares]
    changed = [float((one["train"].y != one["validation"].y).double().mean()) for one in images]
    assert changed[0] == 0
    assert changed[1:] == pytest.approx([0.45, 0.9], abs=0.05)
    true = images[0]["train"].y
    assert all(
        torch.equal(one["validation"].y, true) and torch.equal(one["train"].x, images[0]["train"].x) for one in images
    )
    circles = [circles_of_the_paper(share=share) for share in shares]
    assert all(torch.equal(one["test"].y, circles[0]["test"].y) for one in circles)
    radius = circles[0]["train"].x.norm(dim=1)
    assert torch.equal(radius < 0.75, circles[0]["train"].y == 1)
