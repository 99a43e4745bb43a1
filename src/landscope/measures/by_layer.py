"""Where in the network the sharpness is: measures of every layer, the others held constant."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from landscope.core import display
from landscope.core.estimate import Estimate
from landscope.measures.base import MEASURES, Measure
from landscope.measures.facts import Family
from landscope.measures.measuring import Budget, Planner
from landscope.measures.part_traces import PartTrace
from landscope.measures.resolve import resolve_measures
from landscope.measures.tied import saying_ties
from landscope.probe.guards import still
from landscope.probe.points import is_small
from landscope.probe.probe import Probe
from landscope.probe.totals import checked_limit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TRACES = {"hessian_trace": "hessian", "ggn_trace": "ggn", "fisher_trace": "fisher"}
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

    def _repr_html_(self) -> str:
        layers = next(iter(self.estimates.values()))
        rows = [[layer, *(found[layer] for found in self.estimates.values())] for layer in layers]
        return display.table(["layer", *self.estimates], rows)

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
    allows. Where products take time, the traces of all layers come from the same ones, to 5 %; otherwise to 2 %, or exactly, and
    with a budget their first estimates do.
    Ctrl-C keeps what is there. A tied weight counts once, in the first layer that holds it and in all its uses, and
    its estimates note it.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> probe = Probe(net, (torch.randn(9, 2), torch.arange(9) % 2))
    >>> list(by_layer(probe, ["l2_norm", "hessian_trace"])["hessian_trace"])
    ['0', '2']
    """
    return LayerReport(measured_parts(probe, probe.layers(), measures, seconds))


def measured_parts(
    probe: Probe, parts: Mapping[str, tuple[str, ...]], measures: Sequence[str], seconds: float | None
) -> dict[str, dict[str, Estimate]]:
    """Estimates by measure and part of the parameters, under one budget.

    Where products take time, the traces of all parts come from the same ones.
    """
    start, allowed = time.monotonic(), checked_limit("seconds", seconds)
    chosen: dict[str, Measure] = {}
    places: dict[str, Probe] = {}
    refused: dict[str, Estimate] = {}
    together = tuple(parts.values())
    for number, (part, names) in enumerate(parts.items()):
        layers = {name.rpartition(".")[0] for name in names}
        for name in measures:
            key, kind = f"{name} of {part}", MEASURES[name]
            takes_layer = any(f.name == "layer" for f in fields(kind))
            if name in TRACES and len(parts) > 1 and (allowed is not None or not is_small(probe)):
                alone = resolve_measures({name: {}}, probe.seed)[name] if is_small(probe) else None
                chosen[key], places[key] = (
                    PartTrace(matrix=TRACES[name], parts=together, part=number, seed=probe.seed, alone=alone),
                    probe,
                )
            elif takes_layer and len(layers) == 1:
                chosen[key] = resolve_measures({name: {"layer": next(iter(layers))}}, probe.seed)[name]
                places[key] = probe
            elif kind.family is Family.SCALE_INVARIANT and takes_layer:
                refused[key] = Estimate.not_applicable(f"it is that of one layer, and {part} holds {len(layers)}")
            else:
                chosen[key] = resolve_measures({name: {}}, probe.seed)[name]
                places[key] = probe.restrict(names)
    planner = Planner(probe, chosen, Budget(probe, start, allowed, None), places)
    try:
        with still(probe):
            for _ in planner.run(first_of_all=allowed is not None):
                pass
    except KeyboardInterrupt:
        planner.interrupt()
    found = {**planner.estimates(), **refused}

    def of(name: str, part: str) -> Estimate:
        key = f"{name} of {part}"
        of_layer = key in refused or "layer" in found[key].settings
        return found[key] if of_layer else saying_ties(found[key], probe, parts[part])

    return {name: {part: of(name, part) for part in parts} for name in measures}
