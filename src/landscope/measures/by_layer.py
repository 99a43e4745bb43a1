"""Where in the network the sharpness is: measures of every layer, the others held constant."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from landscope.core.estimate import Estimate
from landscope.measures.base import MEASURES, Measure
from landscope.measures.measuring import Budget, Planner
from landscope.measures.resolve import resolve_measures
from landscope.measures.tied import saying_ties
from landscope.probe.guards import still
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

    `seconds` is a budget for all of them together: a first estimate of every layer, then each to its end as far as the time
    allows. Ctrl-C keeps what is there. A tied weight counts once, in the first layer that holds it and in all its uses, and
    its estimates note it.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> probe = Probe(net, (torch.randn(9, 2), torch.arange(9) % 2))
    >>> list(by_layer(probe, ["l2_norm", "hessian_trace"])["hessian_trace"])
    ['0', '2']
    """
    start, allowed = time.monotonic(), checked_limit("seconds", seconds)
    chosen: dict[str, Measure] = {}
    places: dict[str, Probe] = {}
    for layer, names in probe.layers().items():
        block = probe.restrict(names)
        for name in measures:
            takes_layer = any(f.name == "layer" for f in fields(MEASURES[name]))
            key = f"{name} of {layer}"
            chosen[key] = resolve_measures({name: {"layer": layer} if takes_layer else {}}, probe.seed)[name]
            places[key] = probe if takes_layer else block
    planner = Planner(probe, chosen, Budget(probe, start, allowed, None), places)
    try:
        with still(probe):
            for _ in planner.run(first_of_all=allowed is not None):
                pass
    except KeyboardInterrupt:
        planner.interrupt()
    found = planner.estimates()

    def of(name: str, layer: str, names: tuple[str, ...]) -> Estimate:
        key = f"{name} of {layer}"
        return found[key] if places[key] is probe else saying_ties(found[key], probe, names)

    layers = probe.layers().items()
    return LayerReport({name: {layer: of(name, layer, names) for layer, names in layers} for name in measures})
