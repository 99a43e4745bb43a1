"""Where in the network the sharpness is: measures of every layer, the others held constant."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from landscope.core import display
from landscope.core.estimate import Estimate, Status
from landscope.core.json import Plain
from landscope.curvature.chunk_traces import ChunkTraces, Parts
from landscope.measures.base import MEASURES, Measure
from landscope.measures.facts import Family
from landscope.measures.measuring import Budget, Planner
from landscope.measures.resolve import resolve_measures
from landscope.measures.sharpness.matrices import MATRICES, canonical
from landscope.measures.tied import saying_ties
from landscope.probe.guards import still
from landscope.probe.points import is_small
from landscope.probe.probe import Probe
from landscope.probe.rows.means import FEWEST_BATCHES
from landscope.probe.shared import shared_stream
from landscope.probe.totals import checked_limit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TRACES = {"hessian_trace": "hessian", "ggn_trace": "ggn", "fisher_trace": "fisher"}
LAYER_MEASURES = ("l2_norm", "hessian_trace", "hessian_top_eigenvalue", "relative_flatness")


P = TypeVar("P")


@dataclass(frozen=True)
class PartReport(Generic[P]):
    """Estimates by measure and part of the network: a table (`print`), a frame, a figure."""

    estimates: Mapping[str, Mapping[P, Estimate]]
    part: ClassVar[str]
    """What a part is called."""

    def __getitem__(self, name: str) -> Mapping[P, Estimate]:
        return self.estimates[name]

    @property
    def parts(self) -> list[P]:
        """In the order of the model."""
        return list(next(iter(self.estimates.values())))

    def columns(self, part: P) -> dict[str, float]:
        """Value and standard error of every measure of a part, by name; NaN where there is none."""
        found: dict[str, float] = {}
        for name, estimates in self.estimates.items():
            row = estimates[part].as_row()
            found |= {name: row["value"], f"{name}_stderr": row["stderr"]}
        return found

    def _cells(self) -> Iterator[list[str]]:
        for part in self.parts:
            held = (found[part] for found in self.estimates.values())
            yield [str(part), *(str(one) if one.status.has_value else "–" for one in held)]

    def __str__(self) -> str:
        rows = [[self.part, *self.estimates], *self._cells()]
        first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
        pairs = ((name, zip(cells, widths, strict=True)) for name, *cells in rows)
        return "\n".join(
            "  ".join([name.ljust(first), *(cell.rjust(width) for cell, width in row)]) for name, row in pairs
        )

    def _repr_html_(self) -> str:
        return display.table([self.part, *self.estimates], self._cells())


class LayerReport(PartReport[str]):
    """Estimates by measure and layer."""

    part = "layer"

    def to_frame(self) -> pd.DataFrame:
        """One row per layer, two columns (value, stderr) per measure; missing where there is none."""
        import pandas as pd

        return pd.DataFrame({layer: self.columns(layer) for layer in self.parts}).T.rename_axis("layer")

    def plot(self) -> Figure:
        """One panel of bars per measure, layers from input to output."""
        from matplotlib.figure import Figure

        layers = self.parts
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


# The traces of all diagonal blocks of a matrix at once: of every layer, or of every block of a transformer
# (`landscope.curvature.chunk_traces`): a round over all rows costs one product, however many parts there are.


CHUNKS = 16
MOST_PROBES = 16


@dataclass(frozen=True, kw_only=True)
class PartTrace(Measure):
    """tr A_bb of one part of the parameters, from products that all parts share."""

    matrix: str
    parts: Parts
    part: int
    tol: float = 0.05
    alone: Measure | None = None
    """What measures the part by itself after a round over all rows: where products take no time."""

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """From the chunks of rows multiplied so far, then from further rounds, or from the part alone."""
        for found in part_traces(probe, self.matrix, self.parts, self.tol, self.seed):
            yield None if found is None else replace(found[self.part], status=self._status(found[self.part]))
            if found is not None and self.alone is not None and found[self.part].bracket is None:  # from all rows
                yield from self.alone.refine(probe.restrict(self.parts[self.part]))
                return

    def _status(self, found: Estimate) -> Status:
        return found.status if self.alone is None else Status.RUNNING

    @property
    def settings(self) -> dict[str, Plain]:
        """Without the names of all parameters."""
        return {"matrix": self.matrix, "tol": self.tol, "seed": self.seed}


@shared_stream
def part_traces(probe: Probe, name: str, parts: Parts, tol: float, seed: int) -> Iterator[tuple[Estimate, ...] | None]:
    """The trace of every part, better and better, until each has a standard error below `tol` times its value.

    >>> import torch
    >>> net = torch.nn.Linear(2, 1, bias=True)
    >>> probe = Probe(net, (torch.eye(2).repeat(32, 1), torch.zeros(64, 1)), "mse")
    >>> *_, (weight, bias) = part_traces(probe, "hessian", (("weight",), ("bias",)), 0.05, 0)
    >>> all(abs(trace.value - 2) <= 4 * trace.stderr <= 0.4 for trace in (weight, bias))             # (wᵀx + b)²
    True
    """
    traces = ChunkTraces(probe, MATRICES[canonical(probe, name)], parts, seed, "parts", CHUNKS)
    for turn in range(MOST_PROBES):
        for chunk, _ in enumerate(traces.round(), 1):
            early = turn == 0 and FEWEST_BATCHES <= chunk < traces.chunks
            yield _found(traces) if early else None
        found = _found(traces)
        done = [one.stderr is not None and one.stderr <= tol * abs(one.value) for one in found]
        if all(done) or turn == MOST_PROBES - 1:
            yield tuple(map(partial(_ended, tol), found, done))
            return
        yield found


def _found(traces: ChunkTraces) -> tuple[Estimate, ...]:
    """The trace of every part."""
    details: dict[str, Plain] = {"probes": max(traces.probes, 1)}
    brackets = [None if mean.complete else (mean.low, mean.high) for mean in traces.means()]
    return tuple(
        Estimate(mean.value, mean.stderr, status=Status.RUNNING, bracket=bracket, details=details)
        for mean, bracket in zip(traces.means(), brackets, strict=True)
    )


def _ended(tol: float, found: Estimate, well: bool) -> Estimate:
    if well:
        return replace(found, status=Status.CONVERGED)
    reason = f"the error bar has not come down to tol={tol:g}"
    return replace(found, status=Status.BUDGET_SPENT, reason=reason)
