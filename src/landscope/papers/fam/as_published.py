"""Paper 4, as coded: the relative flatness that FAM adds to the loss.

    neuronwise   (1/m) Σ_{i,j} ⟨w_i, w_j⟩ tr H[:, j, i, :]      d neurons, m inputs
    layerwise    ‖W‖ tr H, where the paper has ‖W‖²

The slice H[:, j, i, :] is the block between neurons j and i if H is ordered (in, out, out, in), as one of the ways in the code
orders it. The default way gives (out, in, out, in), of which the same slice holds ∂²L/∂w_{kj}∂w_{il} for neuron k, input l: its
"trace" mixes neurons with inputs. Both are divided by the number of inputs. The trace of the layerwise form is
Hutchinson's, which stops when its running mean stands still for one draw.

That the Hessian was detached (`torch.tensor(…)`), so that its gradient was cut, concerns training and leaves these values
as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator, rademacher
from landscope.curvature import Hessian
from landscope.curvature.layer.sites import default_layer, weight_name
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.sharpness.relative_flatness import RelativeFlatness, RelativeFlatnessLayerwise
from landscope.measures.tied import saying_ties
from landscope.probe.probe import Probe

__all__ = ["FAMLayerwise", "FAMNeuronwise", "crossed_trace"]

PRODUCT = 2.1
"""Passes of one Hessian product in a block."""
STANDS_STILL = 1e-4
"""Relative change of the running mean at which the code's trace estimate stops."""


def crossed_trace(hessian: Hessian, weight: Tensor) -> float:
    """Σ_{i,j<d} ⟨w_i, w_j⟩ Σ_{k<d} ∂²L/∂w_{kj}∂w_{ik}: neuronwise flatness with (out, in, out, in) read as (in, out, out, in).

    From the d² columns of the Hessian for w_{ik}, i, k < d.

    >>> from torch import nn
    >>> probe = Probe(nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")     # H = I
    >>> crossed_trace(Hessian(probe), torch.tensor([[3.0, 4.0]]))
    25.0
    """
    d, m = weight.shape
    gram = weight.double() @ weight.double().T
    total = 0.0
    for k in range(d):
        units = torch.zeros(d, d, m, dtype=hessian.dtype, device=hessian.device)
        units[:, :, k] = torch.eye(d, dtype=hessian.dtype, device=hessian.device)
        columns = (hessian @ units.flatten(1).T.contiguous()).T.reshape(d, d, m)
        total += float((gram * columns[:, k, :d].double()).sum())
    return total


@dataclass(frozen=True, kw_only=True)
class _FAMMeasure(Measure):
    layer: str | None = None

    def _weight(self, probe: Probe) -> tuple[str, str, Tensor]:
        """The names of the layer and of its weight, and the weight."""
        layer = default_layer(probe) if self.layer is None else self.layer
        name = weight_name(probe, layer)
        if name is None:
            raise NotApplicableError(f"the layer {layer!r} has no weight of its own that could be differentiated")
        return layer, name, probe.module("").get_parameter(name).detach()


