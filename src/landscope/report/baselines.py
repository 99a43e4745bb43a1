"""Is a condition better than the baseline: Wilcoxon's one-sided test for every outcome, with its effect size."""

from __future__ import annotations

import pandas as pd

from landscope.analysis import RankTest, benjamini_yekutieli, wilcoxon
from landscope.core.errors import UnknownNameError
from landscope.report.cohorts import Study
from landscope.report.columns import better, label
from landscope.report.numerals import p_value
from landscope.report.section import Cell, Head, Table

__all__ = ["baseline_table"]

LEVEL = 0.05


def baseline_table(study: Study, baseline: str) -> Table | None:
    """Effect and adjusted p of every other condition and outcome; `None` where there is nothing to compare."""
    if baseline not in study.conditions:
        raise UnknownNameError.among("condition to be the baseline", baseline, study.conditions)
    outcomes = [outcome for outcome in study.outcomes if better(outcome)]
    others = [name for name in study.conditions if name != baseline]
    tests = {(name, outcome): _test(study, name, baseline, outcome) for name in others for outcome in outcomes}
    if not tests:
        return None
    adjusted = dict(zip(tests, benjamini_yekutieli([t.p_value for t in tests.values()]), strict=True))
    rows = []
    for name in others:
        cells = [Cell(name, condition=study.conditions.index(name))]
        for outcome in outcomes:
            cells += _cells(tests[name, outcome], adjusted[name, outcome])
        rows.append(cells)
    heads = [head for outcome in outcomes for head in (Head(label(outcome)), Head("adjusted p"))]
    smallest = min((t.smallest_p for t in tests.values() if t.smallest_p is not None), default=None)
    limit = "" if smallest is None else f" With so few runs no p can be below {smallest:.2g} before adjustment."
    kind = "signed-rank, pairs of equal seeds" if next(iter(tests.values())).test == "signed-rank" else "rank-sum"
    return Table(
        [Head(f"better than {baseline}?", numeric=False), *heads],
        rows,
        f"Rank-biserial effect and one-sided p of Wilcoxon's test ({kind}): +1 where every run is better than the baseline's, −1 "
        f"where every one is worse; adjusted for {len(tests)} tests.{limit if (smallest or 0) > LEVEL / len(tests) else ''}",
    )


def _test(study: Study, name: str, baseline: str, outcome: str) -> RankTest:
    """Paired by seed where both conditions have the same ones, each once."""
    frame = study.main.frame
    one, other = (
        pd.Series(
            frame.loc[frame["condition"] == c, outcome].to_numpy(), index=frame.loc[frame["condition"] == c, "seed"]
        )
        for c in (name, baseline)
    )
    paired = one.index.is_unique and other.index.is_unique and set(one.index) == set(other.index)
    return wilcoxon(one, other, "greater" if better(outcome) > 0 else "less", paired=paired)


def _cells(test: RankTest, adjusted: float | None) -> list[Cell]:
    if test.effect is None:
        return [Cell("–", mark="muted", title=test.reason), Cell("–", mark="muted")]
    towards = test.effect if test.alternative == "greater" else -test.effect
    sure = adjusted is not None and adjusted <= LEVEL
    shown = f"{towards:+.2f}".replace("-", "−")
    return [
        Cell(shown, mark="best" if sure else "", title=f"n = {test.n}, {test.p_method}"),
        Cell(p_value(adjusted).removeprefix("= ")),
    ]
