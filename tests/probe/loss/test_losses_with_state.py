"""Losses that read more than outputs and targets: what hooks and forward passes keep, the model itself, a state of their own."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import landscope as ls
from landscope import Fisher, Hessian, Probe, errors

torch.manual_seed(0)
X, Y = torch.randn(64, 4), torch.randint(0, 3, (64,))
Function = Callable[[Tensor, Tensor], Tensor]


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


class Combined(nn.Module):
    """The same network, whose outputs carry the hidden layer along: the loss can be written without any detour."""

    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.inner[1](self.inner[0](x))
        return self.inner[2](hidden), hidden


def check_same(probe: Probe, truth: Probe) -> None:
    v = torch.randn(truth.n_params, generator=torch.Generator().manual_seed(2), dtype=truth.dtype)
    assert probe.value() == pytest.approx(truth.value(), rel=1e-6)
    assert torch.allclose(probe.gradient(), truth.gradient(), atol=1e-6)
    assert torch.allclose(Hessian(probe) @ v, Hessian(truth) @ v, atol=1e-5)


def with_hidden_penalty(reduction: str = "mean") -> Probe:
    def loss(outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        squares = outputs[1].pow(2)
        return F.cross_entropy(outputs[0], y, reduction=reduction) + (
            squares.mean() if reduction == "mean" else squares.mean(1)
        )

    return Probe(Combined(net()), (X, Y), loss)


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_hook_that_feeds_the_loss(reduction: str, called: bool) -> None:
    model, seen = net(), {"h": torch.zeros(1, 1)}
    model[1].register_forward_hook(lambda module, args, out: seen.__setitem__("h", out))
    if called:
        model(X)

    def loss(z: Tensor, y: Tensor) -> Tensor:
        squares = seen["h"].pow(2)
        return F.cross_entropy(z, y, reduction=reduction) + (squares.mean() if reduction == "mean" else squares.mean(1))

    check_same(Probe(model, (X, Y), loss), with_hidden_penalty(reduction))


def test_numbers_of_a_hook_that_feeds_the_loss() -> None:
    model, seen = net(), {}
    model[1].register_forward_hook(lambda module, args, out: seen.__setitem__("h", out))
    report = ls.measure(
        model,
        (X, Y),
        ["loss", "gradient_norm", "hessian_top_eigenvalue"],
        loss=lambda z, t: F.cross_entropy(z, t) + seen["h"].pow(2).mean(),
    )
    assert [e.value for e in report.values()] == pytest.approx([1.3514, 0.3387, 0.6903], abs=1e-4)


def test_a_hook_that_looks_only_is_dropped_under_a_loss_of_the_users_too() -> None:
    model, calls = net(), []
    model[1].register_forward_hook(lambda module, args, out: calls.append(out.detach().numpy()))
    probe = Probe(model, (X, Y), lambda z, y: F.cross_entropy(z, y, reduction="none"))
    assert not probe.module("1")._forward_hooks
    before = len(calls)
    assert torch.isfinite(Hessian(probe) @ probe.vector()).all()
    assert len(calls) == before


class Keeps(nn.Module):
    """A network that keeps an auxiliary loss, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner[1](self.inner[0](x))
        self.aux = hidden.pow(2).mean()
        return self.inner[2](hidden)


class Criterion(nn.Module):
    """A criterion that knows the model."""

    def __init__(self, model: Keeps) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y) + self.model.aux


class Slots:
    """An object that cannot be made again around the copy."""

    __slots__ = ("model",)

    def __init__(self, model: nn.Module) -> None:
        self.model = model


class Trainer:
    """An object with the model and a method for the loss."""

    def __init__(self, model: Keeps) -> None:
        self.model = model

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y) + self.model.aux


def of_a_global_dictionary(m: Keeps) -> Function:
    GLOBAL["model"] = m
    return lambda z, y: F.cross_entropy(z, y) + GLOBAL["model"].aux


def of_a_global_trainer(m: Keeps) -> Function:
    global TRAINER
    TRAINER = Trainer(m)
    return lambda z, y: TRAINER.loss(z, y)


GLOBAL: dict[str, Keeps] = {}
READERS: dict[str, Callable[[Keeps], Function]] = {
    "closure": lambda m: lambda z, y: F.cross_entropy(z, y) + m.aux,
    "default": lambda m: lambda z, y, m=m: F.cross_entropy(z, y) + m.aux,
    "criterion": Criterion,
    "within_a_function": lambda m: (lambda criterion: lambda z, y: criterion(z, y))(Criterion(m)),
    "method": lambda m: Trainer(m).loss,
    "namespace": lambda m: (lambda s: lambda z, y: F.cross_entropy(z, y) + s.model.aux)(types.SimpleNamespace(model=m)),
    "declared": lambda m: ls.Loss(lambda z, y: F.cross_entropy(z, y) + m.aux, reduction="mean"),
    "global_dictionary": of_a_global_dictionary,
    "global_trainer": of_a_global_trainer,
}


