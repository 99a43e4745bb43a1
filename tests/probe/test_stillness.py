"""A forward pass or a hook that changes what it computes with is refused, with the name of what changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import landscope as ls
from landscope import Probe, errors

X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3


class Moving(nn.Module):
    """A network that does something to itself before every pass."""

    def __init__(self, act: Callable[[Moving, Tensor], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.scale, self.act = 1.0, act

    def forward(self, x: Tensor) -> Tensor:
        self.act(self, x)
        return self.last(torch.tanh(self.first(x - self.mean))) * self.scale


@torch.no_grad()
def grows_weight(m: Moving, x: Tensor) -> None:
    m.first.weight.mul_(1.001)


def grows_data(m: Moving, x: Tensor) -> None:
    m.last.bias.data.mul_(1 + 1e-6)


def averages(m: Moving, x: Tensor) -> None:
    m.mean.lerp_(x.detach().mean(0), 1e-3)


def averages_slowly(m: Moving, x: Tensor) -> None:
    m.mean = m.mean + 1e-5


def counts_into_the_output(m: Moving, x: Tensor) -> None:
    m.calls += 1
    m.scale = 1 + 1e-4 * float(m.calls)


def grows_number(m: Moving, x: Tensor) -> None:
    m.scale *= 1.001


def counts(m: Moving, x: Tensor) -> None:
    m.calls += 1


def still(m: Moving, x: Tensor) -> None:
    pass


LATE = {"begun": False}


def late(m: Moving, x: Tensor) -> None:
    """Nothing at construction, then a drift."""
    if LATE["begun"]:
        m.mean.add_(1e-3)


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (grows_weight, r"changes the parameter first\.weight"),
        (grows_data, r"changes the parameter last\.bias"),
        (averages, "buffer mean changes"),
        (averages_slowly, "buffer mean changes|outputs for the same rows drift"),
        (counts_into_the_output, "buffer calls changes"),
        (grows_number, "drift|different outputs"),
    ],
)
def test_what_changes_is_named(act: Callable[[Moving, Tensor], None], named: str) -> None:
    with pytest.raises(errors.ModelError, match=named):
        Probe(Moving(act), (X, Y))


def test_a_hook_that_changes_weights() -> None:
    model = Moving(still)

    def grow(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        module.weight.data.mul_(1.001)

    model.first.register_forward_pre_hook(grow)
    with pytest.raises(errors.ModelError, match=r"changes the parameter first\.weight"):
        Probe(model, (X, Y))


def test_a_counter_is_harmless() -> None:
    probe, plain = Probe(Moving(counts), (X, Y)), Probe(Moving(still), (X, Y))
    assert probe.value() == plain.value()
    assert ls.measure(probe, measures="gradient_norm")["gradient_norm"].value == pytest.approx(
        float(plain.gradient().norm()), rel=1e-6
    )


def test_a_drift_that_begins_later_fails_the_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(Moving(late), (X, Y))
    monkeypatch.setitem(LATE, "begun", True)
    found = ls.measure(probe, measures="hessian_trace")["hessian_trace"]
    assert found.status is ls.Status.FAILED
    assert "its buffer mean changes with every pass" in found.reason
    with pytest.raises(errors.ModelError, match="drift"):
        ls.MEASURES["gradient_norm"]()(probe)


def test_an_edited_copy_may_differ_from_the_first() -> None:
    def shifted(model: nn.Module) -> None:
        model.last.bias.add_(1.0)

    probe = Probe(Moving(counts), (X, Y)).with_model(shifted)
    assert ls.measure(probe, measures="gradient_norm")["gradient_norm"].status.has_value


@pytest.mark.parametrize("mode", ["eval", "batch_statistics"])
def test_batch_norm_in_training_mode_stays_where_it_is(mode: str) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).train()
    report = ls.measure(model, (X, Y), ["gradient_norm", "hessian_top_eigenvalue"], mode=mode)
    assert all(e.status.has_value for e in report.values())


def grows_with_gradients(m: Moving, x: Tensor) -> None:
    """Where nothing is differentiated it stays."""
    if torch.is_grad_enabled():
        m.first.weight.data.mul_(1.001)


def test_weights_that_change_only_where_gradients_are_taken() -> None:
    with pytest.raises(errors.ModelError, match=r"changes the parameter first\.weight"):
        Probe(Moving(grows_with_gradients), (X, Y))


class Cached(nn.Module):
    """Keeps a weight that it computed, as long as the tensor says that it is still right."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.kept = nn.Linear(4, 5), nn.Linear(5, 3), None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None or self.kept[0] != self.first.weight._version:
            self.kept = self.first.weight._version, 2 * self.first.weight
        return self.last(torch.tanh(nn.functional.linear(x, self.kept[1], self.first.bias)))


def test_a_cache_that_asks_for_the_version_of_a_tensor() -> None:
    with pytest.raises(errors.ModelError, match="does not compute with the values that are put in"):
        Probe(Cached(), (X, Y))


def test_a_hidden_state_is_called_one() -> None:
    class Carries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.last, self.state = nn.GRUCell(4, 5), nn.Linear(5, 3), None

        def forward(self, x: Tensor) -> Tensor:
            state = None if self.state is None or len(self.state) != len(x) else self.state
            self.state = self.cell(x, state).detach()
            return self.last(self.state)

    with pytest.raises(errors.StochasticModelError, match="keeps something from pass to pass"):
        Probe(Carries(), (X, Y))
