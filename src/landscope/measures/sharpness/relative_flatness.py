"""Relative flatness of a layer (Petzka et al. 2021): curvature in its weight, measured in units of the weight.

    neuronwise   κ = Σ_{s,s'} ⟨w_s, w_s'⟩ tr H_{s,s'}        (`relative_flatness`)
    layerwise    κ = ‖W‖²_F tr H                             (`relative_flatness_layerwise`)

w_s are the weights into neuron (or channel) s, H_{s,s'} the block of the Hessian of the mean loss between those of s
and s'; biases are left out. Where other layers use the weight as well (a head tied to the embedding), κ is of the layer where it
is called, the other uses held constant: what `FAM` adds to a loss. `uses="all"` is of the tensor in all its uses, which has one
Hessian and no closed form, and can be negative where the head's is not. The estimate says which (`measures.tied`).
`details["form"]` is which of the equivalent forms was used, the cheapest that holds:

    softmax head     one forward pass, all samples                                  (`softmax_head`)
    layer forms      second derivatives behind the layer only, exact                (`layer_forms`)
    random forms     the same with random directions, where exact ones are too many
    layer Hessian    products with the Hessian in the weight: always right          (`layer_hessian`)

`normalise=True` measures with features (channels of a convolution) divided by their standard deviation over the data,
positions included, and weights times it: the same function, no weight is edited. Features that never vary are left as
they are (`details["constant_features"]` counts them); without any, the value is also invariant to neuron rescaling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from landscope.core.errors import DifferentiationError, NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.core.json import Plain
from landscope.curvature.layer.behind import samples_stay_apart
from landscope.curvature.layer.forms import (
    FIRST_PROBES,
    FormWork,
    RandomForms,
    directions,
    exact_forms,
    factor_of,
    further_forms,
    random_forms,
    square_factor,
)
from landscope.curvature.layer.geometry import Geometry, Layer, Linear, LinearGeometry, TransposedLinear, geometry_of
from landscope.curvature.layer.sites import (
    Site,
    default_layer,
    feature_scale,
    has_own_weight,
    layer_sites,
    used_once,
    weight_name,
)
from landscope.curvature.layer.softmax_head import Spread, class_spread, head_curvature, softmax_head
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.row_measure import RowValues, output_looks
from landscope.measures.sharpness.layer_hessian import layer_hessian_traces
from landscope.measures.sharpness.matrices import targets_add_up_to_one
from landscope.measures.tied import OF_THE_LAYER, OF_THE_TENSOR, saying_ties
from landscope.probe.probe import Probe
from landscope.probe.rows.means import RowMean, row_mean
from landscope.probe.rows.order import RowOrder
from landscope.probe.rows.outputs import Outputs, outputs_of
from landscope.probe.shared import once_per_probe


def is_softmax_head(probe: Probe, site: Site) -> bool:
    """Whether the closed form may hold: the layer gives the logits of a softmax per position, and targets add up to one."""
    loss = probe.loss
    if (
        not site.gives_logits
        or loss.likelihood != "categorical"
        or (loss.weigh is not None and loss.share is None)
        or not isinstance(probe.module(site.name), Linear)
        or len(site.shape) < 2
        or site.shape[0] != site.samples
    ):
        return False
    return _has_labels(probe) or (len(site.shape) == 2 and targets_add_up_to_one(probe))


def _has_labels(probe: Probe) -> bool:
    first = probe.targets(next(probe.batches()))
    return isinstance(first, Tensor) and not first.is_floating_point()


ROWS_AT_ONCE = 4096
"""Of features that are kept."""


def _of_rows(probe: Probe, geometry: LinearGeometry, spread: Spread) -> Callable[[Outputs], RowMean]:
    """κ of a softmax head from the rows read so far, the new ones after those that it knows."""
    found = np.zeros(0)

    def mean(outputs: Outputs) -> RowMean:
        nonlocal found
        order, z, features = outputs.order, outputs.outputs, outputs.features
        if order is None or z is None or features is None:  # some rows took another way
            return row_mean(np.full((outputs.rows, 1), math.nan), RowOrder(torch.arange(probe.n_samples), None))
        places = order.rows[: outputs.rows] if outputs.complete else torch.arange(outputs.rows)
        for some in places[len(found) :].split(ROWS_AT_ONCE):
            phi, logits = (t[some].to(probe.device) for t in (features, z))
            phi = phi if geometry.scale is None else phi / geometry.scale
            found = np.append(found, head_curvature(phi, logits, spread).cpu().numpy())
        return row_mean(found[:, None], order)

    return mean


def _from_outputs(probe: Probe, geometry: LinearGeometry, spread: Spread) -> Iterator[RowMean]:
    """κ of a softmax head from the forward pass that everything shares, where that has seen what the layer is given."""
    mean = _of_rows(probe, geometry, spread)
    for outputs in output_looks(probe):
        yield mean(outputs)
    yield mean(outputs_of(probe))


Form = Literal["softmax head", "layer forms", "random forms", "layer Hessian"]


@dataclass(frozen=True, kw_only=True)
class _LayerMeasure(Measure):
    family = Family.SCALE_INVARIANT
    unit = "loss"
    better = None
    cost = "one forward pass for a softmax head; otherwise second derivatives behind the layer"

    turn = 1
    layer: str | None = None
    tol: float = 0.01
    max_probes: int = 512
    uses: Literal["layer", "all"] = "layer"

    def __post_init__(self) -> None:
        if self.uses not in ("layer", "all"):
            raise ValueError(f"uses must be 'layer' or 'all', got {self.uses!r}")
        if not self.tol > 0:
            raise ValueError(f"tol is a relative standard error and must be positive, got {self.tol}")
        if self.max_probes < 2:
            raise ValueError(f"max_probes must be at least 2, got {self.max_probes}")

    def _factor(self, matrix: Tensor) -> Tensor:
        raise NotImplementedError

    def _spread(self, matrix: Tensor) -> Spread:
        return class_spread(square_factor(matrix))

    @property
    def _normalises(self) -> bool:
        return False

    def at_once(self, probe: Probe) -> Estimate | None:
        """What rows that others have read say, where the model ends in this layer and has labels."""
        outputs, loss = outputs_of(probe), probe.loss
        if not outputs.rows or outputs.head is None or self.layer not in (None, outputs.head) or self._normalises:
            return None
        if loss.likelihood != "categorical" or loss.weigh is not None or not _has_labels(probe) or self.uses != "layer":
            return None
        geometry = geometry_of(cast(Layer, probe.module(outputs.head)))
        assert isinstance(geometry, LinearGeometry), "the head is a linear layer"
        mean = _of_rows(probe, geometry, self._spread(geometry.matrix() / probe.temperature))(outputs)
        known = math.isfinite(mean.value)
        return replace(mean.estimate(), details={"layer": outputs.head, "form": "softmax head"}) if known else None

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """Row by row in the cheapest form that holds; the next one where it turns out not to."""
        name, layer = _chosen(probe, self.layer)
        own = f"{name}.weight" if name else "weight"
        for found in self._of_layer(probe, name, layer):
            if found is None or weight_name(probe, name) is None:  # computed from other parameters
                yield found
            else:
                elsewhere = layer_sites(probe)[name].calls > 0 and not has_own_weight(probe, name)
                meaning = OF_THE_LAYER if self.uses == "layer" and elsewhere else OF_THE_TENSOR
                yield saying_ties(found, probe, [own], elsewhere, meaning)

    def _of_layer(self, probe: Probe, name: str, layer: Layer) -> Iterator[Estimate | None]:
        scale, constant = feature_scale(probe, name, geometry_of(layer)) if self._normalises else (None, 0)
        geometry = geometry_of(layer, scale)
        details: dict[str, Plain] = {"layer": name}
        if self._normalises:
            details["constant_features"] = constant
        while (form := self._form(probe, name)) != "layer Hessian":
            try:
                yield from self._by_samples(probe, name, geometry, {**details, "form": form})
            except DifferentiationError:  # the Hessian has more ways to differentiate
                break
            except _MisfitError:
                _refuted(probe, name).add(form)
            else:
                return
        if self.uses == "layer" and layer_sites(probe)[name].calls and not has_own_weight(probe, name):
            raise NotApplicableError(
                f"the weight of {name!r} is used elsewhere, too, and no formula in its inputs and outputs gives the curvature of "
                f"this use (it runs several times, or samples act on each other). uses='all' measures the tensor in all its "
                f"uses; for this one, untie a copy of the model: layer.weight = nn.Parameter(layer.weight.detach().clone())."
            )
        yield None
        yield from self._by_hessian(probe, name, geometry, {**details, "form": "layer Hessian"})

    def _by_samples(self, probe: Probe, name: str, geometry: Geometry, details: dict[str, Plain]) -> Iterator[Estimate]:
        """Raises `_MisfitError` where the form does not hold for all samples."""
        if details["form"] == "softmax head":
            assert isinstance(geometry, LinearGeometry)
            spread, outputs = self._spread(geometry.matrix() / probe.temperature), outputs_of(probe)
            shared = probe.loss.weigh is None and len(layer_sites(probe)[name].shape) == 2
            if shared and (outputs.rows or outputs.advance()) and outputs.head == name and outputs.order is not None:
                for mean in _from_outputs(probe, geometry, spread):
                    yield replace(_fitting(mean).estimate(), details=details)
                return
            work = softmax_head(probe, name, geometry, spread)
        else:
            factor = self._factor(geometry.matrix())
            if details["form"] == "random forms":
                yield from self._by_random_forms(probe, name, geometry, factor, details)
                return
            positions = layer_sites(probe)[name].positions
            work = exact_forms(probe, name, geometry, factor, positions)
            details["directions"] = directions(geometry, factor, positions)
        for mean in _row_values(probe, work).read():
            yield replace(_fitting(mean).estimate(), details=details)

    def _by_random_forms(
        self, probe: Probe, name: str, geometry: Geometry, factor: Tensor, details: dict[str, Plain]
    ) -> Iterator[Estimate]:
        """The first probes row by row, then further ones until the tolerance is met."""
        first = min(FIRST_PROBES, self.max_probes)
        values = _row_values(probe, random_forms(probe, name, geometry, factor, 0, first, self.seed))
        for complete in values.looks():
            mean = _fitting(values.mean())
            if not complete:
                yield replace(mean.estimate(), details={**details, "probes": first})
        rows = values.everywhere
        means, within = rows.mean(1), rows.var(1, ddof=1).sum() / first
        early = RandomForms.of_sums(means.sum(), (means**2).sum(), within, probe.n_samples, first)
        yield self._random(early, details)
        more = further_forms(probe, name, geometry, factor, self.tol, self.max_probes, self.seed, early)
        for found in more:
            yield self._random(found, details)

    def _random(self, found: RandomForms, details: dict[str, Plain]) -> Estimate:
        reached = found.stderr <= self.tol * abs(found.value)
        status = Status.CONVERGED if reached else Status.RUNNING
        more: dict[str, Plain] = {**details, "probes": found.probes}
        return Estimate(found.value, found.stderr, found.data_stderr, status, details=more)

    def _by_hessian(self, probe: Probe, name: str, geometry: Geometry, details: dict[str, Plain]) -> Iterator[Estimate]:
        weight = weight_name(probe, name)
        if weight is None:
            raise NotApplicableError(
                f"the weight of {name!r} is computed from other parameters (weight norm or another parametrisation) and used "
                f"more than once: it has no Hessian. Fold the parametrisation into the weight first."
            )
        for found in layer_hessian_traces(
            probe,
            weight,
            self._factor(geometry.matrix()),
            geometry.column_scale(),
            self.tol,
            self.max_probes,
            self.seed,
            isinstance(geometry.layer, TransposedLinear),
        ):
            running = found.status is Status.RUNNING
            yield replace(found, details=details if running else {**details, "products": found.details["matvecs"]})

    def _form(self, probe: Probe, name: str) -> Form:
        """The cheapest form that holds as far as is known."""
        site, refuted = layer_sites(probe)[name], _refuted(probe, name)
        plain = site.faithful and (site.calls == 1 if self.uses == "layer" else used_once(probe, name))
        if plain and "softmax head" not in refuted and is_softmax_head(probe, site):
            return "softmax head"
        by_sample = plain and site.by_sample and not refuted & {"layer forms", "random forms"}
        if not by_sample or not samples_stay_apart(probe, name):
            return "layer Hessian"
        geometry = geometry_of(_chosen(probe, name)[1])
        count = directions(geometry, self._factor(geometry.matrix()), site.positions)
        return "layer forms" if count <= self.max_probes else "random forms"


class _MisfitError(Exception):
    """The form does not hold for some sample."""


def _row_values(probe: Probe, work: FormWork) -> RowValues:
    return RowValues(probe, lambda batch, _: work.rows(batch), load=work.load, passes=work.passes, grad=True)


def _fitting(mean: RowMean) -> RowMean:
    if math.isnan(mean.value):
        raise _MisfitError
    return mean


@register("relative_flatness")
@dataclass(frozen=True, kw_only=True)
class RelativeFlatness(_LayerMeasure):
    """The curvature of one layer in units of its weights, neuron by neuron: κ = Σ_{s,s'} ⟨w_s, w_s'⟩ tr H_{s,s'}; bias excluded.

    Args:
        layer: its name; default: the classifier (see `default_layer`).
        normalise: divide features by their standard deviation, multiply weights by it.
        tol: relative standard error at which random directions stop.
        max_probes: directions for each sample (or Hessian products) at most; up to this many, the value is exact.
        uses: of a weight that is used elsewhere, too: `"layer"`, where the layer is called, or `"all"`, in all its uses.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> probe = Probe(net, (torch.randn(50, 2), torch.arange(50) % 3))
    >>> RelativeFlatness()(probe).details["form"], RelativeFlatness(layer="0")(probe).details["form"]
    ('softmax head', 'layer forms')
    """

    title = "relative flatness"
    reference = "Petzka et al. 2021"
    invariant_to: ClassVar[frozenset[str]] = frozenset(
        {"layer_rescaling", "batchnorm_scaling", "permutation", "logit_shift"}
    )
    normalise: bool = False

    @property
    def _normalises(self) -> bool:
        return self.normalise

    def _factor(self, matrix: Tensor) -> Tensor:
        return square_factor(matrix)


@register("relative_flatness_layerwise")
@dataclass(frozen=True, kw_only=True)
class RelativeFlatnessLayerwise(_LayerMeasure):
    """The curvature of one layer in units of its weights as a whole: κ = ‖W‖²_F tr H; bias excluded.

    Petzka et al. 2021, in the simplified form of Adilova et al. 2023.

    >>> from torch import nn
    >>> probe = Probe(nn.Linear(2, 2, bias=False), (torch.eye(2), torch.tensor([0, 1])))
    >>> estimate = RelativeFlatnessLayerwise()(probe)
    >>> estimate.status.value, estimate.details["form"]
    ('exact', 'softmax head')
    """

    title = "layerwise relative flatness"
    reference = "Petzka et al. 2021; Adilova et al. 2023"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"layer_rescaling", "batchnorm_scaling", "permutation"})

    def _spread(self, matrix: Tensor) -> Spread:
        return class_spread(matrix, layerwise=True)

    def _factor(self, matrix: Tensor) -> Tensor:
        return factor_of(matrix, layerwise=True)


def relative_flatness_by_layer(probe: Probe, *, layerwise: bool = False, **settings: Plain) -> dict[str, Estimate]:
    """Relative flatness of every linear and convolutional layer, in the order in which they run.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> list(relative_flatness_by_layer(Probe(net, (torch.randn(8, 2), torch.arange(8) % 2))))
    ['0', '2']
    """
    kind = RelativeFlatnessLayerwise if layerwise else RelativeFlatness
    return {name: kind(layer=name, **settings)(probe) for name in layer_sites(probe)}  # type: ignore[arg-type]


@once_per_probe
def _refuted(_: Probe, __: str) -> set[Form]:
    """Forms that two samples allowed, and that turned out not to hold for all."""
    return set()


def _chosen(probe: Probe, layer: str | None) -> tuple[str, Layer]:
    name = default_layer(probe) if layer is None else layer
    module = probe.module(name)
    if not isinstance(module, Layer):
        raise NotApplicableError(
            f"relative flatness is defined for linear and convolutional layers; {name!r} is a {type(module).__name__}. "
            f"Choices: {', '.join(layer_sites(probe)) or 'none in this model'}"
        )
    return name, module
