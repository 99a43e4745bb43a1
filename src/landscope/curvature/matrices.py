"""The four curvature matrices of a probe: Hessian, generalised Gauss–Newton, Fisher and empirical Fisher."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad, vjp

from landscope.core.errors import NotApplicableError
from landscope.core.parameters import ParameterSpace, Selection
from landscope.core.shared_state import Precision
from landscope.curvature.compilation import Compile
from landscope.curvature.differences import Differences, check_method
from landscope.curvature.differentiation import Method, Params, gauss_newton_methods, hessian_methods, stacked
from landscope.curvature.operator import CurvatureOperator
from landscope.curvature.verification import check_second_derivatives
from landscope.probe.batches import Batch
from landscope.probe.loss.head import Head
from landscope.probe.loss.likelihoods import output_curvature
from landscope.probe.probe import Probe
from landscope.probe.sharding.gathering import keeping_weights

# The Hessian of the mean loss: H = ∇²L(θ) = (1/n) Σ_i ∇²ℓ_i(θ).


class Hessian(CurvatureOperator):
    """The Hessian of the mean loss, through products.

    A product costs about three gradients, in a block about two (see `landscope.curvature.differentiation`). With
    `method="difference"` it is a difference quotient of two gradients, whose disagreement with exact products on some rows is
    the `rounding` that every bound contains (`landscope.curvature.differences`): for smooth networks.

    >>> import torch
    >>> from landscope.probe.probe import Probe
    >>> w = torch.nn.Linear(2, 1, bias=False)
    >>> H = Hessian(Probe(w, (torch.eye(2), torch.zeros(2, 1)), "mse"))   # L = (w₁² + w₂²) / 2
    >>> H @ torch.tensor([1.0, 2.0])
    tensor([1., 2.])
    """

    def __init__(
        self,
        probe: Probe,
        *,
        params: Selection = None,
        compile: Compile = "auto",
        precision: Precision = "highest",
        method: Literal["exact", "difference"] = "exact",
    ) -> None:
        check_method(method, precision)
        super().__init__(probe, params=params, compile=compile, precision=precision)
        self.differences = Differences(self.probe) if method == "difference" else None
        """Where products are difference quotients: how they were made."""

    def restrict(self, params: Selection) -> Hessian:
        """The diagonal block of these parameters, through products of the same kind."""
        method: Literal["exact", "difference"] = "exact" if self.differences is None else "difference"
        return Hessian(self.probe, params=params, compile=self._compile, precision=self.precision, method=method)

    @property
    def rounding(self) -> float:
        """Relative error of a product; of difference quotients the largest that was seen."""
        return super().rounding + (0.0 if self.differences is None else self.differences.rounding)

    def __matmul__(self, other: Tensor) -> Tensor:
        check_second_derivatives(self.probe)
        return super().__matmul__(other)

    def _multiply(self, rows: Tensor) -> Tensor:
        if self.differences is None:
            return super()._multiply(rows)
        self.products += len(rows)
        return stacked([self.differences.product(row) for row in rows])

    def _ways(self, block: bool) -> tuple[Method, ...]:
        return hessian_methods(block, self.device, self.probe.head is not None)

    def _piece(self, method: Method, params: Params, rows: Tensor, batch: Batch, space: ParameterSpace) -> Tensor:
        def loss(at: Params) -> Tensor:
            with self._laid_out():
                return self.probe.loss_sum(at, batch)

        return method.product(loss, params, space, rows)


# Matrices of the form (1/n) Σ_i J_iᵀ B_i J_i, with J_i = ∂z_i/∂θ and B_i a symmetric matrix at the outputs z_i.
#
# The generalised Gauss–Newton, the Fisher and the empirical Fisher matrix differ in B_i only. None needs per-sample gradients:
# v ↦ J v ↦ B J v ↦ Jᵀ B J v is one forward-mode and one reverse-mode derivative.


class GaussNewtonOperator(CurvatureOperator):
    """Base of the matrices Jᵀ B J."""

    of_likelihood: ClassVar[bool] = False
    """Whether B is the curvature of a cross-entropy in its logits, where the loss is one."""

    @abstractmethod
    def _curve(self, z: Tensor, tangent: Tensor, batch: Batch) -> Tensor:
        """B times a tangent at the outputs z of a batch, not divided by the number of samples."""

    def _ways(self, block: bool) -> tuple[Method, ...]:
        return gauss_newton_methods(block, self.device, self.probe.head is not None)

    def _piece(self, method: Method, params: Params, rows: Tensor, batch: Batch, space: ParameterSpace) -> Tensor:
        if self.of_likelihood and self.probe.head is not None and self.probe.temperature == 1.0:
            return method.product(*_at_head(self.probe, self.probe.head, batch), params, space, rows)

        def outputs(at: Params) -> Tensor:
            with self._laid_out():
                z = self.probe.outputs(at, batch)
            if not isinstance(z, Tensor) and self.probe.loss.unexplained:
                raise NotApplicableError(f"{type(self).__name__} needs a likelihood; {self.probe.loss.unexplained}")
            if not isinstance(z, Tensor):
                raise NotApplicableError(
                    f"{type(self).__name__} needs a model that returns one tensor, got {type(z).__name__}. Wrap the model so "
                    f"that it does, or use Hessian."
                )
            return z

        def curve(z: Tensor, tangent: Tensor) -> Tensor:
            with keeping_weights():
                return self._curve(z, tangent, batch)

        return method.product(outputs, curve, params, space, rows)


def _at_head(
    probe: Probe, head: Head, batch: Batch
) -> tuple[Callable[[Params], Tensor], Callable[[Tensor, Tensor], Tensor]]:
    """The outputs and B where logits are too many to be held: what the last layer is given, its weight and its bias are the
    outputs then, as one vector, and B their Gauss–Newton matrix.
    """
    shapes: list[torch.Size] = []

    def outputs(at: Params) -> Tensor:
        parts = [part for part in head.inputs(probe, at, batch) if part is not None]
        shapes[:] = [part.shape for part in parts]
        return torch.cat([part.reshape(-1) for part in parts])

    def split(whole: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        parts = whole.split([shape.numel() for shape in shapes])
        features, weight, *bias = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        return features, weight, bias[0] if bias else None

    def curve(z: Tensor, tangent: Tensor) -> Tensor:
        mass = head.labels(probe, batch)[1].to(z)
        found = head.curved(split(z), split(tangent), mass)
        return torch.cat([part.reshape(-1) for part in found if part is not None])

    return outputs, curve


# The generalised Gauss–Newton matrix (Schraudolph 2002): (1/n) Σ_i J_iᵀ (∂²ℓ_i/∂z_i²) J_i.


class GGN(GaussNewtonOperator):
    """The Hessian without the network's own curvature; positive semi-definite for convex losses.

    A product costs about two gradients.

    >>> import torch
    >>> from landscope.probe.probe import Probe
    >>> w = torch.nn.Linear(2, 1, bias=False)
    >>> GGN(Probe(w, (torch.eye(2), torch.zeros(2, 1)), "mse")).dense()
    tensor([[1., 0.],
            [0., 1.]])
    """

    of_likelihood = True

    def _curve(self, z: Tensor, tangent: Tensor, batch: Batch) -> Tensor:
        def loss(at: Tensor) -> Tensor:
            return self.probe.loss_of(at, batch)

        _, pull = vjp(grad(loss), z)  # type: ignore[misc]  # a third value comes with has_aux only
        curved: Tensor = pull(tangent)[0]  # symmetric, and reverse mode is what every loss has
        return curved


# The Fisher information matrix of the model (Amari 1998), exact over labels.
#
# F = (1/n) Σ_i E_{y ~ p(·|x_i)} [∇ log p(y|x_i) ∇ log p(y|x_i)ᵀ] = (1/n) Σ_i J_iᵀ B_i J_i, with B_i that of the loss's
# likelihood at the outputs. A sample with several predictions averages or adds up over them, as its loss does.


class Fisher(GaussNewtonOperator):
    """The model's Fisher matrix, through products that cost about two gradients.

    >>> import torch
    >>> W = torch.nn.Linear(1, 2, bias=False)
    >>> torch.nn.init.zeros_(W.weight).shape
    torch.Size([2, 1])
    >>> Fisher(Probe(W, (torch.ones(3, 1), torch.tensor([0, 1, 1])))).dense()
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    """

    of_likelihood = True

    def __init__(
        self, probe: Probe, *, params: Selection = None, compile: Compile = "auto", precision: Precision = "highest"
    ) -> None:
        if probe.loss.unexplained:
            raise NotApplicableError(f"the Fisher matrix needs a likelihood; {probe.loss.unexplained}")
        if probe.loss.likelihood is None:
            raise NotApplicableError(
                f"the Fisher matrix needs a loss that is a negative log-likelihood (cross_entropy, binary_cross_entropy, mse); "
                f"{probe.loss.name!r} does not say which: landscope.Loss(function, likelihood='categorical'). The GGN exists "
                f"for any loss."
            )
        super().__init__(probe, params=params, compile=compile, precision=precision)

    def _curve(self, z: Tensor, tangent: Tensor, batch: Batch) -> Tensor:
        curved = output_curvature(self.probe.loss, z, tangent, self.probe.targets(batch))
        return curved if batch.weights is None else curved * batch.weights.view(-1, *[1] * (z.dim() - 1))


# The empirical Fisher matrix: the second moment of the per-sample gradients, (1/n) Σ_i g_i g_iᵀ with g_i = ∇ℓ_i.


class EmpiricalFisher(GaussNewtonOperator):
    """Second moment of the gradients, with the labels of the data; B_i = r_i r_iᵀ, r_i = ∂ℓ_i/∂z_i.

    A product costs about two gradients and holds no per-sample gradients.

    >>> import torch
    >>> from landscope.probe.probe import Probe
    >>> w = torch.nn.Linear(1, 1, bias=False)
    >>> torch.nn.init.ones_(w.weight).item()
    1.0
    >>> EmpiricalFisher(Probe(w, (torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)), "mse")).dense()   # (2² + 8²) / 2
    tensor([[34.]])
    """

    def _curve(self, z: Tensor, tangent: Tensor, batch: Batch) -> Tensor:
        if z.dim() == 0 or (batch.divisible and z.shape[0] != batch.size):
            raise NotApplicableError(
                f"the empirical Fisher matrix needs outputs with one row per sample, got {tuple(z.shape)} for {batch.size} "
                f"samples"
            )
        residual = grad(lambda at: self.probe.loss_of(at, batch))(z)
        along = (residual * tangent).flatten(1).sum(1) if z.dim() > 1 else residual * tangent
        return residual * along.view(-1, *[1] * (z.dim() - 1))
