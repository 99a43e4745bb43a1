"""Values put into a model are out of it afterwards, also where a module has two names."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from landscope import Hessian, Probe
from landscope.core.torch_fixes.put_in import functional_call


class Shared(nn.Module):
    """One layer and one norm under two names each, and a weight that is tied between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.other = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)
        self.again, self.norm_again = self.one, self.norm
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(torch.tanh(self.norm_again(self.again(torch.tanh(self.norm(self.one(x)))))))


def model() -> Shared:
    torch.manual_seed(0)
    return Shared().double().eval()


def test_torch_leaves_them_behind() -> None:
    """Where this fails, torch has mended it, and `put_in` can go."""
    net = model()
    torch.func.functional_call(
        net, {"one.weight": torch.zeros(3, 3, dtype=torch.float64)}, (torch.ones(2, 3).double(),)
    )
    assert not isinstance(net.one.weight, nn.Parameter)


@pytest.mark.parametrize(
    "name", ["one.weight", "again.weight", "other.weight", "norm.running_mean", "norm_again.running_mean"]
)
def test_every_use_sees_the_value_and_none_afterwards(name: str) -> None:
    net, x = model(), torch.randn(4, 3, dtype=torch.float64)
    before, held = {key: t.clone() for key, t in net.state_dict().items()}, dict(net.named_parameters())
    value = torch.randn(before[name].shape, dtype=torch.float64)
    found = functional_call(net, {name: value}, (x,))
    assert dict(net.named_parameters()).keys() == held.keys()
    assert all(p is held[key] for key, p in net.named_parameters())
    assert all(torch.equal(t, before[key]) for key, t in net.state_dict().items())
    with torch.no_grad():
        dict([*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)])[name].copy_(
            value
        )
    assert torch.equal(found, net(x))  # type: ignore[arg-type]


def test_a_probe_keeps_its_point() -> None:
    """The Hessian of a network that holds one layer under two names, after a pass at another point."""
    net, x, y = model(), torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 3
    probe = Probe(net, (x, y))
    batch = next(probe.batches())
    names = list(probe.params)
    probe.outputs({name: p + 1.0 for name, p in probe.params.items()}, batch)
    inside = probe.module("")
    assert all(isinstance(p, nn.Parameter) for module in inside.modules() for p in module._parameters.values())
    assert all(torch.equal(dict(inside.named_parameters())[name], probe.params[name]) for name in names)

    def loss(*values: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(net, dict(zip(names, values, strict=True)), (x,)), y)  # type: ignore[arg-type]

    blocks = torch.autograd.functional.hessian(loss, tuple(probe.params.values()))
    sizes = [p.numel() for p in probe.params.values()]
    truth = torch.cat(
        [
            torch.cat([b.reshape(m, n) for b, n in zip(row, sizes, strict=True)], 1)
            for row, m in zip(blocks, sizes, strict=True)
        ]
    )
    assert torch.allclose(Hessian(probe).dense(), truth, rtol=1e-8, atol=1e-10)
