"""Where in the network the sharpness is: measures of every layer, the others held constant."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from landscope.core.estimate import Estimate
from landscope.measures.base import MEASURES
from landscope.measures.measuring import NOTHING_LEFT, measure
from landscope.measures.tied import saying_ties
from landscope.probe.probe import Probe
from landscope.probe.totals import checked_limit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["LAYER_MEASURES", "LayerReport", "by_layer"]

LAYER_MEASURES = ("l2_norm", "hessian_trace", "hessian_top_eigenvalue", "relative_flatness")


@dataclass(frozen=True)
class LayerReport:
    """Estimates by measure and layer."""

    estimates: Mapping[str, Mapping[str, Estimate]]

    def __getitem__(self, name: str) -> Mapping[str, Estimate]:
        return self.estimates[name]

    def to_frame(self) -> pd.DataFrame:
        """One row per layer, two columns (value, stderr) per measure; missing where there is none."""
        import pandas as pd

        columns = {}
        for name, layers in self.estimates.items():
            columns[name] = {layer: e.value for layer, e in layers.items()}
            columns[f"{name}_stderr"] = {
                layer: math.nan if e.stderr is None or not e.status.has_value else e.stderr
                for layer, e in layers.items()
            }
        return pd.DataFrame(columns).rename_axis("layer")

    def plot(self) -> Figure:
        """One panel of bars per measure, layers from input to output."""
        from matplotlib.figure import Figure

        layers = list(next(iter(self.estimates.values())))
        count = len(self.estimates)
        figure = Figure(figsize=(3.2 * count + 1.5, max(2.5, 0.25 * len(layers) + 1.2)), layout="constrained")
        for axis, (name, found) in zip(
            figure.subplots(1, count, sharey=True, squeeze=False)[0], self.estimates.items(), strict=True
        ):
            shown = [(row, found[layer]) for row, layer in enumerate(layers) if found[layer].status.has_value]
            axis.barh(
                [row for row, _ in shown],
                [e.value for _, e in shown],
                xerr=[2 * (e.stderr or 0.0) for _, e in shown],
                color="#1f5fa8",
                error_kw={"lw": 1},
            )
            axis.set_title(name, loc="left", fontsize=9)
            axis.set_yticks(range(len(layers)), layers)
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
        figure.axes[0].invert_yaxis()
        return figure


def by_layer(probe: Probe, measures: Sequence[str] = LAYER_MEASURES, *, seconds: float | None = None) -> LayerReport:
    """Each measure of each layer with parameters: the Hessian's diagonal block, the layer's norm, its relative flatness.

    `seconds` is a budget for all of them together; what one layer leaves is shared by those after it. A tied weight counts once,
    in the first layer that holds it and in all its uses, and its estimates note it.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> probe = Probe(net, (torch.randn(9, 2), torch.arange(9) % 2))
    >>> list(by_layer(probe, ["l2_norm", "hessian_trace"])["hessian_trace"])
    ['0', '2']
    """
    estimates: dict[str, dict[str, Estimate]] = {name: {} for name in measures}
    layers = probe.layers()
    allowed = checked_limit("seconds", seconds)
    end = None if allowed is None else time.monotonic() + allowed
    for at, (layer, names) in enumerate(layers.items()):
        block = probe.restrict(names)
        for before, name in enumerate(measures):
            left = len(measures) * (len(layers) - at) - before
            share = None if end is None else max(NOTHING_LEFT, (end - time.monotonic()) / left)
            takes_layer = any(f.name == "layer" for f in fields(MEASURES[name]))
            settings = {name: {"layer": layer} if takes_layer else {}}
            place = probe if takes_layer else block
            found = measure(place, measures=settings, seconds=share, progress=False)[name]
            estimates[name][layer] = found if takes_layer else saying_ties(found, probe, names)
    return LayerReport(estimates)
