"""Relative flatness as papers 1 and 2 computed it: features normalised by editing weights, and summed over batches.

    Σ_B κ(W σ; batch B),   κ of the mean loss over a batch, σ_j the standard deviation of feature j

σ multiplies the columns of the classifier's weight W, and divides the rows of the two parameters that come just before W in
the order of the model, in the belief that they make the features. Against `relative_flatness(normalise=True)`:

- the sum over batches grows with their number: values of different batch sizes cannot be compared (paper 2; paper 1 took
  one batch of the first 7,500 samples);
- the edit keeps the function only where those two parameters scale the features, as in Linear or BatchNorm + ReLU: before
  an identity shortcut (ResNet) it does not;
- columns of features that never vary (dead units) are set to zero, where the closed form leaves them as they are.

Two forward passes for a softmax head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from landscope.core.distributed import processes
from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate
from landscope.curvature.layer.sites import default_layer, replaced_output
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.sharpness.relative_flatness import RelativeFlatness
from landscope.probe.batches import Batch, map_tensors
from landscope.probe.probe import Probe
from landscope.probe.totals import FORWARD

__all__ = ["FoldedRelativeFlatness", "folded", "samples_between"]


def samples_between(probe: Probe, start: int, stop: int) -> Probe:
    """The same point on samples start … stop − 1, in the order of the data.

    >>> probe = Probe(nn.Linear(1, 1), (torch.arange(5.0)[:, None], torch.zeros(5, 1)), "mse")
    >>> samples_between(probe, 1, 4).n_samples
    3
    """
    if (start, stop) == (0, probe.n_samples):
        return probe
    if processes() > 1:
        raise NotApplicableError("a part of the data in its order is not known where several processes share it")
    return probe.with_data(list(_pieces(probe, start, stop)))


def _pieces(probe: Probe, start: int, stop: int) -> Iterator[object]:
    offset = 0
    for batch in probe.batches():
        if not batch.divisible:
            raise NotApplicableError("the data is cut by samples, and these batches are one piece each")
        a, b = max(start - offset, 0), min(stop - offset, batch.size)
        if a < b:
            yield map_tensors(lambda t, a=a, b=b: t[a:b], batch.raw)  # type: ignore[misc]
        offset += batch.size
        if offset >= stop:
            return


def feature_deviations(probe: Probe, layer: nn.Linear) -> Tensor:
    """The standard deviation of every input of a layer over the data, exactly zero for one that never varies."""
    seen: list[Tensor] = []

    def note(x: Tensor, out: Tensor) -> Tensor:
        seen.append(x.detach().double())
        return out

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        seen.clear()
        probe.outputs(probe.params, batch)
        if len(seen) != 1 or seen[0].shape != (batch.size, layer.in_features):
            raise NotApplicableError("the code knows classifiers with one vector of features per sample only")
        return seen[0].sum(0), seen[0].square().sum(0)

    with replaced_output(layer, note):
        total, squares = probe.total(piece, load=0.25, passes=FORWARD, grad=False)
    second = squares / probe.n_samples
    variance = second - (total / probe.n_samples).square()
    return torch.where(variance > 64 * torch.finfo(torch.float64).eps * second, variance.clamp(min=0), 0.0).sqrt()


def folded(probe: Probe, layer: str, deviations: Tensor) -> Probe:
    """The same data at the edited model: W σ, and the two parameters before W over σ, row by row, where σ is not zero."""

    def edit(model: nn.Module) -> None:
        weight = model.get_submodule(layer).get_parameter("weight")
        named = list(model.named_parameters())
        at = next(i for i, (_, p) in enumerate(named) if p is weight)
        for name, parameter in named[max(at - 2, 0) : at]:
            if len(parameter) < len(deviations):
                raise NotApplicableError(
                    f"the code divides the rows of the two parameters before {layer}.weight by the deviations of its "
                    f"{len(deviations)} features; {name} has {len(parameter)} rows"
                )
            divisor = torch.where(deviations > 0, deviations, 1.0).to(parameter.dtype)
            parameter[: len(divisor)].div_(divisor.reshape(-1, *[1] * (parameter.dim() - 1)))
        weight.mul_(deviations.to(weight.dtype))

    return probe.with_model(edit)


@register("explicit-regularisation/folded_relative_flatness")
@dataclass(frozen=True, kw_only=True)
class FoldedRelativeFlatness(Measure):
    """Σ over batches of κ of the classifier, its features normalised by editing the model (a copy of it).

    Args:
        layer: the classifier's name; default: the linear layer that gives the outputs.
        first: only this many samples, from the first on.
        batch_size: samples per batch, cut in the order of the data; a smaller last one counts like the others. `None`: one
            batch of all samples.

    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> probe = Probe(net, (torch.randn(12, 2), torch.arange(12) % 3), dtype=torch.float64)
    >>> one, sums = FoldedRelativeFlatness()(probe).value, FoldedRelativeFlatness(batch_size=4)(probe).value
    >>> abs(sums / one - 3) < 1e-9
    True
    """

    title, family, unit, better = "relative flatness of edited weights", Family.SCALE_INVARIANT, "loss", None
    cost = "two forward passes"

    layer: str | None = None
    first: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for name, count in {"first": self.first, "batch_size": self.batch_size}.items():
            if count is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")

    def _measure(self, probe: Probe) -> Estimate:
        name = default_layer(probe) if self.layer is None else self.layer
        used = samples_between(probe, 0, min(self.first or probe.n_samples, probe.n_samples))
        layer = used.module(name)
        if not isinstance(layer, nn.Linear) or "weight" not in layer._parameters:
            raise NotApplicableError(f"the code knows plain linear classifiers; {name!r} is a {type(layer).__name__}")
        deviations = feature_deviations(used, layer)
        edited = folded(used, name, deviations)
        measure = RelativeFlatness(layer=name, seed=self.seed)
        whole = measure.last(edited)
        n = used.n_samples
        size = min(self.batch_size or n, n)
        full, rest = divmod(n, size)
        weight = n / size
        value = weight * whole.value
        if rest:  # n/size counts the last batch as rest/size of one; it counted as a whole one
            value += (1 - rest / size) * measure.last(samples_between(edited, n - rest, n)).value
        return replace(
            whole,
            value=value,
            stderr=None if whole.stderr is None else weight * whole.stderr,
            data_stderr=None if whole.data_stderr is None else weight * whole.data_stderr,
            details={
                **whole.details,
                "samples": n,
                "batches": full + (rest > 0),
                "mean": whole.value,
                "constant_features": int((deviations == 0).sum()),
            },
        )
