"""A forward pass or a loss that writes into what it is given changes neither the user's data nor later passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import landscope as ls
from landscope import GGN, Hessian, Probe
from landscope.measures.robustness import fgsm

X, Y = torch.rand(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
MEASURES = ["loss", "gradient_norm", "hessian_top_eigenvalue", "hessian_trace"]


class Writes(nn.Module):
    """Prepares its inputs in place, or not."""

    def __init__(self, prepare: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.prepare = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), prepare

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.prepare(x))


def sometimes(x: Tensor) -> Tensor:
    """Not on the first rows."""
    return x.clamp_(max=0.9) if x.shape[0] > 4 else x.clamp(max=0.9)


IN_PLACE = {
    "sub": (lambda x: x.sub_(0.5), lambda x: x - 0.5),
    "clamp": (lambda x: x.clamp_(0.2, 0.8), lambda x: x.clamp(0.2, 0.8)),
    "detached": (lambda x: x.detach().mul_(2), lambda x: x * 2),
    "sometimes": (sometimes, lambda x: x.clamp(max=0.9)),
}


@pytest.mark.parametrize("form", ["tensors", "loader", "batches", "dict"])
@pytest.mark.parametrize("case", IN_PLACE)
def test_a_forward_pass_that_writes_into_its_input(case: str, form: str) -> None:
    def data(x: Tensor) -> object:
        dataset = torch.utils.data.TensorDataset(x, Y)
        return {
            "tensors": (x, Y),
            "loader": torch.utils.data.DataLoader(dataset, batch_size=8),
            "batches": [(x[:8], Y[:8]), (x[8:], Y[8:])],
            "dict": {"x": x, "labels": Y},
        }[form]

    writes, plain = IN_PLACE[case]
    x = X.clone()
    found = ls.measure(Writes(writes), data(x), MEASURES)
    expected = ls.measure(Writes(plain), data(X), MEASURES)
    assert torch.equal(x, X)
    assert [e.value for e in found.values()] == pytest.approx([e.value for e in expected.values()], rel=1e-5)


def test_operators_on_a_network_that_writes_into_its_input() -> None:
    probe, plain = (Probe(Writes(f), (X.clone(), Y)) for f in IN_PLACE["sub"])
    assert torch.equal(Hessian(probe) @ plain.vector(), Hessian(plain) @ plain.vector())
    assert torch.equal(GGN(probe) @ plain.vector(), GGN(plain) @ plain.vector())
    hook = Writes(lambda x: x)
    hook.inner.register_forward_pre_hook(lambda module, args: (args[0].sub_(0.5),))
    x = X.clone()
    assert Probe(hook, (x, Y)).value() == plain.value()
    assert torch.equal(x, X)


@pytest.mark.parametrize("takes", ["targets", "batch"])
def test_a_loss_that_writes_into_its_targets(takes: str) -> None:
    def of_targets(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y.sub_(1), reduction="none")

    def of_batch(z: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(z, batch[1].sub_(1), reduction="none")

    y = Y + 1
    model = Writes(lambda x: x)
    probe = Probe(model, (X, y), of_targets if takes == "targets" else of_batch)
    assert probe.value() == probe.value() == Probe(model, (X, Y)).value()
    assert torch.equal(y, Y + 1)


def test_an_attack_on_a_network_that_writes_into_its_input() -> None:
    x, (writes, plain) = X.clone(), IN_PLACE["sub"]
    found, expected = fgsm(Writes(writes), x, Y, eps=0.1), fgsm(Writes(plain), X, Y, eps=0.1)
    assert torch.equal(x, X)
    assert torch.equal(found.inputs, expected.inputs)


def test_a_search_for_the_worst_case_with_a_loss_that_writes() -> None:
    def loss(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y.sub_(1), reduction="none")

    y, (writes, plain) = Y + 1, IN_PLACE["sub"]
    found = ls.measure(Writes(writes), (X.clone(), y), "sam_sharpness", loss=loss)
    expected = ls.measure(Writes(plain), (X, Y), "sam_sharpness")
    assert [e.value for e in found.values()] == [e.value for e in expected.values()]
    assert torch.equal(y, Y + 1)
