"""Networks for vectors; images are flattened."""

from landscope.models.tabular.linear import DeepLinear, SoftmaxRegression
from landscope.models.tabular.mlp import MLP

__all__ = ["MLP", "DeepLinear", "SoftmaxRegression"]
