"""The first paper's conclusions, asked of our models: regularisers, sharpness, calibration, temperature.

Conditions are compared, and correlations read, as in `verdicts`. Correlations are over the final models one by one; the paper's
own, over means of conditions, stand beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from landscope.analysis import Correlation, benjamini_yekutieli, correlation, wilcoxon
from landscope.core.text import counted
from landscope.recipes.recipe import Claim, Verdict
from landscope.recipes.verdicts import ALPHA, RESAMPLES, Comparison, all_larger, direction, judged

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims_of"]

PARTS = ("cifar10", "classes100")
SHARPNESS = ("fisher_rao", "relative_flatness", "sam_sharpness", "log_igs")
"""Of the preset; its weight norm is asked about by itself."""
KINDS = {"published": "as its code computed it", "corrected": "as its text defines it"}
PAPERS = {"test.ece": "test.ece_10_bins"}
"""Columns as the paper has them, where ours are others."""
CORRECTED_NAMES = {"log_igs": "igs"}
"""What is corrected is not a logarithm."""


@dataclass(frozen=True)
class _Models:
    """The models of a part: at temperature 1, at the fitted one and at that of the paper's code."""

    part: str
    before: pd.DataFrame
    after: pd.DataFrame
    coded: pd.DataFrame

    @classmethod
    def of(cls, part: str, table: pd.DataFrame) -> _Models:
        # models with the same weights come in this order
        number = table.groupby(["run", "checkpoint"]).cumcount()
        return cls(part, *(table[number == place] for place in range(3)))

    def at(self, scaled: bool) -> pd.DataFrame:
        """The final models."""
        rows = self.after if scaled else self.before
        return rows[rows["checkpoint"] == "final"]

    def seeds(self, condition: str, column: str, scaled: bool = False) -> list[float]:
        """The values of one condition's final models."""
        return _of(self.at(scaled), condition, column)

    def seeds_as_coded(self, condition: str, column: str) -> list[float]:
        """The same at the temperature of the paper's code."""
        return _of(self.coded[self.coded["checkpoint"] == "final"], condition, column)

    def paper(self, rho: str) -> str:
        """What the paper found, in brackets; it gives coefficients for CIFAR-10 only."""
        return f" (paper: ρ = {rho})" if self.part == "cifar10" else ""

    def claim(self, text: str, verdict: Verdict, why: str) -> Claim:
        """A claim that rests on all runs of the part."""
        return Claim(
            text=f"{self.part}: {text}",
            verdict=verdict,
            why=why,
            part=self.part,
            records=tuple(dict.fromkeys(self.before["run"])),
        )


def _of(rows: pd.DataFrame, condition: str, column: str) -> list[float]:
    return [] if column not in rows else rows.loc[rows["condition"] == condition, column].dropna().tolist()


def claims_of(tables: Mapping[str, pd.DataFrame]) -> Sequence[Claim]:
    """Every claim that the tables of the parts allow."""
    parts = {name: _Models.of(name, tables[name]) for name in PARTS if name in tables and not tables[name].empty}
    claims: list[Claim] = []
    for models in parts.values():
        claims += [*_errors(models), *_sharper(models), *_predicting(models), *_following(models), *_calibrated(models)]
        claims += _tempered(models)
    if len(parts) == len(PARTS):
        claims.append(_harder(parts["cifar10"], parts["classes100"]))
    return claims


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values) or "none"


def _larger(a: Sequence[float], b: Sequence[float]) -> tuple[Comparison, str]:
    """Whether a is larger than b, and that in words."""
    compared = Comparison.of(a, b)
    return compared, f"{_shown(a)} against {_shown(b)}, {compared}"


def _name(column: str) -> str:
    _, kind, name = column.split(".")
    return CORRECTED_NAMES.get(name, name) if kind == "corrected" else name


def _errors(models: _Models) -> list[Claim]:
    claims = []
    for text, better in (
        ("augmentation generalises better than no regulariser", "augmentation"),
        ("dropout generalises better than no regulariser", "dropout"),
    ):
        compared, why = _larger(models.seeds("baseline", "test.error"), models.seeds(better, "test.error"))
        claims.append(models.claim(text, all_larger([compared]), f"test error of the baseline and with it: {why}"))
    if models.part == "cifar10":  # of 100 classes the paper says that it makes no difference
        compared, why = _larger(models.seeds("weight decay", "test.error"), models.seeds("baseline", "test.error"))
        text = "weight decay of 5e-4 generalises worse than no regulariser at this learning rate"
        claims.append(models.claim(text, all_larger([compared]), f"test error with it and of the baseline: {why}"))
    return claims


