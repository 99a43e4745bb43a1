"""Which measures of sharpness predict: the claims of our own recipe.

Every measure is asked three times, and predicts where all three have the expected sign:

    overall      Kendall's τ over the final models, p adjusted for the number of measures (Benjamini and Yekutieli)
    granulated   the interval of Ψ over all models: one axis changed at a time, averaging and the seed among them
    partial      τ given the training loss, p adjusted

Finding nothing counts as an answer only where the models were enough to show a coefficient of 0.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from landscope.analysis import (
    CorrelationTable,
    Finding,
    Granulated,
    chance_to_find,
    correlate,
    correlation,
    granulated_kendall,
)
from landscope.recipes.recipe import Claim, Verdict

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["GIVEN", "claims_of"]

GIVEN = "train.loss"
OUTCOMES = ("test.error", "test.ece")
NOT_SHARPNESS = (GIVEN, "train.error")
FLATTER_WHEN_LARGER = ("train.pac_bayes_sigma",)
FOLLOWING = ("train.igs", "train.sam_sharpness", "train.relative_flatness")
"""What the first paper plots against the training loss (figure 2)."""
CALIBRATED = ("train.relative_flatness", "train.igs")
"""What the first paper finds to fall with the calibration error."""
RESAMPLES, PERMUTATIONS = 500, 999
POWER = 0.8


@dataclass(frozen=True)
class _Models:
    """The models of a part, and what was found on them."""

    part: str
    final: pd.DataFrame
    found: CorrelationTable
    granulated: Mapping[tuple[str, str], Granulated]

    @property
    def measures(self) -> list[str]:
        """Columns, as they stand in the table."""
        return list(dict.fromkeys(finding.measure for finding in self.found))

    def finding(self, measure: str, outcome: str) -> Finding:
        """With Ψ over all models, averaged ones too."""
        return replace(self.found[measure, outcome], granulated=self.granulated[measure, outcome])

    def claim(self, text: str, verdict: Verdict, why: str) -> Claim:
        """A claim that rests on all runs of the part."""
        return Claim(
            text=f"{self.part}: {text}", verdict=verdict, why=why, part=self.part, records=tuple(self.final["run"])
        )


def claims_of(tables: Mapping[str, pd.DataFrame]) -> Sequence[Claim]:
    """For each part: whether any measure predicts, what the first paper suspects, and every measure by itself."""
    claims: list[Claim] = []
    for part in ("digits", "fashion-mnist", "cifar10"):
        models = _models(part, tables[part]) if part in tables else None
        if models is not None:
            predicting = {measure: _predicts(models, measure) for measure in models.measures}
            claims += [_any(models, predicting), *_following(models), *_calibrated(models), *predicting.values()]
    return claims


def _models(part: str, table: pd.DataFrame) -> _Models | None:
    if not {"checkpoint", GIVEN, *OUTCOMES} <= set(table):
        return None
    final = table[table["checkpoint"] == "final"]
    measures = [name for name in map(str, table) if name.startswith("train.") and name not in NOT_SHARPNESS]
    measures = [name for name in measures if final[name].notna().any()]  # some apply to no network of a part
    if not measures or final.empty:
        return None
    found = correlate(
        final,
        measures,
        OUTCOMES,
        families={outcome: [outcome] for outcome in OUTCOMES},
        given=GIVEN,
        resamples=RESAMPLES,
        permutations=PERMUTATIONS,
    )
    # averaging is an axis as well: the two models of a run differ in nothing else
    axes = [name for name in map(str, table) if name.startswith("axis.") or name in ("checkpoint", "seed")]
    granulated = {
        (measure, outcome): granulated_kendall(table, measure, outcome, axes, resamples=RESAMPLES)
        for measure in measures
        for outcome in OUTCOMES
    }
    return _Models(part, final, found, granulated)


def _signs(models: _Models, finding: Finding) -> dict[str, int | None]:
    """Of each way: +1 or −1; 0 where there is no evidence though there could be; None where it cannot be told."""
    rules, partial, ways = models.found.rules, finding.partial, finding.granulated
    signs: dict[str, int | None] = {
        "overall": _overall(finding.verdict(rules), finding.correlation.value or 0.0),
        "one axis at a time": None,
        f"given {GIVEN}": None,
    }
    if ways is not None and ways.low is not None and ways.high is not None:
        if ways.low * ways.high > 0:
            signs["one axis at a time"] = _sign(ways.low)
        elif max(-ways.low, ways.high) < rules.relevant:
            signs["one axis at a time"] = 0
    if partial is not None and partial.value is not None and finding.partial_adjusted_p is not None:
        if finding.partial_adjusted_p <= rules.alpha:
            signs[f"given {GIVEN}"] = _sign(partial.value - (partial.null_mean or 0.0))
        elif chance_to_find(rules.relevant, partial.n, rules.level(finding.tests)) >= POWER:
            signs[f"given {GIVEN}"] = 0
    return signs


def _overall(told: str, value: float) -> int | None:
    return {"goes with": _sign(value), "no evidence": 0}.get(told)


def _sign(value: float) -> int:
    return int(value > 0) - int(value < 0)


def _judged(models: _Models, measure: str, outcome: str, expected: int) -> tuple[Verdict, str]:
    """Holds where all three ways have the expected sign; where one has not, it does not hold, and which is said."""
    finding = models.finding(measure, outcome)
    signs = _signs(models, finding)
    told = finding.sentence(models.found.rules, given=GIVEN)
    ways = finding.granulated
    if ways is not None and ways.low is not None and ways.high is not None:
        each = ", ".join(f"{a.name.removeprefix('axis.')} {a.value:.2f}" for a in ways.axes if a.value is not None)
        told += f" Ψ lies in {ways.low:.2f} to {ways.high:.2f} (ψ: {each})."
    failing = {
        "the other way": [way for way, sign in signs.items() if sign == -expected],
        "no evidence": [way for way, sign in signs.items() if sign == 0],
        "cannot be told": [way for way, sign in signs.items() if sign is None],
    }
    failed = "; ".join(f"{what} {' and '.join(ways)}" for what, ways in failing.items() if ways)
    if failing["the other way"] or failing["no evidence"]:
        return "does not hold", f"{told} So: {failed}."
    return ("cannot be told", f"{told} So: {failed}.") if failed else ("holds", told)


def _predicts(models: _Models, measure: str) -> Claim:
    expected = -1 if measure in FLATTER_WHEN_LARGER else 1
    text = (
        f"{'lower' if expected < 0 else 'higher'} {measure} goes with a higher test.error: overall, with one axis changed at a "
        f"time, and given {GIVEN}"
    )
    return models.claim(text, *_judged(models, measure, "test.error", expected))


def _any(models: _Models, predicting: Mapping[str, Claim]) -> Claim:
    loss = correlation(models.final[GIVEN], models.final["test.error"], resamples=RESAMPLES)
    holding = [measure for measure, claim in predicting.items() if claim.verdict == "holds"]
    unknown = [measure for measure, claim in predicting.items() if claim.verdict == "cannot be told"]
    return models.claim(
        "some measure of sharpness predicts the test error in all three ways",
        "holds" if holding else "cannot be told" if unknown else "does not hold",
        f"{len(holding)} of {len(predicting)} measures do{': ' if holding else ''}{', '.join(holding)}; of {len(unknown)} it "
        f"cannot be told. The training loss alone and the test error: {loss}.",
    )


def _following(models: _Models) -> list[Claim]:
    """The first paper's figure 2, asked of many models."""
    shown = [measure for measure in FOLLOWING if measure in models.measures]
    if not shown:
        return []
    found = correlate(models.final, shown, [GIVEN], resamples=RESAMPLES, permutations=PERMUTATIONS)
    claims = []
    for finding in found:
        sign = _overall(finding.verdict(found.rules), finding.correlation.value or 0.0)
        verdict: Verdict = "cannot be told" if sign is None else "holds" if sign > 0 else "does not hold"
        text = f"{finding.measure} rises with the training loss, as the first paper suspects"
        claims.append(models.claim(text, verdict, finding.sentence(found.rules)))
    return claims


def _calibrated(models: _Models) -> list[Claim]:
    """The first paper's conclusion, asked of many models."""
    return [
        models.claim(
            f"sharper minima are better calibrated: higher {measure} goes with a lower test.ece, in all three ways",
            *_judged(models, measure, "test.ece", -1),
        )
        for measure in CALIBRATED
        if measure in models.measures
    ]
