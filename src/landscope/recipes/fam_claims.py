"""What the fourth paper says, put to the test: one-sided rank-sum tests between conditions, over seeds (`verdicts`).

κ falls with the training loss, which stands beside it. Of a penalty that keeps a network from learning, in one seed even, it
is not said that its networks are flatter or that they overfit less. Where runs failed (weights became NaN) those that are left
are no fair sample: nothing is said but how many failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from landscope.core.text import counted
from landscope.recipes.fam_conditions import AS_CODED, WEAKER
from landscope.recipes.fam_timing_part import TIMING, timing_claims
from landscope.recipes.recipe import FAILED, Claim
from landscope.recipes.verdicts import Comparison, all_larger

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims_of"]

SHOWN = 5
"""Values of a condition that are listed one by one; of more, the mean."""
FACTOR, MORE = 1.5, 0.2
"""A network whose training loss is so many times the mean of plain training, and so much more, has not learnt what that has."""
BEST = {"cifar10": "fam", "cifar10-tenth": "fam", "classes100": "fam", "svhn": "sam", "fashion-mnist": "sam"}
"""The most accurate method of each task in table 1; plain training is always the least."""
SCORES = {"Dice score": ("dsc", 1), "Hausdorff distance": ("hd", -1), "its 95 % quantile": ("hd95", -1)}
"""Of table 2, and which direction is better."""
SETS = {"shapes": "", "shapes_shifted": ", other defects"}
KAPPA = "train.relative_flatness"
KAPPA_LAYERWISE = "train.relative_flatness_layerwise"
CODED = f"fam {AS_CODED}"
WORDS = {
    "baseline": "plain training",
    "sam": "SAM",
    "fam": "FAM with its whole gradient",
    CODED: "FAM as coded",
    WEAKER: "FAM with its whole gradient and the λ of the code",
}
SWEPT = re.compile(r"fam (?P<strength>[\d.e-]+)(?P<coded> as coded)?")


@dataclass(frozen=True)
class _Values:
    """One column of one condition at one set of weights: an end of a comparison."""

    condition: str
    column: str
    checkpoint: str = "final"

    def of(self, table: pd.DataFrame) -> list[float]:
        """The values that are there."""
        return list(self.by_run(table).values())

    def by_run(self, table: pd.DataFrame) -> dict[str, float]:
        """The same, and of which run each is."""
        if self.column not in table:
            return {}
        rows = table[(table["condition"] == self.condition) & (table["checkpoint"] == self.checkpoint)]
        return {str(run): float(value) for run, value in rows.set_index("run")[self.column].dropna().items()}


@dataclass(frozen=True)
class _Part:
    """The table of a part, and how claims are asked of it."""

    name: str
    table: pd.DataFrame

    @property
    def conditions(self) -> list[str]:
        """Those that were run; of some perhaps every run failed."""
        return list(dict.fromkeys([*self.table["condition"], *self.failed]))

    @property
    def failed(self) -> Mapping[str, int]:
        """How many runs of a condition left no record."""
        return self.table.attrs.get(FAILED, {})

    def has(self, *conditions: str) -> bool:
        """Whether all of the conditions were run."""
        return set(conditions) <= set(self.conditions)

    def failures(self, conditions: Iterable[str]) -> list[str]:
        """What is to be said of runs that left no record."""
        runs = self.table.groupby("condition")["run"].nunique()
        return [
            f"of {_in_words(name).rstrip(',')} {count} of {counted(count + int(runs.get(name, 0)), 'run')} failed"
            for name in dict.fromkeys(conditions)
            if (count := self.failed.get(name, 0))
        ]

    def claim(self, text: str, larger: Mapping[str, tuple[_Values, _Values]]) -> Claim:
        """The claim that in every pair the first is larger than the second; untold where runs failed."""
        ends = [(first.of(self.table), second.of(self.table)) for first, second in larger.values()]
        compared = [
            Comparison.of_pairs(first.by_run(self.table), second.by_run(self.table))
            if first.condition == second.condition
            else Comparison.of(a, b)
            for (first, second), (a, b) in zip(larger.values(), ends, strict=True)
        ]
        texts = [
            f"{name + ': ' if name else ''}{_listed(a)} against {_listed(b)}{f', {comparison}' if a and b else ''}"
            for name, (a, b), comparison in zip(larger, ends, compared, strict=True)
        ]
        used = {(end.condition, end.checkpoint): None for pair in larger.values() for end in pair}
        failures = self.failures(condition for condition, _ in used)
        rows = [row in used for row in zip(self.table["condition"], self.table["checkpoint"], strict=True)]
        return Claim(
            text=f"{self.name}: {text}",
            verdict="cannot be told" if failures else all_larger(compared),
            why="; ".join([*texts, *failures]),
            part=self.name,
            records=tuple(dict.fromkeys(self.table[rows]["run"])),
        )


def _listed(values: Sequence[float]) -> str:
    if not values:
        return "nothing"
    if len(values) > SHOWN:
        return f"{sum(values) / len(values):.4g} (mean of {len(values)})"
    return ", ".join(f"{value:.4g}" for value in values)


def claims_of(tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Every claim that the tables of the parts allow."""
    found: list[Claim] = []
    for name, table in tables.items():
        if name == TIMING:
            found += timing_claims(table)
        if table.empty or "baseline" not in set(table["condition"]):
            continue
        part = _Part(name, table)
        if name in BEST:
            found += [*_accuracy(part), *_flatter(part, ("fam", CODED, WEAKER), KAPPA), *_whole_or_coded(part)]
        elif name == "skulls":
            found += _shapes(part)
        elif name == "rte":
            found += _text(part)
    return found


