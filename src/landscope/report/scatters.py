"""Scatter plots of the strongest pairs, and one in which any two columns can be set against each other."""

from __future__ import annotations

from landscope.report.associations import Associations
from landscope.report.cohorts import Study
from landscope.report.columns import value_columns
from landscope.report.section import Block, Panels, Plot, Prose, Section

__all__ = ["scatter_section"]

OUTCOMES, MEASURES = 4, 3


def scatter_section(study: Study, found: Associations | None) -> Section:
    """For each outcome the measures that go with it most."""
    if len(study.main) < 2 or not study.outcomes:
        return Section("scatter", "Model by model", [])
    blocks: list[Block] = [
        Prose(
            "A point is a model, its bars one standard error: the estimator's or the data's, whichever is larger.",
            scripted=found is None,
        ),
        Prose(
            "A click on a point lights the model up in every figure and table, one on a condition all of its models; with "
            "shift, more than one; Escape lets go. A selection is kept in the address of the page, to be shared.",
            scripted=True,
        ),
    ]
    if found is not None:
        plots = [
            Plot(
                f"scatter-{measure}-{outcome}",
                {"x": measure, "y": outcome},
                _caption(found, measure, outcome),
                kind="scatter",
                height=300,
            )
            for outcome in found.outcomes[:OUTCOMES]
            for measure in found.strongest(outcome)[:MEASURES]
        ]
        blocks.append(Panels(plots))
    columns = value_columns(study.main.frame)
    x = study.measures[0] if study.measures else columns[0]
    y = study.outcomes[0]
    if found is not None and found.strongest(y):
        x = found.strongest(y)[0]
    caption = (
        f"Any column against any other, n = {len(study.main)} models. Axes are logarithmic where all values are positive and "
        f"span more than two decades."
    )
    blocks.append(
        Plot("explorer", {"x": x, "y": y}, caption, kind="explorer", title="Set any two against each other", height=440)
    )
    return Section("scatter", "Model by model", blocks)


def _caption(found: Associations, measure: str, outcome: str) -> str:
    f = found.finding(measure, outcome)
    c = f.correlation
    bounds = "" if c.low is None or c.high is None else f" [{c.low:.2f}, {c.high:.2f}]"
    adjusted = (
        "" if f.adjusted_p is None else f", adjusted p {'< 0.001' if f.adjusted_p < 0.001 else f'= {f.adjusted_p:.2g}'}"
    )
    return f"{c.symbol} = {c.value:.2f}{bounds}{adjusted}, n = {c.n}.".replace("-", "−")