@pytest.mark.parametrize("called", [None, "grad", "no_grad"])
@pytest.mark.parametrize("reader", READERS)
def test_a_term_that_the_forward_pass_keeps(reader: str, called: str | None) -> None:
    model = Keeps()
    if called:
        with torch.set_grad_enabled(called == "grad"):
            model(X)
    kept = getattr(model, "aux", None)
    check_same(Probe(model, (X, Y), READERS[reader](model)), with_hidden_penalty())
    assert getattr(model, "aux", None) is kept


def test_what_the_loss_reads_besides_the_outputs_is_said() -> None:
    model = Keeps()
    probe = Probe(model, (X, Y), lambda z, y: F.cross_entropy(z, y) + model.aux)
    assert probe.notices == (
        "the loss reads something that the model computes besides its outputs: the GGN and the Fisher matrix leave that part out",
    )
    assert with_hidden_penalty().notices == Probe(model, (X, Y), kl_to_itself(model)).notices == ()


def test_a_kept_term_at_an_edited_copy_is_that_copys() -> None:
    model = Keeps()

    def double(m: nn.Module) -> None:
        m.inner[0].weight.mul_(2)

    probe = Probe(model, (X, Y), lambda z, y: F.cross_entropy(z, y) + model.aux)
    probe.value()
    with torch.no_grad():
        double(model)
        expected = F.cross_entropy(model(X), Y) + model.aux
    assert probe.with_model(double).value() == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("grad", [False, True])
def test_a_kept_term_behind_something_that_cannot_be_rebound(grad: bool) -> None:
    model = Keeps()
    with torch.set_grad_enabled(grad):
        model(X)
    slots = Slots(model)
    with pytest.raises(errors.ModelError, match="loss function reads aux.* of your model"):
        Probe(model, (X, Y), lambda z, y: F.cross_entropy(z, y) + slots.model.aux)


# Penalties on the weights


def stale(m: nn.Module) -> Function:
    penalty = sum(p.square().sum() for p in m.parameters())
    return lambda z, y: F.cross_entropy(z, y) + penalty


def on_a_criterion(m: nn.Module) -> Function:
    criterion = nn.CrossEntropyLoss()
    criterion.penalty = sum(p.square().sum() for p in m.parameters())
    return lambda z, y: criterion(z, y) + criterion.penalty


def freed(m: nn.Module) -> Function:
    penalty = sum(p.square().sum() for p in m.parameters())
    penalty.backward()
    m.zero_grad()
    return lambda z, y: F.cross_entropy(z, y) + penalty


class Held(nn.Module):
    """A criterion that holds a weight of the model's."""

    def __init__(self, m: nn.Sequential) -> None:
        super().__init__()
        self.weight = m[0].weight

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y) + self.weight.square().sum()


PENALTIES: dict[str, Callable[[nn.Sequential], Function]] = {
    "live": lambda m: lambda z, y: F.cross_entropy(z, y) + sum(p.square().sum() for p in m.parameters()),
    "stale": stale,
    "on_a_criterion": on_a_criterion,
    "freed": freed,
    "held": Held,
    "second_call": lambda m: (
        lambda z, batch: F.cross_entropy(z, batch[1]) + (m(batch[0] + 0.1) - z).square().sum(1).mean()
    ),
    "slots": lambda m: (lambda s: lambda z, y: F.cross_entropy(z, y) + s.model[0].weight.square().sum())(Slots(m)),
}


@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_penalty_on_the_users_weights_is_refused(penalty: str) -> None:
    model = net()
    with pytest.raises(errors.ModelError, match=r"loss function reads 0\.weight.*no_grad"):
        Probe(model, (X, Y), PENALTIES[penalty](model))


@pytest.mark.parametrize("penalty", ["live", "held", "slots"])
def test_a_penalty_on_weights_without_gradients_is_refused_where_they_are_measured(penalty: str) -> None:
    model = net().requires_grad_(False)
    with pytest.raises(errors.ModelError, match=r"loss function reads 0\.weight"):
        Probe(model, (X, Y), PENALTIES[penalty](model), params=["*"])


def test_a_penalty_on_weights_that_are_not_measured_is_a_constant() -> None:
    model = net()
    expected = F.cross_entropy(model(X), Y) + model[0].weight.square().sum()
    probe = Probe(model, (X, Y), Held(model), params="2")
    assert probe.value() == pytest.approx(expected.item(), rel=1e-6)


# The model as a fixed reference


