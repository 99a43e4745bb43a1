"""Fully connected networks: the MLP, softmax regression and the deep linear network."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, TypeAlias

from torch import Tensor, nn

from landscope.models.catalogue import Initialisation, ParameterCount, initialise, register
from landscope.specs.schema import Natural, Probability

# The fully connected network, of any depth, width and activation.
#
# The papers' forms: 784-100-10 with ReLU (third), 2-64-64-1 and 2-100-100-2 with ReLU (second), 10-64-64-1 on Abalone
# (fifth; its text says ReLU, its code applied ELU to every layer, the output included:
# `activation="elu", activate_output=True`).


Activation: TypeAlias = Literal["relu", "elu", "gelu", "tanh", "sigmoid", "softplus"]

_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
}


@register(
    "mlp",
    description="fully connected layers with an activation between them; num_classes=1 for regression",
    input_shape=(1, 28, 28),
    classifier="fc",
    counts=(
        ParameterCount(784 * 100 + 100 + 100 * 10 + 10, "matrix sizes of the third paper's 784-100-10"),
        ParameterCount(
            10 * 64 + 64 + 64 * 64 + 64 + 64 + 1,
            "matrix sizes of the fifth paper's 10-64-64-1",
            {"in_features": 10, "widths": (64, 64), "num_classes": 1},
        ),
        ParameterCount(
            2 * 100 + 100 * 100 + 100 * 2,
            "matrix sizes of the second paper's 2-100-100-2, without biases",
            {"in_features": 2, "widths": (100, 100), "num_classes": 2, "bias": False},
        ),
        ParameterCount(79_510 + 2 * 100, "784-100-10 with a scale and a shift per hidden unit", {"batch_norm": True}),
    ),
)
class MLP(nn.Module):
    """x ↦ W_L σ(… σ(W_1 x + b_1) …) + b_L, with `widths` hidden units per layer.

    >>> MLP(in_features=2, widths=(64, 64), num_classes=1).fc
    Linear(in_features=64, out_features=1, bias=True)
    """

    def __init__(
        self,
        *,
        in_features: Natural = 784,
        widths: tuple[Natural, ...] = (100,),
        num_classes: Natural = 10,
        activation: Activation = "relu",
        activate_output: bool = False,
        bias: bool = True,
        batch_norm: bool = False,
        dropout: Probability = 0.0,
        init: Initialisation = "pytorch",
    ) -> None:
        super().__init__()
        sizes = [in_features, *widths]
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers.append(nn.Linear(before, after, bias=bias))
            layers += [nn.BatchNorm1d(after)] if batch_norm else []
            layers.append(_ACTIVATIONS[activation]())
            layers += [nn.Dropout(dropout)] if dropout > 0 else []
        self.hidden = nn.Sequential(*layers)
        self.fc = nn.Linear(sizes[-1], num_classes, bias=bias)
        self.output = _ACTIVATIONS[activation]() if activate_output else nn.Identity()
        initialise(self, init)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs for inputs whose samples have `in_features` entries, in any shape."""
        return self.output(self.fc(self.hidden(x.flatten(1))))


# Linear networks: softmax regression, and the deep linear network whose Hessian has a closed form.
#
# The third paper starts from f(x) = w₃ w₂ w₁ x under the exponential loss: three parameters, every curvature known.


@register(
    "softmax_regression",
    description="one linear layer on the flattened input",
    input_shape=(1, 28, 28),
    classifier="fc",
    counts=(ParameterCount(7_850, "the third paper, MNIST"),),
)
class SoftmaxRegression(nn.Module):
    """f(x) = W x + b: with the cross-entropy loss a convex problem."""

    def __init__(self, *, in_features: Natural = 784, num_classes: Natural = 10, bias: bool = True) -> None:
        super().__init__()
        self.fc = nn.Linear(in_features, num_classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of inputs whose samples have `in_features` entries, in any shape."""
        return self.fc(x.flatten(1))


@register(
    "deep_linear",
    description="a product of matrices; by default the scalar chain w3·w2·w1·x",
    input_shape=(1,),
    classifier="fc",
    counts=(
        ParameterCount(3, "the third paper, equation for w1, w2, w3"),
        ParameterCount(8 * 5 + 5 * 5 + 5 * 2, "matrix sizes", {"in_features": 8, "width": 5, "num_classes": 2}),
    ),
)
class DeepLinear(nn.Module):
    """f(x) = W_L ⋯ W_2 W_1 x, without biases."""

    def __init__(
        self, *, in_features: Natural = 1, width: Natural = 1, depth: Natural = 3, num_classes: Natural = 1
    ) -> None:
        super().__init__()
        sizes = [in_features, *([width] * (depth - 1))]
        self.hidden = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)))
        self.fc = nn.Linear(sizes[-1], num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs for inputs whose samples have `in_features` entries, in any shape."""
        return self.fc(self.hidden(x.flatten(1)))