def _accuracy(part: _Part) -> list[Claim]:
    """Table 1: FAM and SAM against plain training, and FAM against SAM."""
    column = "test.accuracy"
    ranks = [("sam", "baseline")]
    for fam in ("fam", CODED, WEAKER):
        ranks += [(fam, "baseline"), (fam, "sam") if BEST[part.name] == "fam" else ("sam", fam)]
    return [
        part.claim(
            f"{WORDS[better]} is more accurate than {WORDS[worse]}",
            {"test accuracy": (_Values(better, column), _Values(worse, column))},
        )
        for better, worse in ranks
        if part.has(better, worse)
    ]


def _flatter(part: _Part, fams: Sequence[str], kappa: str) -> list[Claim]:
    """Whether the penalty does what it is there for."""
    return [
        _if_learnt(
            part,
            part.claim(
                f"{_in_words(fam)} ends at flatter weights than plain training",
                {"κ of plain training and with it": (_Values("baseline", kappa), _Values(fam, kappa))},
            ),
            "baseline",
            fam,
        )
        for fam in fams
        if part.has(fam) and kappa in part.table
    ]


def _if_learnt(part: _Part, claim: Claim, *conditions: str) -> Claim:
    """The claim with the training losses of its conditions beside it; untold where one of their networks has not learnt."""
    losses = {condition: _Values(condition, "train.loss").of(part.table) for condition in ("baseline", *conditions)}
    if not all(losses.values()):
        return claim
    means = {condition: sum(own) / len(own) for condition, own in losses.items()}
    why = f"{claim.why}; mean training loss {' against '.join(f'{means[name]:.3g}' for name in conditions)}"
    plain = means["baseline"]
    stuck = {name: sum(loss > FACTOR * plain and loss - plain > MORE for loss in losses[name]) for name in conditions}
    told = [
        f"{count} of {len(losses[name])} with {_in_words(name).rstrip(',')}" for name, count in stuck.items() if count
    ]
    if told:
        why += f": networks that have not learnt what plain training learns: {', '.join(told)}"
        return replace(claim, verdict="cannot be told", why=why)
    return replace(claim, why=why)


def _in_words(condition: str) -> str:
    """A condition as it stands in a sentence.

    >>> _in_words("fam 0.02 as coded"), _in_words("sam")
    ('FAM as coded, λ = 0.02,', 'SAM')
    """
    swept = SWEPT.fullmatch(condition)
    if swept is None:
        return WORDS.get(condition, condition)
    return f"{WORDS[CODED if swept['coded'] else 'fam']}, λ = {swept['strength']},"


