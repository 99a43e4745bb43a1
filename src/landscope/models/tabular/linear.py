"""Linear networks: softmax regression, and the deep linear network whose Hessian has a closed form.

The third paper starts from f(x) = w₃ w₂ w₁ x under the exponential loss: three parameters, every curvature known.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from landscope.models.catalogue import ParameterCount, register
from landscope.models.options import Natural

__all__ = ["DeepLinear", "SoftmaxRegression"]


@register(
    "softmax_regression",
    description="one linear layer on the flattened input",
    input_shape=(1, 28, 28),
    classifier="fc",
    counts=(ParameterCount(7_850, "the third paper, MNIST"),),
    recipes=("false-friend",),
)
class SoftmaxRegression(nn.Module):
    """f(x) = W x + b: with the cross-entropy loss a convex problem."""

    def __init__(self, *, in_features: Natural = 784, num_classes: Natural = 10, bias: bool = True) -> None:
        super().__init__()
        self.fc = nn.Linear(in_features, num_classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of inputs whose samples have `in_features` entries, in any shape."""
        logits: Tensor = self.fc(x.flatten(1))
        return logits


@register(
    "deep_linear",
    description="a product of matrices; by default the scalar chain w3·w2·w1·x",
    input_shape=(1,),
    classifier="fc",
    counts=(
        ParameterCount(3, "the third paper, equation for w1, w2, w3"),
        ParameterCount(8 * 5 + 5 * 5 + 5 * 2, "matrix sizes", {"in_features": 8, "width": 5, "num_classes": 2}),
    ),
    recipes=("false-friend",),
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
        outputs: Tensor = self.fc(self.hidden(x.flatten(1)))
        return outputs
