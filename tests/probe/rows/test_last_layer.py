"""Bounds from the outputs of a few rows, against dense float64 matrices; and streams that several measures read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import landscope as ls
from landscope.curvature.dense import hessian
from landscope.probe.rows import last_layer
from landscope.probe.rows.last_layer import layer_bounds
from landscope.probe.shared import shared_stream


@pytest.fixture
def _as_where_passes_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_layer, "is_small", lambda _: False)


def gradients(probe: ls.Probe) -> Tensor:
    """The gradient of every sample, by autograd alone."""
    rows = [
        probe.on_rows(torch.tensor([row]), torch.tensor([float(probe.n_samples)])) for row in range(probe.n_samples)
    ]
    return torch.stack([row.gradient() for row in rows]).double()


class Tokens(nn.Module):
    """Logits (n, C, T), as cross-entropy takes them."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(classes, 4), nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next token."""
        return self.head(self.embed(x).cumsum(1).tanh()).transpose(1, 2)


class Tied(nn.Module):
    """Logits by the embedding's own weights, behind a norm: no layer of their own, and no bias."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.embed, self.mix, self.norm = nn.Embedding(12, 6), nn.Linear(6, 6), norm

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, C, T) of the next token."""
        inner = self.norm(self.embed(x).cumsum(1) + self.mix(self.embed(x)).tanh())
        return (inner @ self.embed.weight.T).transpose(1, 2)


def cases() -> dict[str, tuple[nn.Module, Tensor, Tensor, str]]:
    """Networks with a bias at their outputs, few and many of them."""
    torch.manual_seed(3)
    x, ids = torch.randn(300, 5), torch.randint(0, 40, (300, 6))
    return {
        "classes": (
            nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)),
            x,
            torch.arange(300) % 4,
            "cross_entropy",
        ),
        "many classes": (Tokens(40), ids, ids.roll(-1, 1), "cross_entropy"),
        "no bias": (
            nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4, bias=False)),
            x,
            torch.arange(300) % 4,
            "cross_entropy",
        ),
        "tied": (Tied(nn.LayerNorm(6)), ids % 12, (ids % 12).roll(-1, 1), "cross_entropy"),
        "tied, scale alone": (Tied(nn.RMSNorm(6)), ids % 12, (ids % 12).roll(-1, 1), "cross_entropy"),
        "regression": (nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)), x, torch.randn(300, 2), "mse"),
    }


@pytest.mark.usefixtures("_as_where_passes_take_long")
@pytest.mark.parametrize("kind", list(cases()))
def test_every_bound_is_one(kind: str) -> None:
    net, x, y, loss = cases()[kind]
    missed = 0
    for seed in range(20):
        probe = ls.Probe(
            net.double(),
            (x.double() if x.is_floating_point() else x, y.double() if loss == "mse" else y),
            loss,
            seed=seed,
        )
        bounds = layer_bounds(probe)
        assert bounds is not None
        assert bounds.rows < probe.n_samples
        if seed == 0:
            values = torch.linalg.eigvalsh(hessian(probe))
            trace = float(ls.GGN(probe).dense().trace())
            each = gradients(probe)
            spread = float((each - each.mean(0)).square().sum(1).mean())
        missed += bounds.top > values[-1] or bounds.bottom < values[0] - 1e-12
        missed += bounds.slope > each.mean(0).norm() or bounds.noise > spread
        missed += bounds.trace is not None and bounds.trace > trace
        missed += sum(volume > float(values[-k:].log().sum()) for k, volume in enumerate(bounds.volumes, 1))
        if bounds.rise is not None:
            step = {name: 0.3 * part for name, part in bounds.gradient.items()}
            moved = {**probe.params, **{name: probe.params[name] + by for name, by in step.items()}}
            batch = next(probe.batches())
            truth = float(probe.loss_sum(moved, batch) - probe.loss_sum(probe.params, batch)) / probe.n_samples
            missed += bounds.rise(step).low > truth
        assert bounds.top > 0
        assert bounds.noise > 0 or kind.startswith("tied")  # from eight pairs
    assert missed <= 6