def _whole_or_coded(part: _Part) -> list[Claim]:
    """What the paper could not ask: is the method of its text another one than that of its code, and by its gradient alone?"""
    found = []
    for whole, where in (("fam", ""), (WEAKER, ", with the λ of the code,")):
        for what, column, first, second in (
            ("more accurate", "test.accuracy", whole, CODED),
            ("flatter", KAPPA, CODED, whole),
        ):
            if column in part.table and part.has(whole, CODED):
                text = f"FAM is {what} with its whole gradient{where} than as coded (not a claim of the paper)"
                ends = (_Values(first, column), _Values(second, column))
                claim = part.claim(text, {f"{WORDS[first]} and {WORDS[second]}": ends})
                found.append(_if_learnt(part, claim, first, second) if column == KAPPA else claim)
    return found


def _shapes(part: _Part) -> list[Claim]:
    """Table 2. The two kinds of FAM are asked about one by one, all λ together."""
    found: list[Claim] = []
    for kind, words in (("", WORDS["fam"]), (" as coded", WORDS[CODED])):
        swept = [(match, name) for name in part.conditions if (match := SWEPT.fullmatch(name))]
        names = {f"λ = {match['strength']}": name for match, name in swept if (match["coded"] or "") == kind}
        if not names:
            continue
        for score, (column, sign) in SCORES.items():
            better = {}
            for strength, name in names.items():
                for split, where in SETS.items():
                    own, plain = _Values(name, f"{split}.{column}"), _Values("baseline", f"{split}.{column}")
                    if own.column in part.table:
                        better[strength + where] = (own, plain) if sign > 0 else (plain, own)
            if better:
                of_which = "" if sign > 0 else " (that of plain training first)"
                text = f"{words} completes skulls better than plain training by {score}{of_which}, for every λ"
                found.append(part.claim(text, better))
        text = f"{words} has a higher training loss than plain training, for every λ"
        losses = {s: (_Values(name, "train.loss"), _Values("baseline", "train.loss")) for s, name in names.items()}
        found.append(part.claim(text, losses))
        found += _flatter(part, list(names.values()), KAPPA_LAYERWISE)
        if "shapes.variety" in part.table:
            strength, strongest = max(names.items(), key=lambda item: float(item[0].removeprefix("λ = ")))
            text = f"{words} with {strength} gives more nearly one shape, whatever it is shown, than plain training"
            ends = (_Values("baseline", "shapes.variety"), _Values(strongest, "shapes.variety"))
            found.append(part.claim(text, {"variety of plain training and with it": ends}))
    return [*found, *_overfitting(part)]


def _overfitting(part: _Part) -> list[Claim]:
    """What table 2 says of plain training alone."""
    table, column = part.table, "shapes.dsc"
    if column not in table:
        return []
    found = []
    half_time = next((name for name in dict.fromkeys(table["checkpoint"]) if str(name).startswith("step ")), None)
    if half_time is not None:
        ends = (_Values("baseline", column, str(half_time)), _Values("baseline", column))
        text = "plain training overfits: its Dice score is higher at half time than at the end"
        found.append(part.claim(text, {"half time and end": ends}))
    if "shapes_shifted.dsc" in table:
        ends = (_Values("baseline", column), _Values("baseline", "shapes_shifted.dsc"))
        text = "plain training does worse on other kinds of defects than on those it has seen"
        found.append(part.claim(text, {"Dice score on the known and on the other defects": ends}))
    return found


def _text(part: _Part) -> list[Claim]:
    """Table 3 and figure 3."""
    fams = [name for name in part.conditions if name.startswith("fam")]
    found = []
    for fam in fams:
        accuracy, loss = ((_Values(fam, name), _Values("baseline", name)) for name in ("test.accuracy", "test.loss"))
        found += [
            part.claim(f"{_in_words(fam)} is more accurate than plain training", {"accuracy": accuracy}),
            _if_learnt(
                part,
                part.claim(
                    f"{_in_words(fam)} ends with a lower development loss than plain training",
                    {"loss of plain training and with it": loss[::-1]},
                ),
                "baseline",
                fam,
            ),
        ]
    return [*found, *_flatter(part, fams, KAPPA)]
