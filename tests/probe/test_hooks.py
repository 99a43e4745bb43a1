"""The user's hooks: those without effect do not run on the copy, those that make the function stay."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import landscope as ls
from landscope import Hessian, Probe

X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def test_hooks_that_only_look_run_on_no_measure() -> None:
    seen: list[str] = []
    model = net()
    model[0].register_forward_hook(lambda m, args, out: seen.append("after"))
    model[1].register_forward_pre_hook(lambda m, args: seen.append("before"))
    model[2].register_forward_hook(lambda m, args, kwargs, out: out, with_kwargs=True)
    model.register_full_backward_hook(lambda m, into, out: seen.append("backward"))
    report = ls.measure(model, (X, Y), ["hessian_trace", "gradient_norm"])
    assert sorted(seen) == ["after", "after", "before", "before"]  # on a few rows, then on all of them
    plain = ls.measure(net(), (X, Y), ["hessian_trace", "gradient_norm"])
    assert [e.value for e in report.values()] == [e.value for e in plain.values()]
    model(X)
    assert len(seen) == 6


def returns(m: nn.Sequential) -> None:
    m[0].register_forward_hook(lambda module, args, out: 2 * out)


def clamps(m: nn.Sequential) -> None:
    """Without effect on the first rows, perhaps, and with one elsewhere."""
    m[2].register_forward_hook(lambda module, args, out: out.clamp(-50, 50))


def writes(m: nn.Sequential) -> None:
    def shift(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        args[0].add_(0.5)

    m[1].register_forward_pre_hook(shift)


def carries(m: nn.Sequential) -> None:
    """One hook keeps what another adds."""
    kept: list[Tensor] = []
    m[0].register_forward_hook(lambda module, args, out: kept.append(args[0]))
    m[2].register_forward_hook(lambda module, args, out: out + kept[-1][:, :3])


def prunes(m: nn.Sequential) -> None:
    prune.l1_unstructured(m[0], "weight", amount=0.5)


def spectral(m: nn.Sequential) -> None:
    nn.utils.spectral_norm(m[0])
    m.eval()


def weight_norm(m: nn.Sequential) -> None:
    nn.utils.weight_norm(m[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("add", [returns, clamps, writes, carries, prunes, spectral, weight_norm])
@pytest.mark.parametrize("watched", [False, True])
def test_hooks_that_matter_stay(add: Callable[[nn.Sequential], None], watched: bool) -> None:
    model = net().double()
    add(model)
    calls: list[int] = []
    if watched:
        model[1].register_forward_hook(lambda module, args, out: calls.append(1))
    x = X.double()
    loss = nn.functional.cross_entropy(model(x), Y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    before = len(calls)
    probe = Probe(model, (x, Y))
    assert len(calls) - before <= 8
    assert probe.value() == pytest.approx(loss.item(), rel=1e-12)
    assert torch.allclose(probe.gradient(), expected, atol=1e-12)
    kept = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in probe.modules.values())
    assert kept == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) - watched
    assert torch.isfinite(Hessian(probe) @ probe.vector()).all()


def clamps_when_large(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
    return out.clamp(-5, 5) if out.abs().max() > 5 else None


def clamps_in_place_when_large(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
    if out.abs().max() > 5:
        out.clamp_(-5, 5)


def clamps_without_a_branch(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
    return [None, out.clamp(-5, 5)][int(out.abs().max() > 5)]


def clamps_elsewhere(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
    return clamps_when_large(module, args, out)


class Clamps:
    """A hook that is an object."""

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
        if out.abs().max() > 5:
            return out.clamp(-5, 5)
        return None


CONDITIONAL = [
    clamps_when_large,
    clamps_in_place_when_large,
    clamps_without_a_branch,
    clamps_elsewhere,
    Clamps(),
    Clamps().__call__,
    functools.partial(clamps_when_large),
]


@pytest.mark.parametrize("hook", CONDITIONAL, ids=lambda hook: getattr(hook, "__name__", type(hook).__name__))
def test_a_hook_that_acts_on_some_rows_only_stays(hook: Callable[..., Tensor | None]) -> None:
    x = X.clone()
    x[17] *= 100
    model = net()
    model[0].register_forward_hook(hook)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(torch.cat([model(row[None].clone()) for row in x]), Y)
    probe = Probe(model, (x, Y))
    assert len(probe.module("0")._forward_hooks) == 1
    if hook is not clamps_in_place_when_large:  # whose clamp is for the whole batch either way
        assert probe.value() == pytest.approx(float(expected), rel=1e-5)


def test_a_hook_that_mends_rows_stays() -> None:
    x = X.clone()
    x[11, 2] = float("nan")

    def mend(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (args[0].nan_to_num(),) if args[0].isnan().any() else None

    model = net()
    model.register_forward_pre_hook(mend)
    assert Probe(model, (x, Y)).value() == Probe(net(), (x.nan_to_num(), Y)).value()


@pytest.mark.parametrize(
    "hook", CONDITIONAL[:1] + CONDITIONAL[3:], ids=lambda hook: getattr(hook, "__name__", type(hook).__name__)
)
def test_a_hook_that_acts_at_other_parameters_only_stays(hook: Callable[..., Tensor | None]) -> None:
    model = net()
    model[0].register_forward_hook(hook)
    probe = Probe(model, (X, Y))
    far = {name: 100 * value for name, value in probe.params.items()}
    plain = Probe(net(), (X, Y))
    batch = next(plain.batches())
    assert float(probe.loss_sum(far, batch)) != float(plain.loss_sum(far, batch))


def test_a_recorder_with_a_condition_is_dropped() -> None:
    kept: dict[str, list[object]] = {}

    def record(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        if "out" not in kept:
            kept["out"] = []
        kept["out"].append(out.detach().numpy())

    model = net()
    model[0].register_forward_hook(record)
    probe = Probe(model, (X, Y))
    assert not probe.module("0")._forward_hooks
    assert torch.isfinite(Hessian(probe) @ probe.vector()).all()


def test_hooks_that_ask_for_gradients_of_activations_are_dropped() -> None:
    grads: list[Tensor] = []

    def watch(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        out.register_hook(grads.append)

    model = net()
    model[0].register_forward_hook(lambda module, args, out: out.retain_grad())
    model[1].register_forward_hook(watch)
    assert torch.equal(Probe(model, (X, Y)).gradient(), Probe(net(), (X, Y)).gradient())


@pytest.mark.parametrize("factor", [-1.0, 10.0])
def test_backward_hooks_that_change_gradients_are_not_part_of_the_loss(factor: float) -> None:
    model, plain = net(), Probe(net(), (X, Y))
    model[1].register_full_backward_hook(lambda module, into, out: (factor * into[0],))
    model[0].register_full_backward_pre_hook(lambda module, out: (factor * out[0],))
    model[0].weight.register_hook(lambda grad: factor * grad)
    probe = Probe(model, (X, Y))
    assert torch.equal(probe.gradient(), plain.gradient())
    assert torch.equal(Hessian(probe) @ plain.vector(), Hessian(plain) @ plain.vector())


def test_hooks_stay_where_data_is_read_again_on_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landscope.probe.reading.available_bytes", lambda device: 0)
    calls: list[int] = []
    model = net()
    model[1].register_forward_hook(lambda module, args, out: calls.append(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=5)
    probe = Probe(model, loader)
    assert len(probe.module("1")._forward_hooks) == 1
    assert probe.value() == pytest.approx(Probe(net(), (X, Y)).value(), rel=1e-6)