def _sharper(models: _Models) -> list[Claim]:
    claims = []
    for regulariser in ("augmentation", "weight decay"):
        for kind, meaning in KINDS.items():
            columns = [c for name in SHARPNESS if (c := f"train.{kind}.{name}") in models.before]
            found = {
                _name(column): _larger(models.seeds(regulariser, column), models.seeds("baseline", column))
                for column in columns
            }
            text = f"{regulariser} gives sharper minima than no regulariser, by every measure ({meaning})"
            why = "; ".join(f"{name}: {told}" for name, (_, told) in found.items())
            claims.append(models.claim(text, all_larger([compared for compared, _ in found.values()]), why))
    return claims


def _correlated(models: _Models, x: str, y: str, scaled: bool = False) -> tuple[Correlation, str]:
    """Spearman's ρ over the final models, and in words that and what the paper's way gives, over means of conditions."""
    rows = models.at(scaled)
    found = correlation(rows[x], rows[y], "spearman", resamples=RESAMPLES)
    coded = scaled and x in models.coded and bool(models.coded[x].notna().any())
    every = models.coded if coded else models.after if scaled else models.before
    means = _means(every, ("final",) if x.endswith("igs") else ("final", "best"))
    paper = correlation(means[x], means[name if (name := PAPERS.get(y, y)) in means else y], "spearman", resamples=0)
    own = " and at its temperature" if coded else ""
    finals = f"over the final models {found}" if found.value is None else f"{found} final models"
    return found, f"{finals}; over {paper.n} means of conditions, as the paper has it{own}: {paper}"


def _means(rows: pd.DataFrame, checkpoints: Sequence[str]) -> pd.DataFrame:
    """What the paper correlates: the mean of every condition at some checkpoints."""
    rows = rows[rows["checkpoint"].isin(checkpoints)]
    return rows.groupby(["condition", "checkpoint"], sort=False).mean(numeric_only=True)


def _predicting(models: _Models) -> list[Claim]:
    claims = []
    for kind, meaning in KINDS.items():
        column = f"train.{kind}.weight_norm"
        if column in models.before:
            found, why = _correlated(models, column, "test.error")
            text = f"a larger weight norm ({meaning}) goes with a lower test error{models.paper('−0.74')}"
            claims.append(models.claim(text, judged(found, -1), why))
        columns = [c for name in SHARPNESS if (c := f"train.{kind}.{name}") in models.before]
        each = {_name(c): _correlated(models, c, "test.error")[0] for c in columns}
        adjusted = benjamini_yekutieli([c.p_value for c in each.values()])
        shown = [c for c, q in zip(each.values(), adjusted, strict=True) if direction(c, q)]
        # with so few models, finding nothing is no proof that there is nothing
        verdict: Verdict = "does not hold" if shown else "cannot be told"
        text = f"no measure of sharpness ({meaning}) goes with the test error"
        shown_q = ["" if q is None else f" (q = {q:.2g})" for q in adjusted]
        told = [f"{name}: {c}{q}" for (name, c), q in zip(each.items(), shown_q, strict=True)]
        claims.append(models.claim(text, verdict, "; ".join(told)))
    return claims


def _following(models: _Models) -> list[Claim]:
    claims = []
    for kind, meaning in KINDS.items():
        for name, rho in (("log_igs", "1.0"), ("sam_sharpness", "0.86"), ("relative_flatness", "0.67")):
            if (column := f"train.{kind}.{name}") in models.before:
                found, why = _correlated(models, column, "train.loss")
                text = f"{_name(column)} ({meaning}) rises with the training loss{models.paper(rho)}"
                claims.append(models.claim(text, judged(found, 1), why))
    return claims


def _calibrated(models: _Models) -> list[Claim]:
    compared, why = _larger(models.seeds("baseline", "test.ece"), models.seeds("augmentation", "test.ece"))
    claims = [
        models.claim(
            "augmentation is better calibrated than no regulariser, before any temperature",
            all_larger([compared]),
            f"ECE of the baseline and with it: {why}",
        )
    ]
    rhos = {("relative_flatness", False): "−0.75", ("relative_flatness", True): "−0.78"}
    rhos |= {("log_igs", False): "−0.74", ("log_igs", True): "−0.80"}
    for kind, meaning in KINDS.items():
        for (name, scaled), rho in rhos.items():
            if (column := f"train.{kind}.{name}") in models.before and not models.at(scaled).empty:
                found, why = _correlated(models, column, "test.ece", scaled)
                when = "after a temperature fitted to convergence" if scaled else "before any temperature"
                text = f"sharper minima are better calibrated: {_name(column)} ({meaning}) falls with the ECE {when}"
                text += models.paper(rho)
                claims.append(models.claim(text, judged(found, -1), why))
    return claims


