"""Small networks of every kind, with inputs for them: what operators and measures are compared on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 3


@dataclass(frozen=True)
class Net:
    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]

    def model(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.make()
            for module in model.modules():  # running statistics and scales away from their defaults
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.running_mean.normal_(0, 0.3)
                    module.running_var.uniform_(0.5, 2)
                    nn.init.uniform_(module.weight, 0.5, 1.5)
        return model.to(dtype)

    def data(self, n: int = 14, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + 100)
            x = self.inputs(n)
            y = torch.randint(0, CLASSES, (n,))
        return (x.to(dtype) if x.is_floating_point() else x), y

    def __repr__(self) -> str:
        return self.name


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.conv2, self.bn2 = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.fc = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)) + x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Encoder(nn.Module):
    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        layer = nn.TransformerEncoderLayer(6, 2, 8, activation="gelu", batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class Attention(nn.Module):
    """`nn.MultiheadAttention` with the fast path's preconditions, in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class DotProduct(nn.Module):
    """`F.scaled_dot_product_attention` called directly, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.head = kind(3, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Tied(nn.Module):
    """One matrix as encoder and, transposed, as decoder; and one layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(5, 4, bias=False), nn.Linear(5, 4, bias=False)
        self.decode.weight = self.encode.weight
        self.middle, self.head = nn.Linear(4, 4), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.middle(self.middle(torch.tanh(self.encode(x)))))
        return self.head(x @ self.decode.weight)


class SquareBySteps(torch.autograd.Function):
    """x² without a forward derivative and without `setup_context`: only double backward can be used."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class NoForwardDerivative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(SquareBySteps.apply(self.first(x)))


class PaddedConv(nn.Conv2d):
    """Pads its input itself, as networks from TensorFlow do."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (1, 1, 1, 1)))


class Widened(nn.Linear):
    """Takes fewer features than its weight has columns."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.cat([x, x[:, :1].square()], 1))


class WithNorm(nn.Linear):
    """Gives its output and something else."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x.norm(dim=1, keepdim=True)


class OwnLayers(nn.Module):
    """Layers of kinds that are known, which do something else."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.wide, self.two = PaddedConv(2, 3, 3, stride=2), Widened(4, 5), WithNorm(5, 4)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.wide(torch.tanh(self.conv(x)).mean((-2, -1))))
        x = torch.cat(self.two(x), 1)
        return self.head(torch.tanh(x))


def _mlp(activation: type[nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 5), activation(), nn.Linear(5, CLASSES))


def _vectors(size: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, size)


def _images(n: int) -> Tensor:
    return torch.randn(n, 2, 5, 5)


def _sequences(n: int) -> Tensor:
    return torch.randn(n, 4, 3)


NETS = [
    Net("relu_mlp", _mlp(nn.ReLU), _vectors(4)),
    Net("gelu_mlp", _mlp(nn.GELU), _vectors(4)),
    Net("silu_mlp", _mlp(nn.SiLU), _vectors(4)),
    Net(
        "conv_strided_grouped",
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(4, CLASSES),
        ),
        _images,
    ),
    Net("residual_batchnorm", Residual, _images),
    Net(
        "groupnorm",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(36, CLASSES)),
        _images,
    ),
    Net(
        "layernorm",
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, CLASSES)),
        _vectors(4),
    ),
    Net("transformer_encoder", Encoder, lambda n: torch.randint(0, 7, (n, 3))),
    Net("transformer_pre_norm", lambda: Encoder(norm_first=True), lambda n: torch.randint(0, 7, (n, 3))),
    Net("multihead_attention", Attention, lambda n: torch.randn(n, 3, 4)),
    Net("scaled_dot_product", DotProduct, lambda n: torch.randn(n, 3, 4)),
    Net("rnn", lambda: Recurrent(nn.RNN), _sequences),
    Net("lstm", lambda: Recurrent(nn.LSTM), _sequences),
    Net("gru", lambda: Recurrent(nn.GRU), _sequences),
    Net("tied_weights", Tied, _vectors(5)),
    Net(
        "weight_norm",
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, CLASSES)),
        _vectors(4),
    ),
    Net("no_forward_derivative", NoForwardDerivative, _vectors(4)),
    Net("own_layers", OwnLayers, _images),
]
BY_NAME = {net.name: net for net in NETS}


def relative(value: Tensor, truth: Tensor) -> float:
    """‖value − truth‖ / ‖truth‖."""
    return float((value.double() - truth.double()).norm() / truth.double().norm())
