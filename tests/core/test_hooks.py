"""The user's hooks: those without effect do not run on the copy, those that make the function stay."""

from __future__ import annotations

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


def test_hooks_that_only_look_run_once() -> None:
    seen: list[str] = []
    model = net()
    model[0].register_forward_hook(lambda m, args, out: seen.append("after"))
    model[1].register_forward_pre_hook(lambda m, args: seen.append("before"))
    model[2].register_forward_hook(lambda m, args, kwargs, out: out, with_kwargs=True)
    model.register_full_backward_hook(lambda m, into, out: seen.append("backward"))
    report = ls.measure(model, (X, Y), ["hessian_trace", "gradient_norm"])
    assert sorted(seen) == ["after", "before"]
    plain = ls.measure(net(), (X, Y), ["hessian_trace", "gradient_norm"])
    assert [e.value for e in report.values()] == [e.value for e in plain.values()]
    model(X)
    assert sorted(seen) == ["after", "after", "before", "before"]


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