def _tempered(models: _Models) -> list[Claim]:
    if models.after.empty:
        return []
    return [*_hardly(models), *_still_worse(models), *_sharpened(models)]


def _hardly(models: _Models) -> list[Claim]:
    """The paper's 29 to 31 % less ECE: its fit stopped on the way."""
    claims = []
    for condition in ("baseline", "dropout"):
        before = models.seeds(condition, "test.ece")
        ways = {
            "a temperature": [models.seeds(condition, c, scaled=True) for c in ("test.ece", "calibration.temperature")],
            "a temperature, fitted as its code does,": [
                models.seeds_as_coded(condition, c) for c in ("test.ece", "calibration.temperature")
            ],
        }
        for what, (after, fitted) in ways.items():
            if not after:
                continue
            kept = [b / a for a, b in zip(before, after, strict=True) if a] if len(before) == len(after) else []
            why = f"ECE before {_shown(before)}, after {_shown(after)} at T = {_shown(fitted)}; n = {counted(len(kept), 'model')}"
            text = f"{what} leaves more than half of the calibration error of {condition} models (paper: about 70 %)"
            claims.append(models.claim(text, _more_than_half(kept), why))
    return claims


def _more_than_half(kept: Sequence[float]) -> Verdict:
    if len(kept) < 3:
        return "cannot be told"
    return "holds" if min(kept) > 0.5 else "does not hold" if max(kept) < 0.5 else "cannot be told"


def _still_worse(models: _Models) -> list[Claim]:
    ways: dict[str, Callable[[str], list[float]]] = {
        "to convergence": lambda condition: models.seeds(condition, "test.ece", scaled=True)
    }
    if not models.coded.empty:
        ways["as its code does"] = lambda condition: models.seeds_as_coded(condition, "test.ece")
    claims = []
    for regulariser in ("augmentation", "weight decay"):
        for way, ece in ways.items():
            compared, why = _larger(ece("baseline"), ece(regulariser))
            text = f"with a temperature fitted {way}, {regulariser} is still better calibrated than no regulariser"
            claims.append(models.claim(text, all_larger([compared]), f"ECE of the baseline and with it: {why}"))
    return claims


def _sharpened(models: _Models) -> list[Claim]:
    claims = []
    for kind, meaning in KINDS.items():
        column = f"train.{kind}.relative_flatness"
        if column in models.before:
            pairs = [frame.set_index("run")[column].dropna() for frame in (models.at(True), models.at(False))]
            if not set(pairs[0].index) & set(pairs[1].index):
                continue
            test = wilcoxon(pairs[0], pairs[1], "two-sided")
            shown = test.p_value is not None and test.p_value <= ALPHA and test.effect is not None
            verdict: Verdict = (
                "cannot be told"
                if not shown or test.effect is None
                else "holds"
                if test.effect > 0
                else "does not hold"
            )
            p = "none" if test.p_value is None else f"{test.p_value:.2g}"
            why = f"signed-rank effect {test.effect if test.effect is not None else 0.0:.2f}, p = {p}, n = {test.n} models"
            text = f"a temperature makes relative flatness ({meaning}) larger: the landscape sharper"
            claims.append(models.claim(text, verdict, why))
    return claims


def _harder(easy: _Models, hard: _Models) -> Claim:
    """Section 4.2.3: more than twice as sharp with ten times the classes."""
    found = {}
    for condition in ("augmentation", "weight decay"):
        for name in ("relative_flatness", "sam_sharpness"):
            column = f"train.published.{name}"
            doubled = [2 * value for value in easy.seeds(condition, column)]
            found[f"{name} with {condition}"] = _larger(hard.seeds(condition, column), doubled)
    return hard.claim(
        "with 100 classes augmentation and weight decay are more than twice as sharp as with 10",
        all_larger([compared for compared, _ in found.values()]),
        "; ".join(f"{name}, and twice that with 10: {told}" for name, (_, told) in found.items()),
    )
