"""The Fisher–Rao norm against dense Fisher matrices, and its closed form on homogeneous networks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from landscope.core.estimate import Status
from landscope.curvature import Fisher, dense
from landscope.measures.sharpness.fisher_rao import FisherRao, FisherRaoHomogeneous
from landscope.probe.probe import Probe

F64 = torch.float64


def vectors(n: int = 11, d: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(n, d, dtype=F64, generator=torch.Generator().manual_seed(2)), torch.arange(n) % 3


def images(n: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3, 6, 6, dtype=F64, generator=torch.Generator().manual_seed(2)), torch.arange(n) % 3


class TextNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.encoder = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, activation="gelu", dropout=0.0)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class NoForwardMode(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: object, slope: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return slope * (1 - out * out)


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return NoForwardMode.apply(x)


def mlp(*between: nn.Module, bias: bool = True, d: int = 4) -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(d, 6, bias=bias), *between, nn.Linear(6, 3, bias=bias)).double()


def make(name: str, **options: object) -> Probe:
    torch.manual_seed(1)
    if name == "conv":
        net = nn.Sequential(
            nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
        )
        net(torch.randn(5, 3, 6, 6))
        return Probe(net.double(), images(), **options)  # type: ignore[arg-type]
    if name == "text":
        tokens = torch.randint(0, 11, (5, 4), generator=torch.Generator().manual_seed(0))
        return Probe(TextNet().double(), (tokens, torch.arange(5) % 3), **options)  # type: ignore[arg-type]
    return Probe(mlp(nn.Tanh()), vectors(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mlp", "conv", "text"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_matches_the_dense_matrices(name: str, temperature: float) -> None:
    probe = make(name, temperature=temperature)
    theta = probe.vector()
    for labels, matrix in (("model", dense.fisher(probe)), ("data", dense.empirical_fisher(probe))):
        truth = float(theta @ matrix @ theta)
        estimate = FisherRao(labels=labels)(probe)  # type: ignore[arg-type]
        assert estimate.value == pytest.approx(truth, rel=1e-10), labels
        assert estimate.status is Status.EXACT
        root = FisherRao(labels=labels, root=True)(probe)  # type: ignore[arg-type]
        assert root.value == pytest.approx(math.sqrt(truth), rel=1e-10)
        assert root.data_stderr == pytest.approx(estimate.data_stderr / (2 * root.value), rel=1e-10)


@pytest.mark.parametrize("loss", ["mse", "binary_cross_entropy"])
def test_other_likelihoods(loss: str) -> None:
    x, y = vectors()
    targets = torch.stack((y == 0, y == 1, y == 2), 1).to(F64)
    probe = Probe(mlp(nn.Tanh()), (x, targets), loss)
    theta = probe.vector()
    assert FisherRao()(probe).value == pytest.approx(float(theta @ Fisher(probe).dense() @ theta), rel=1e-10)
    truth = float(theta @ dense.empirical_fisher(probe) @ theta)
    assert FisherRao(labels="data")(probe).value == pytest.approx(truth, rel=1e-10)


def test_per_sample_spread_and_batches() -> None:
    x, y = vectors()
    net = mlp(nn.Tanh())
    each = torch.tensor([FisherRao()(Probe(net, (x[i : i + 1], y[i : i + 1]))).value for i in range(len(x))], dtype=F64)
    whole = FisherRao()(Probe(net, (x, y)))
    assert whole.value == pytest.approx(float(each.mean()), rel=1e-10)
    assert whole.data_stderr == pytest.approx(float(each.std()) / math.sqrt(len(x)), rel=1e-8)
    parts = FisherRao()(Probe(net, [(x[:8], y[:8]), (x[8:], y[8:])]))
    assert parts.value == pytest.approx(whole.value, rel=1e-12)


def test_operations_without_forward_mode() -> None:
    probe = Probe(mlp(Opaque()), vectors())
    estimate, same = FisherRao()(probe), FisherRao()(Probe(mlp(nn.Tanh()), vectors()))
    assert estimate.value == pytest.approx(same.value, rel=1e-10)
    assert estimate.data_stderr is None
    assert "product" in str(estimate.details["by"])


def test_batch_statistics() -> None:
    probe = make("conv", mode="batch_statistics", batch_size=4)
    theta = probe.vector()
    assert FisherRao()(probe).value == pytest.approx(float(theta @ dense.fisher(probe) @ theta), rel=1e-9)
    assert FisherRao(labels="data")(probe).status is Status.NOT_APPLICABLE


def test_no_likelihood_no_fisher() -> None:
    x, y = vectors()
    probe = Probe(mlp(nn.Tanh()), (x, y[:, None].expand(-1, 3).to(F64) - 1), "exponential")
    assert FisherRao()(probe).status is Status.NOT_APPLICABLE
    assert FisherRao(labels="data")(probe).status is Status.EXACT
    with pytest.raises(ValueError, match="labels"):
        FisherRao(labels="none")  # type: ignore[arg-type]


def bias_free_nets() -> dict[str, tuple[nn.Module, tuple[Tensor, Tensor], int]]:
    torch.manual_seed(4)
    deep = [layer for _ in range(4) for layer in (nn.Linear(4, 4, bias=False), nn.LeakyReLU(0.1))]
    conv = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 2, bias=False),
        nn.ReLU(),
        nn.AvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3, bias=False),
    )
    return {
        "mlp": (mlp(nn.ReLU(), bias=False), vectors(), 2),
        "deep": (nn.Sequential(*deep, nn.Linear(4, 3, bias=False)).double(), vectors(), 5),
        "conv": (conv.double(), images(), 3),
    }


@pytest.mark.parametrize("name", ["mlp", "deep", "conv"])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_closed_form_is_exact_on_homogeneous_networks(name: str, temperature: float) -> None:
    net, data, depth = bias_free_nets()[name]
    probe = Probe(net, data, temperature=temperature)
    estimate, general = FisherRaoHomogeneous()(probe), FisherRao(labels="data")(probe)
    assert estimate.details["layers"] == depth
    assert "assumption" not in estimate.details
    assert estimate.value == pytest.approx(general.value, rel=1e-10)
    assert estimate.data_stderr == pytest.approx(general.data_stderr, rel=1e-8)
    assert FisherRaoHomogeneous(root=True)(probe).value == pytest.approx(math.sqrt(general.value), rel=1e-10)


def test_only_measured_layers_count() -> None:
    net, data, _ = bias_free_nets()["deep"]
    probe = Probe(net, data, params=["8.weight", "2.weight"])
    estimate = FisherRaoHomogeneous()(probe)
    assert estimate.details["layers"] == 2
    assert estimate.value == pytest.approx(FisherRao(labels="data")(probe).value, rel=1e-10)


def test_the_formula_by_hand() -> None:
    x, y = vectors()
    net = mlp(nn.ReLU())
    z = net(x).detach()
    along = ((z.softmax(1) - nn.functional.one_hot(y, 3)) * z).sum(1)
    estimate = FisherRaoHomogeneous(layers=6, root=True)(Probe(net, (x, y)))
    assert estimate.value == pytest.approx(math.sqrt(36 * float(along.square().mean())), rel=1e-10)
    assert "degree 6" in estimate.reason


@pytest.mark.parametrize(
    ("net", "named"),
    [
        (mlp(nn.GELU()), "GELU"),
        (mlp(nn.Tanh()), "Tanh"),
        (mlp(nn.LayerNorm(6).double(), nn.ReLU()), "LayerNorm"),
        (mlp(nn.PReLU().double()), "PReLU"),
    ],
)
def test_refusals(net: nn.Module, named: str) -> None:
    probe = Probe(net, vectors())
    refused = FisherRaoHomogeneous()(probe)
    assert refused.status is Status.NOT_APPLICABLE
    assert named in refused.reason
    assert "fisher_rao" in refused.reason
    given = FisherRaoHomogeneous(layers=2)(probe)
    assert given.status is Status.EXACT
    assert named in str(given.details["assumption"])


def test_functional_activations_and_shortcuts_are_found_too() -> None:
    class Shortcut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.inner(x).relu())

    assert FisherRaoHomogeneous()(Probe(Shortcut().double(), vectors())).status is Status.NOT_APPLICABLE
    assert FisherRaoHomogeneous()(make("text")).status is Status.NOT_APPLICABLE
    assert FisherRaoHomogeneous()(make("conv")).status is Status.NOT_APPLICABLE


def test_biases_are_a_warning() -> None:
    estimate = FisherRaoHomogeneous()(Probe(mlp(nn.ReLU()), vectors()))
    assert estimate.status is Status.EXACT
    assert "biases" in str(estimate.details["assumption"])
    with pytest.raises(ValueError, match="layers"):
        FisherRaoHomogeneous(layers=0)


def test_logits_of_minus_infinity_count_for_nothing() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inner = nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)).to(F64)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.inner(x), x.new_full((len(x), 2), -math.inf)], 1)

    model = Masked()
    found, plain = (FisherRaoHomogeneous(layers=2)(Probe(net, vectors())) for net in (model, model.inner))
    assert found.value == pytest.approx(plain.value, rel=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_closed_form_reads_the_outputs_that_everything_shares(temperature: float) -> None:
    """In no pass of its own the same as row by row, which other losses take."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 9, bias=False), nn.ReLU(), nn.Linear(9, 4, bias=False)).double()
    x, y = torch.randn(300, 5, dtype=torch.float64), torch.arange(300) % 4
    probe = Probe(net, (x, y), temperature=temperature)
    measure = FisherRaoHomogeneous()
    rows = measure.rows(probe, next(probe.batches()))
    before = probe.ledger.passes
    found = measure.last(probe)
    assert found.value == pytest.approx(float(rows.mean()), rel=1e-12)
    assert found.data_stderr == pytest.approx(float(rows.std() / len(rows) ** 0.5), rel=1e-9)
    assert probe.ledger.passes - before == pytest.approx(1 / 3)
    again = probe.ledger.passes
    measure.last(probe)
    assert probe.ledger.passes == again