@register("fam/neuronwise")
@dataclass(frozen=True, kw_only=True)
class FAMNeuronwise(_FAMMeasure):
    """The neuronwise regulariser of the code: (1/m) Σ_{i,j} ⟨w_i, w_j⟩ tr of a slice of the layer's Hessian.

    Args:
        layer: its name; default: the classifier.
        axes: `"out_in"`: the Hessian is ordered (out, in, out, in) and its slices are not the blocks (the default way of the
            code); `"in_out"`: they are, and the value is `relative_flatness` over m.
        max_products: Hessian products at most; `"out_in"` takes d².

    >>> from torch import nn
    >>> probe = Probe(nn.Linear(4, 3), (torch.randn(9, 4), torch.arange(9) % 3), dtype=torch.float64)
    >>> right = FAMNeuronwise(axes="in_out")(probe).value
    >>> abs(4 * right / RelativeFlatness()(probe).value - 1) < 1e-12
    True
    """

    title, family, unit, better = "κ of the code, neuronwise", Family.SCALE_INVARIANT, "loss", None
    cost = "d² Hessian products for d neurons"

    axes: Literal["out_in", "in_out"] = "out_in"
    max_products: int = 4096

    def __post_init__(self) -> None:
        if self.axes not in ("out_in", "in_out"):
            raise ValueError(f"axes must be 'out_in' or 'in_out', got {self.axes!r}")
        if self.max_products < 1:
            raise ValueError(f"max_products must be at least 1, got {self.max_products}")

    def _measure(self, probe: Probe) -> Estimate:
        layer, name, weight = self._weight(probe)
        if weight.dim() != 2:
            raise NotApplicableError(
                f"the neuronwise code knows matrices; the weight of {layer!r} has {weight.dim()} dimensions"
            )
        d, m = weight.shape
        if self.axes == "in_out":
            return _times(1 / m, RelativeFlatness(layer=layer, uses="all", seed=self.seed).last(probe))
        if d > m:
            raise NotApplicableError(
                f"with its axes confused the code uses neuron numbers as input numbers and fails where there are more neurons "
                f"than inputs; {layer!r} has {d} and {m}"
            )
        if d * d > self.max_products:
            raise NotApplicableError(
                f"{d} neurons take {d * d} Hessian products, max_products allows {self.max_products}; raise it, or choose a "
                f"smaller layer"
            )
        value = crossed_trace(Hessian(probe, params=name), weight) / m
        found = Estimate(value, details={"layer": layer, "products": d * d})
        return saying_ties(found, probe, [name])


@register("fam/layerwise")
@dataclass(frozen=True, kw_only=True)
class FAMLayerwise(_FAMMeasure):
    """The layerwise regulariser of the code: ‖W‖_F tr H, with the norm unsquared.

    Args:
        layer: its name; default: the classifier.
        approximate: the trace by Hutchinson's estimator as coded: Rademacher draws until the running mean changes by less than
            1e-4 (relative) from one draw to the next. Otherwise exact, or as accurate as `relative_flatness_layerwise` is.
        max_probes: draws at most.

    >>> from torch import nn
    >>> probe = Probe(nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse", dtype=torch.float64)    # H = I
    >>> norm = float(probe.vector().norm())
    >>> abs(FAMLayerwise()(probe).value - 2 * norm) < 1e-12
    True
    """

    title, family, unit, better = "κ of the code, layerwise", Family.SCALE_INVARIANT, "loss", None
    cost = "up to 200 Hessian products"

    approximate: bool = True
    max_probes: int = 200

    def __post_init__(self) -> None:
        if self.max_probes < 1:
            raise ValueError(f"max_probes must be at least 1, got {self.max_probes}")

    def _measure(self, probe: Probe) -> Estimate:
        layer, name, weight = self._weight(probe)
        norm = float(torch.linalg.vector_norm(weight.double()))
        if not self.approximate:
            exact = RelativeFlatnessLayerwise(layer=layer, uses="all", seed=self.seed).last(probe)
            return _times(1 / norm if norm > 0 else 0.0, exact)
        hessian, rng = Hessian(probe, params=name), generator(self.seed, "fam")
        draws: list[float] = []
        mean, still = 0.0, False
        while len(draws) < self.max_probes and not still:
            v = rademacher((hessian.shape[0],), rng, hessian.dtype, hessian.device)
            draws.append(float(v.double() @ (hessian @ v).double()))
            before, mean = mean, sum(draws) / len(draws)
            still = abs(mean - before) / (abs(before) + 1e-6) < STANDS_STILL
        spread = torch.tensor(draws, dtype=torch.float64)
        found = Estimate(
            norm * mean,
            stderr=norm * float(spread.std()) / math.sqrt(len(draws)) if len(draws) > 1 else None,
            status=Status.CONVERGED,
            reason="the running mean stood still for one draw" if still else "all draws were taken",
            details={"layer": layer, "norm": norm, "trace": mean, "draws": len(draws)},
        )
        return saying_ties(found, probe, [name])


def _times(factor: float, estimate: Estimate) -> Estimate:
    error = estimate.data_stderr
    return replace(
        estimate,
        value=factor * estimate.value,
        stderr=None if estimate.stderr is None else factor * estimate.stderr,
        data_stderr=None if error is None else factor * error,
    )
