"""Norms of weights and gradients, and the noise of the gradient, against loops over samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from landscope.core.errors import UnknownNameError
from landscope.core.estimate import Status
from landscope.curvature.per_sample import linear_layers
from landscope.measures.sharpness.gradients import GradientNoise, GradientNorm, L2Norm
from landscope.probe.probe import Probe

F64 = torch.float64


def vectors(n: int = 12) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4, dtype=F64, generator=torch.Generator().manual_seed(2)), torch.arange(n) % 3


class TextNet(nn.Module):
    def __init__(self, positions: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.encoder = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, activation="gelu", dropout=0.0)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.bias = self.a.bias
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.b(torch.tanh(self.a(x)))))


class Sequence(nn.Module):
    """Many positions and few features, and few positions and many features: both ways to the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide, self.head = nn.Linear(1, 2), nn.Linear(2, 9), nn.Linear(9, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.wide(torch.tanh(self.narrow(x[..., None])))).mean(1))


class Stubborn(nn.Module):
    """Looks at a value: cannot be vmapped."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x * self.scale)) if float(x.detach().sum()) < 1e9 else x[:, :3]


def make(name: str) -> Probe:
    torch.manual_seed(1)
    if name == "conv":
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        net(torch.randn(5, 3, 6, 6))
        x = torch.randn(9, 3, 6, 6, dtype=F64, generator=torch.Generator().manual_seed(2))
        return Probe(net.double(), (x, torch.arange(9) % 3))
    if name == "text":
        tokens = torch.randint(0, 11, (5, 4), generator=torch.Generator().manual_seed(0))
        return Probe(TextNet().double(), {"tokens": tokens, "labels": torch.arange(5) % 3})
    if name == "regression":
        x, _ = vectors()
        return Probe(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double(), (x, x.sum(1)), "mse")
    net = {"tied": Tied, "sequence": Sequence, "stubborn": Stubborn}.get(name)
    if net is not None:
        return Probe(net().double(), vectors())
    return Probe(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double(), vectors())


NETS = ["mlp", "conv", "text", "regression", "tied", "sequence", "stubborn"]


def gradients(probe: Probe) -> Tensor:
    """One gradient per sample (n, P), each sample alone."""
    rows = []
    with probe.measuring():
        for batch in probe.batches():
            for sample in batch.pieces(1):
                leaves = {name: p.clone().requires_grad_() for name, p in probe.params.items()}
                found = torch.autograd.grad(
                    probe.loss_sum(leaves, sample), list(leaves.values()), allow_unused=True, materialize_grads=True
                )
                rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", NETS)
def test_gradient_norm(name: str) -> None:
    probe = make(name)
    g = gradients(probe)
    mean = g.mean(0)
    estimate = GradientNorm()(probe)
    assert estimate.value == pytest.approx(float(mean.norm()), rel=1e-10)
    along = g @ mean / mean.norm()
    assert estimate.data_stderr == pytest.approx(float(along.std()) / math.sqrt(len(g)), rel=1e-8)


@pytest.mark.parametrize("name", NETS)
def test_gradient_noise(name: str) -> None:
    probe = make(name)
    g = gradients(probe)
    apart = (g - g.mean(0)).square().sum(1)
    estimate = GradientNoise()(probe)
    assert estimate.status is Status.EXACT
    assert estimate.value == pytest.approx(float(apart.mean()), rel=1e-9)
    assert estimate.details["second_moment"] == pytest.approx(float(g.square().sum(1).mean()), rel=1e-10)
    assert estimate.data_stderr == pytest.approx(float(apart.std()) / math.sqrt(len(g)), rel=1e-8)


def test_which_layers_need_no_gradients() -> None:
    assert linear_layers(make("mlp")) == ("0", "2")
    assert linear_layers(make("conv")) == ("4",)
    assert linear_layers(make("tied")) == ("head",)
    assert linear_layers(make("text")) == ("encoder.linear1", "encoder.linear2", "head")
    only_head = make("mlp").restrict("2.weight")
    assert linear_layers(only_head) == ()
    g = gradients(only_head)
    truth = float((g - g.mean(0)).square().sum(1).mean())
    assert GradientNoise()(only_head).value == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("measure", [GradientNorm(), GradientNoise()], ids=lambda m: m.key)
def test_batches_temperature_and_dtype(measure: GradientNorm | GradientNoise) -> None:
    x, y = vectors()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    whole = measure(Probe(net, (x, y)))
    parts = measure(Probe(net, [(x[:5], y[:5]), (x[5:], y[5:])]))
    single = measure(Probe(net, (x, y), dtype=torch.float32))
    assert parts.value == pytest.approx(whole.value, rel=1e-12)
    assert parts.data_stderr == pytest.approx(whole.data_stderr, rel=1e-9)
    assert single.value == pytest.approx(whole.value, rel=1e-4)
    warm = Probe(net, (x, y)).at_temperature(2.0)
    g = gradients(warm)
    truth = float(g.mean(0).norm()) if isinstance(measure, GradientNorm) else float(g.var(0, unbiased=False).sum())
    assert measure(warm).value == pytest.approx(truth, rel=1e-9)


def test_batch_statistics_have_no_single_samples() -> None:
    probe = make("conv")
    net = probe.modules[""].requires_grad_()
    raw = next(probe.batches()).raw
    mixed = Probe(net, raw, mode="batch_statistics", batch_size=5)  # type: ignore[arg-type]
    assert GradientNoise()(mixed).status is Status.NOT_APPLICABLE
    estimate = GradientNorm()(mixed)
    assert estimate.value == pytest.approx(float(mixed.gradient().norm()), rel=1e-12)
    assert estimate.data_stderr is None
    assert "statistics" in str(estimate.details["no_data_stderr"])


def test_hooks_are_gone_afterwards() -> None:
    probe = make("text")
    GradientNoise()(probe)
    assert not any(module._forward_hooks for module in probe.modules.values())


def test_l2_norm() -> None:
    probe = make("mlp")
    parts = {name: float(p.norm()) for name, p in probe.params.items()}
    total = sum(v**2 for v in parts.values())
    assert L2Norm()(probe).value == pytest.approx(math.sqrt(total), rel=1e-12)
    assert L2Norm(squared=True)(probe).value == pytest.approx(total, rel=1e-12)
    last = math.hypot(parts["2.weight"], parts["2.bias"])
    assert L2Norm(layer="2")(probe).value == pytest.approx(last, rel=1e-12)
    assert L2Norm(layer="2.weight", squared=True)(probe).value == pytest.approx(parts["2.weight"] ** 2, rel=1e-12)
    by_layer = L2Norm()(probe).details["by_layer"]
    assert isinstance(by_layer, dict)
    assert by_layer["2"] == pytest.approx(last, rel=1e-12)
    assert L2Norm()(make("tied")).details["parameters"] == 16 + 4 + 12 + 3
    with pytest.raises(UnknownNameError):
        L2Norm(layer="9")(probe)