def kl_to_itself(model: nn.Module) -> Callable[[Tensor, tuple[Tensor, Tensor]], Tensor]:
    def loss(z: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            reference = model(batch[0]).log_softmax(1)
        return F.kl_div(z.log_softmax(1), reference, log_target=True, reduction="none").sum(1)

    return loss


def test_the_divergence_to_itself_has_the_fisher_matrix_as_its_hessian() -> None:
    model = net()
    probe, plain = Probe(model, (X, Y), kl_to_itself(model)), Probe(net(), (X, Y))
    assert probe.value() == pytest.approx(0, abs=1e-7)
    assert torch.allclose(Hessian(probe).dense(), Fisher(plain).dense(), atol=1e-6)
    found = ls.measure(probe, measures="hessian_top_eigenvalue")["hessian_top_eigenvalue"]
    assert found.value == pytest.approx(0.6066, abs=1e-3)
    moved = {name: 1.1 * value for name, value in probe.params.items()}
    with torch.no_grad():
        reference, twin = net()(X).log_softmax(1), net()
        twin.load_state_dict(moved)
        expected = F.kl_div(twin(X).log_softmax(1), reference, log_target=True, reduction="none").sum()
        assert float(probe.loss_sum(moved, next(probe.batches()))) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_self_distillation_and_proximal_terms(dtype: torch.dtype) -> None:
    model = net()
    start = [p.detach() for p in model.parameters()]

    def loss(z: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            soft = model(batch[0]).softmax(1)
        near = sum((p.detach() - s.to(p)).square().sum() for p, s in zip(model.parameters(), start, strict=True))
        return F.cross_entropy(z, batch[1]) + F.cross_entropy(z, soft) + near

    soft = net().to(dtype)(X.to(dtype)).softmax(1).detach()
    onehot = F.one_hot(Y, 3).to(dtype)
    truth = Probe(net(), (X, onehot + soft), lambda z, p: -(p * z.log_softmax(1)).sum(1), dtype=dtype)
    check_same(Probe(model, (X, Y), loss, dtype=dtype), truth)


# Losses that are random or keep a state


class Noisy(nn.Module):
    """A criterion with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.drop(z), y, reduction="none")


class Averaging(nn.Module):
    """A criterion with a moving average of its outputs, in a buffer or an attribute."""

    def __init__(self, rate: float = 0.1, used: bool = True, detach: bool = True) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.rate, self.used, self.detach = rate, used, detach

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        now = z.mean(0)
        if self.training:
            self.mean = (1 - self.rate) * self.mean + self.rate * (now.detach() if self.detach else now)
        return F.cross_entropy(z - self.mean if self.used else z, y, reduction="none") + 0 * self.mean.sum().detach()


def random_terms(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z + 1e-3 * torch.randn_like(z), y, reduction="none")


def random_mean(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z + torch.randn_like(z), y)


RANDOM: dict[str, Callable[[], Function]] = {
    "randn": lambda: random_terms,
    "mean": lambda: random_mean,
    "dropout": Noisy,
    "dropout_in_a_function": lambda: (lambda c: lambda z, y: c(z, y))(Noisy()),
    "average": Averaging,
    "slow_average": lambda: Averaging(1e-3),
    "slower_average": lambda: Averaging(1e-4),
    "average_in_a_function": lambda: (lambda c: lambda z, y: c(z, y))(Averaging()),
    "average_with_a_graph": lambda: Averaging(detach=False),
}


@pytest.mark.parametrize("case", RANDOM)
def test_a_loss_that_is_not_fixed_is_refused_and_stays_untouched(case: str) -> None:
    criterion = RANDOM[case]()
    with pytest.raises(errors.LossError, match="the loss .* (gave different values|drifts).*eval"):
        Probe(net(), (X, Y), criterion)
    if isinstance(criterion, Averaging):
        assert not criterion.mean.any()


@pytest.mark.parametrize("make", [Noisy, Averaging])
def test_eval_mode_is_the_remedy(make: Callable[[], nn.Module]) -> None:
    check_same(Probe(net(), (X, Y), make().eval()), Probe(net(), (X, Y)))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_state_that_does_not_matter_is_harmless_and_not_the_users(wrapped: bool) -> None:
    criterion = Averaging(used=False)
    loss = (lambda z, y: criterion(z, y)) if wrapped else criterion
    probe = Probe(net(), (X, Y), loss)
    check_same(probe, Probe(net(), (X, Y)))
    check_same(probe.with_model(lambda model: None), probe)
    assert type(criterion.mean) is Tensor
    assert not criterion.mean.any()


def test_a_teacher_in_the_loss_keeps_its_statistics() -> None:
    teacher = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=0.5)).train()

    def loss(z: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(z, batch[1], reduction="none") + 0 * teacher(batch[0]).detach().sum(1)

    Probe(net(), (X, Y), loss)
    assert not teacher[1].running_mean.any()
