"""Relative flatness of any weight, however it is used: the trace of its Hessian seen through F.

κ = Σ_{k,t} (f_k ⊗ e_t)ᵀ H (f_k ⊗ e_t) = tr (F ⊗ I)ᵀ H (F ⊗ I), F Fᵀ = W Wᵀ, H the Hessian in the layer's weight.

No assumption about the layer: it holds for tied weights, layers that run several times, weights that are used without calling
their layer, and networks that mix the samples of a batch. A product costs about three gradients; the trace is exact where all
r·m directions are affordable and otherwise estimated, E ⟨F R, H[F R]⟩ (see `landscope.spectra.trace`).
Its only user is `relative_flatness`, which would be too long with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from landscope.core.estimate import Estimate
from landscope.curvature import Hessian
from landscope.probe.probe import Probe
from landscope.spectra.trace import trace_steps


class LayerHessian:
    """(F ⊗ I)ᵀ H (F ⊗ I) on matrices R (r, m), as an operator on vectors of length r·m.

    `column_scale` divides the columns of a direction, for normalised features; `transposed` says that the model holds the weight
    as (m, d).
    """

    def __init__(
        self, hessian: Hessian, factor: Tensor, column_scale: Tensor | None = None, transposed: bool = False
    ) -> None:
        self.hessian, self.transposed = hessian, transposed
        self.factor = factor.to(hessian.device, hessian.dtype)
        self.entries = hessian.shape[0] // len(factor)
        self.divisor = None if column_scale is None else column_scale.to(hessian.device, hessian.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """(r·m, r·m)."""
        size = self.factor.shape[1] * self.entries
        return size, size

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers in its products."""
        return self.hessian.dtype

    @property
    def device(self) -> torch.device:
        """Where its products live."""
        return self.hessian.device

    @property
    def rounding(self) -> float:
        """Relative rounding error of a product."""
        return self.hessian.rounding

    def __matmul__(self, other: Tensor) -> Tensor:
        rows = other[None] if other.dim() == 1 else other.T
        inner = rows.reshape(len(rows), -1, self.entries)
        moved = self._over_scale(self.factor @ inner)
        stored = moved.mT if self.transposed else moved
        product = (self.hessian @ stored.flatten(1).T.contiguous()).T.reshape(stored.shape)
        product = product.mT if self.transposed else product
        back = (self.factor.T @ self._over_scale(product)).flatten(1)
        return back[0] if other.dim() == 1 else back.T

    def _over_scale(self, matrix: Tensor) -> Tensor:
        return matrix if self.divisor is None else matrix / self.divisor


def layer_hessian_traces(
    probe: Probe,
    weight: str,
    factor: Tensor,
    column_scale: Tensor | None,
    tol: float,
    max_products: int,
    seed: int,
    transposed: bool = False,
) -> Iterator[Estimate]:
    """κ of the named weight, better and better: exact at the end, or with its error bar.

    >>> from torch import nn
    >>> probe = Probe(nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")     # H = I
    >>> [found.value for found in layer_hessian_traces(probe, "weight", torch.full((1, 1), 3.0), None, 0.01, 100, 0)]
    [18.0]
    """
    operator = LayerHessian(Hessian(probe, params=weight), factor, column_scale, transposed)
    if operator.shape[0] <= max_products:  # no sample meets this tolerance, so all columns are taken
        tol, max_products = 1e-15, 2 * max_products
    yield from trace_steps(operator, tol=tol, seed=seed, max_matvecs=max_products)
