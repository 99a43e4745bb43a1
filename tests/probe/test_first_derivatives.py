"""A gradient that is not that of the loss is refused, with the names of the tensors; one that is, never."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from networks import NETS, Net
from torch import Tensor, nn

import landscope as ls
from landscope import Probe, errors

X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


class Round(torch.autograd.Function):
    """Rounding with a straight-through gradient."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


class Halved(torch.autograd.Function):
    """2x with the derivative of x."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


class Way(nn.Module):
    """A network whose layers are combined by a function."""

    def __init__(self, function: Callable[[Way, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def without_grad(m: Way, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = m.first(x)
    return m.last(x.tanh())


CUT = {
    "detach": (lambda m, x: m.last(m.first(x).detach().tanh()), "first.weight, first.bias"),
    "data": (lambda m, x: m.last(F.linear(x, m.first.weight.data, m.first.bias).tanh()), "first.weight"),
    "a_bias": (lambda m, x: F.linear(m.first(x).tanh(), m.last.weight, m.last.bias.detach()), "last.bias"),
    "no_grad": (without_grad, "first.weight, first.bias"),
    "numpy": (
        lambda m, x: m.last(torch.from_numpy(m.first(x).detach().numpy()).tanh()),
        "first.weight, first.bias",
    ),
    "everything": (lambda m, x: m.last(m.first(x)).detach(), "first.weight, first.bias, last.weight, last.bias"),
}
BENT = {
    "half_detached": (lambda m, x: m.last(m.first(x).tanh() + m.first(x).tanh().detach()), "first.weight, first.bias"),
    "wrong_backward": (lambda m, x: m.last(Halved.apply(m.first(x)).tanh()), "first.weight, first.bias"),
    "part_of_a_tensor": (
        lambda m, x: m.last(F.linear(x, torch.cat([m.first.weight[:3].detach(), m.first.weight[3:]])).tanh()),
        "first.weight",
    ),
}
ROUNDED = {
    "weights": (lambda m, x: m.last(F.linear(x, Round.apply(m.first.weight), m.first.bias).tanh()), "first.weight"),
    "detach_trick": (
        lambda m, x: m.last(
            F.linear(x, m.first.weight + (m.first.weight.sign() - m.first.weight).detach(), m.first.bias).tanh()
        ),
        "first.weight",
    ),
}


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("case", CUT)
def test_a_way_that_is_cut(case: str, double: bool) -> None:
    function, names = CUT[case]
    with pytest.raises(errors.ModelError, match=f"gradient of {names} is not that of the loss.*is cut.*params="):
        Probe(Way(function).to(torch.float64 if double else torch.float32), (X, Y))


@pytest.mark.parametrize("case", BENT)
def test_a_way_that_is_bent(case: str) -> None:
    function, names = BENT[case]
    with pytest.raises(errors.ModelError, match=f"gradient of {names} is not that of the loss.*custom backward"):
        Probe(Way(function), (X, Y))


@pytest.mark.parametrize("case", ROUNDED)
def test_straight_through_gradients(case: str) -> None:
    function, names = ROUNDED[case]
    with pytest.raises(errors.ModelError, match=f"gradient of {names} is not .*straight-through"):
        Probe(Way(function), (X, Y))


def test_rounded_activations_of_a_large_layer() -> None:
    wide = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 3))

    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = wide

        def forward(self, x: Tensor) -> Tensor:
            return self.inner[2](Round.apply(self.inner[1](self.inner[0](x))))

    with pytest.raises(errors.ModelError, match=r"gradient of inner\.0\.weight, inner\.0\.bias is not"):
        Probe(Quantised(), (X, Y))


@pytest.mark.filterwarnings("ignore")
def test_quantisation_aware_training() -> None:
    model = net().train()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    prepared = torch.ao.quantization.prepare_qat(model)
    prepared(X)
    prepared.apply(torch.ao.quantization.disable_observer)
    with pytest.raises(errors.ModelError, match="straight-through.*disable_fake_quant"):
        Probe(prepared, (X, Y))
    assert Probe(prepared.apply(torch.ao.quantization.disable_fake_quant), (X, Y)).n_params == 43


def test_a_loss_that_detaches() -> None:
    def focal(z: Tensor, y: Tensor) -> Tensor:
        ce = F.cross_entropy(z, y, reduction="none")
        return ((1 - (-ce).exp()) ** 2).detach() * ce

    with pytest.raises(errors.ModelError, match="is not that of the loss"):
        Probe(net(), (X, Y), focal)


def test_leaving_the_cut_parameters_out_is_the_remedy() -> None:
    model = Way(without_grad)
    assert Probe(model, (X, Y), params="last").n_params == 18
    model.first.requires_grad_(False)
    assert Probe(model, (X, Y)).n_params == 18


def test_at_a_minimum_a_cut_still_shows() -> None:
    """There the gradient says nothing, and a point nearby is looked at."""
    model = Way(lambda m, x: m.last(m.first(x).detach()))
    with torch.no_grad():
        targets = model(X)
    with pytest.raises(errors.ModelError, match=r"gradient of first\.weight.* is not"):
        Probe(model, (X, targets), "mse")


class Adapter(nn.Module):
    """LoRA at its start: B is 0, and so is A's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.A = nn.Linear(4, 3), nn.Parameter(torch.randn(2, 4))
        self.B = nn.Parameter(torch.zeros(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.A.T @ self.B.T


def test_a_gradient_of_exactly_zero_is_named_not_refused() -> None:
    probe = Probe(Adapter(), (X, Y))
    assert probe.notices == ("the gradient of A is exactly 0 on the first 4 samples",)
    report = ls.measure(probe, measures=["l2_norm"])
    assert report.about["notices"] == list(probe.notices)
    assert "gradient of A is exactly 0" in str(report)
    assert "notices" not in ls.measure(net(), (X, Y), ["l2_norm"]).about


@pytest.mark.parametrize("mode", ["eval", "batch_statistics"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("net", NETS, ids=str)
def test_every_network_has_the_gradient_of_its_loss(net: Net, dtype: torch.dtype, mode: str) -> None:
    assert Probe(net.model(dtype=dtype), net.data(dtype=dtype), mode=mode).notices == ()


class Casts(nn.Module):
    """Computes its normalisation in float32 whatever comes in, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h.float() * torch.rsqrt(h.float().square().mean(-1, keepdim=True) + 1e-6)
        return self.last(h.to(x.dtype))


class OnlyFloat32(nn.Linear):
    """Multiplies by a constant matrix of type float32, so that it cannot be evaluated in another."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ torch.eye(3, dtype=torch.float32)


class OwnPadding(nn.Module):
    """`F.embedding` with a padding row, called directly, and a head that is tied to it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(7, 4)), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(F.embedding(tokens, self.table, padding_idx=0).mean(1))


def kinked() -> nn.Module:
    """Every pre-activation of the first layer is exactly 0 on rows of zeros."""
    model = nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 3))
    nn.init.zeros_(model[0].bias)
    return model


def zero_last() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 3))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    return model


TOKENS = torch.randint(0, 7, (20, 5), generator=torch.Generator().manual_seed(0))
TOKENS[:, -2:] = 0
RIGHT = {
    "relu_at_zero": (kinked, (torch.zeros(20, 4), Y), "cross_entropy"),
    "zero_initialised": (zero_last, (X, Y), "cross_entropy"),
    "hinge": (net, (X, Y), lambda z, y: F.multi_margin_loss(z, y, reduction="none")),
    "absolute": (lambda: nn.Linear(4, 1), (X, X[:, :1]), lambda z, y: (z - y).abs().sum(1)),
    "max_pool_ties": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 3)),
        (torch.zeros(20, 1, 4, 4), Y),
        "cross_entropy",
    ),
    "float32_inside": (lambda: Casts().double(), (X.double(), Y), "cross_entropy"),
    "float32_inside_float32": (Casts, (X, Y), "cross_entropy"),
    "float32_only": (lambda: OnlyFloat32(4, 3), (X, Y), "cross_entropy"),
    "padding": (OwnPadding, (TOKENS, Y), "cross_entropy"),
    "old_weight_norm": (
        lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 5)).eval(), nn.Tanh(), nn.Linear(5, 3)),
        (X, Y),
        "cross_entropy",
    ),
    "solved": (lambda: nn.Linear(4, 1), (X, torch.zeros(20, 1)), lambda z, y: (z * 1e-9).square().sum(1)),
    "large": (lambda: nn.Linear(4, 1), (X * 1e6, torch.zeros(20, 1)), "mse"),
    "linear_loss": (lambda: nn.Linear(4, 1), (X, Y), lambda z, y: z[:, 0]),
    "does_not_depend": (lambda: nn.Linear(4, 1), (X, Y), lambda z, y: (z * 0 + 1)[:, 0]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", RIGHT)
def test_kinks_ties_padding_and_rounding_are_not_refused(case: str, seed: int) -> None:
    make, data, loss = RIGHT[case]
    torch.manual_seed(seed)
    assert Probe(make(), data, loss).n_samples == 20


class View(nn.Module):
    """Takes its weight out of a flat parameter once, when it is made."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.flat = nn.Parameter(torch.randn(12))
        self.w = self.flat.view(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.T


class Cached(nn.Linear):
    """Keeps what it computed from its weights for eval mode."""

    cached: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training or self.cached is None:
            self.cached = 2 * self.weight.detach()
        return x @ self.cached.T


def cached() -> nn.Module:
    model = Cached(4, 3)
    model(X)
    return model


class Experts(nn.Module):
    """Rows go through the first or the second expert."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])

    def forward(self, x: Tensor) -> Tensor:
        second = x[:, 0] > 2
        if not second.any():
            return self.experts[0](x)
        return torch.where(second[:, None], self.experts[1](x), self.experts[0](x))


@pytest.mark.parametrize("make", [View, cached])
def test_parameters_of_which_none_reaches_the_loss(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(errors.ModelError, match="does not depend on any measured parameter.*__init__.*cache"):
        Probe(make(), (X, Y))


def test_a_loss_that_takes_nothing_of_the_outputs() -> None:
    with pytest.raises(errors.ModelError, match="does not depend on any measured parameter"):
        Probe(net(), (X, Y), lambda z, y: y.float())


def test_one_parameter_that_does_not_reach_the_loss_is_named() -> None:
    model = net()
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    model.forward = lambda x: model[2](model[1](model[0](x)))
    assert Probe(model, (X, Y)).notices == ("the gradient of unused is exactly 0 on the first 4 samples",)


def test_parameters_that_only_later_rows_reach() -> None:
    x = X.clamp(max=1).clone()
    x[15, 0] = 3.0
    probe = Probe(Experts(), (x, Y), params="experts.1")
    assert float(probe.gradient().norm()) > 0
    assert probe.notices


def test_a_cut_way_in_a_model_that_computes_in_float32() -> None:
    """Its loss is rounded so much that a short step shows nothing."""

    class Normalised(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            wide = self.weight.float()
            return x.float() @ (wide / wide.norm(dim=1, keepdim=True).detach()).T

    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(errors.ModelError, match="1.weight"):
            Probe(nn.Sequential(nn.Flatten(), Normalised(4, 3)).to(dtype), (X.to(dtype), Y))