@pytest.mark.usefixtures("_as_where_passes_take_long")
def test_bounds_say_something() -> None:
    net, x, y, loss = cases()["classes"]
    probe = ls.Probe(net.double(), (x.double(), y), loss)
    bounds = layer_bounds(probe)
    values = torch.linalg.eigvalsh(hessian(probe))
    assert bounds is not None
    assert bounds.trace is not None
    assert bounds.top > 0.4 * float(values[-1])  # the bias alone: 0.02
    assert len(bounds.volumes) >= 10
    assert bounds.noise > 0.2 * float((gradients(probe)).square().sum(1).mean())


@pytest.mark.usefixtures("_as_where_passes_take_long")
@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(5, 4), nn.Tanh()),
        nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Softmax(1)),
    ],
    ids=["a function behind it", "a softmax behind it"],
)
def test_no_layer_at_the_outputs_no_bound(net: nn.Module) -> None:
    assert layer_bounds(ls.Probe(net, (torch.randn(300, 5), torch.arange(300) % 4))) is None


class UsedTwice(nn.Module):
    """The last layer's weights go into its inputs as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(torch.tanh(self.first(x)) @ self.head.weight)


@pytest.mark.usefixtures("_as_where_passes_take_long")
def test_a_last_layer_that_is_used_elsewhere_bounds_nothing() -> None:
    assert layer_bounds(ls.Probe(UsedTwice(), (torch.randn(300, 5), torch.arange(300) % 4), params="head")) is None


class Clip(nn.Module):
    """Outputs between −3 and 3."""

    def forward(self, x: Tensor) -> Tensor:
        """Most of them are cut."""
        return x.clamp(-3, 3)


@pytest.mark.usefixtures("_as_where_passes_take_long")
def test_outputs_that_are_cut_on_some_rows_bound_nothing() -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 5)
    x[8:] *= 20  # the few rows that are looked at when a probe is made are not cut
    probe = ls.Probe(nn.Sequential(nn.Linear(5, 4), Clip()), (x, torch.arange(300) % 4))
    assert layer_bounds(probe) is None


@pytest.mark.usefixtures("_as_where_passes_take_long")
def test_a_constant_head_bounds_nothing() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    data = torch.randn(300, 5), torch.arange(300) % 4
    assert layer_bounds(ls.Probe(net, data, params="0")) is None
    assert layer_bounds(ls.Probe(net, data)) is not None


def test_a_stream_is_made_once_and_followed_by_all() -> None:
    made: list[int] = []

    @shared_stream
    def numbers(probe: ls.Probe, most: int) -> Iterator[int]:
        for number in range(most):
            made.append(number)
            yield number
        if most == 2:
            raise RuntimeError("the end")

    probe = ls.Probe(nn.Linear(2, 2), (torch.randn(8, 2), torch.arange(8) % 2))
    one, other = numbers(probe, 5), numbers(probe, 5)
    assert [next(one), next(one), next(other), next(other), next(one)] == [0, 1, 1, 2, 2]
    assert list(one) == [3, 4]
    assert list(other) == [4]
    assert made == [0, 1, 2, 3, 4]
    first, second = numbers(probe, 2), numbers(probe, 2)
    assert [next(first), next(second), next(second)] == [0, 0, 1]
    for reader in (second, first):
        with pytest.raises(RuntimeError, match="the end"):
            list(reader)
    assert next(numbers(probe, 2)) == 0


def test_one_matrix_under_two_names_is_measured_once() -> None:
    net = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 4))
    data = torch.randn(300, 5), torch.arange(300) % 4
    alone = ls.measure(net, data, ["ggn_top_eigenvalue"], progress=False)["ggn_top_eigenvalue"]
    both = ls.measure(net, data, ["ggn_top_eigenvalue", "fisher_top_eigenvalue"], progress=False)
    assert both["fisher_top_eigenvalue"].value == both["ggn_top_eigenvalue"].value == alone.value
    assert sum(found.cost.passes for found in both.values()) < 1.5 * alone.cost.passes
