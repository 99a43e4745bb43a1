"""The one call of a study's report: every measure against every outcome, with adjusted p-values and intervals."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import pandas as pd

from landscope.analysis.coefficients import Method
from landscope.analysis.conditions import between, partial_between
from landscope.analysis.correlation import Correlation, correlation
from landscope.analysis.findings import Finding, Rules, adjust
from landscope.analysis.granulated import granulated_kendall
from landscope.analysis.inputs import Resampling, column_of
from landscope.analysis.partial import partial_correlation
from landscope.core.errors import OperandError, UnknownNameError

DEFAULT_RULES = Rules()


# What `correlate` returns: a finding for every measure and outcome, as a frame, plain values or sentences.


@dataclass(frozen=True)
class CorrelationTable:
    """A finding for every measure and outcome; `table["igs", "ece"]` is one of them."""

    findings: tuple[Finding, ...]
    method: Method
    rules: Rules
    group: str | None = None
    given: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()

    def __getitem__(self, key: tuple[str, str]) -> Finding:
        measure, outcome = key
        for kind, name, known in (
            ("measure", measure, {f.measure for f in self.findings}),
            ("outcome", outcome, {f.outcome for f in self.findings}),
        ):
            if name not in known:
                raise UnknownNameError.among(kind, name, known)
        return next(f for f in self.findings if (f.measure, f.outcome) == key)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def sentence(self, measure: str, outcome: str) -> str:
        """What was found about the two, and how certain it is, in plain words."""
        return self[measure, outcome].sentence(self.rules, self.group or "", " and ".join(self.given))

    def to_frame(self) -> pd.DataFrame:
        """One row per measure and outcome; what is not known is missing, and `status` and `reason` say why."""
        records = []
        for f in self.findings:
            c = f.correlation
            record: dict[str, object] = {
                "measure": f.measure,
                "outcome": f.outcome,
                "method": c.method,
                "value": c.value,
                "low": c.low,
                "high": c.high,
                "p_value": c.p_value,
                "adjusted_p": f.adjusted_p,
                "weak_adjusted_p": f.weak_adjusted_p,
                "family": f.family,
                "n": c.n,
                "unit": c.unit,
                "runs": c.n if c.models is None else c.models,
                "dropped": c.dropped,
                "verdict": f.verdict(self.rules),
                "p_method": c.p_method,
                "status": c.status,
                "reason": c.reason,
            }
            for name, part in (("within", f.within), ("partial", f.partial)):
                if part is not None:
                    record |= {name: part.value, f"{name}_low": part.low, f"{name}_high": part.high}
                    record[f"{name}_p"] = part.p_value
            if f.within is not None:
                record |= {"within_adjusted_p": f.within_adjusted_p, "paradox": f.paradox(self.rules)}
            if f.partial is not None:
                record["partial_adjusted_p"] = f.partial_adjusted_p
            if f.granulated is not None:
                g = f.granulated
                record |= {"granulated": g.value, "granulated_low": g.low, "granulated_high": g.high}
                record |= {"granulated_p": g.p_value, "granulated_steady": g.steady}
            records.append(record)
        return pd.DataFrame(records)

    def to_dict(self) -> dict[str, object]:
        """Every finding with its sentence, and the rules, as plain values."""
        return {
            "method": self.method,
            "alpha": self.rules.alpha,
            "adjustment": self.rules.adjustment,
            "relevant": self.rules.relevant,
            "group": self.group,
            "given": list(self.given),
            "axes": list(self.axes),
            "findings": [
                f.to_dict()
                | {
                    "verdict": f.verdict(self.rules),
                    "paradox": f.paradox(self.rules),
                    "sentence": self.sentence(f.measure, f.outcome),
                }
                for f in self.findings
            ],
        }


def correlate(
    frame: pd.DataFrame,
    measures: Sequence[str],
    outcomes: Sequence[str],
    *,
    method: Method = "kendall",
    families: Mapping[str, Sequence[str]] | None = None,
    group: str | None = None,
    given: str | Sequence[str] | None = None,
    errors: pd.DataFrame | None = None,
    axes: Sequence[str] = (),
    rules: Rules = DEFAULT_RULES,
    **resampling: Unpack[Resampling],
) -> CorrelationTable:
    """Every measure against every outcome, over a frame with one row per model.

    Args:
        frame: one row per model.
        measures: columns of what was measured.
        outcomes: columns that the measures may correlate with.
        method: "kendall", "spearman" or "pearson".
        families: {name: columns of measures or outcomes}. Tests whose measures are of the same family and whose outcomes are of
            the same family are adjusted together; without families, all of them.
        group: a column of conditions. Where there are several, they are the units: their means are correlated, and the
            correlation inside conditions is added. Without it every model counts as independent of the others.
        given: column(s) to account for, such as the training loss: the partial correlation is added.
        errors: standard errors of the columns in `given`, under their names and in the same rows.
        axes: columns of hyper-parameters: the granulated Kendall coefficient is added.
        rules: the level, the adjustment, and the smallest coefficient that would matter.
        resampling: confidence, permutations and seed, as for `correlation`.

    Cost: milliseconds per test; up to 0.1 s with ties or inside conditions.

    >>> gap = [0, 1, 3, 2, 4, 5, 6, 8, 7, 9, 10, 11]
    >>> frame = pd.DataFrame({"sharpness": range(12), "gap": gap, "ece": [0, 5, 1, 4, 2, 3] * 2})
    >>> table = correlate(frame, ["sharpness"], ["gap", "ece"])
    >>> table.sentence("sharpness", "gap")
    'Higher sharpness goes with higher gap: τ = 0.94 (95% interval ...), ... after adjusting for 2 tests, n = 12 models.'
    >>> table["sharpness", "ece"].verdict(table.rules)
    'undecided'
    """
    covariates = [given] if isinstance(given, str) else list(given or ())
    for names, kind in ((measures, "measures"), (outcomes, "outcomes")):
        if isinstance(names, str) or not names or len(set(names)) < len(names):
            raise OperandError(f"{kind} must be a list of different columns, at least one, got {names!r}")
    columns = {name: column_of(frame, name) for name in [*measures, *outcomes, *covariates]}
    labels = None if group is None else column_of(frame, group)
    conditions = labels if labels is not None and labels.nunique() > 1 else None
    wrong = {name: column_of(errors, name) for name in covariates} if errors is not None else None
    family = _families(families or {}, measures, outcomes)
    plain = functools.partial(correlation, method=method, **resampling)
    confidence = resampling.get("confidence", 0.95)

    def found(m: str, o: str) -> Finding:
        if m == o:
            same = Correlation.undefined("they are the same column", n=len(frame), method=method)
            return Finding(m, o, same, family(m, o), 0, None)
        x, y = columns[m], columns[o]
        rest = {name: columns[name] for name in covariates}
        partial = None
        if covariates and conditions is None:
            partial = partial_correlation(x, y, rest, method, errors=wrong, confidence=confidence)
        elif covariates:
            partial = partial_between(x, y, rest, conditions, method, errors=wrong, confidence=confidence)
        return Finding(
            m,
            o,
            plain(x, y) if conditions is None else between(x, y, conditions, method, **resampling),
            family(m, o),
            tests=0,
            adjusted_p=None,
            within=None if conditions is None else plain(x, y, within=conditions),
            partial=partial,
            granulated=granulated_kendall(frame, m, o, axes, confidence=confidence) if axes else None,
        )

    table = [found(m, o) for m in measures for o in outcomes]
    return CorrelationTable(_adjusted(table, rules), method, rules, group, tuple(covariates), tuple(axes))


def _families(
    families: Mapping[str, Sequence[str]], measures: Sequence[str], outcomes: Sequence[str]
) -> Callable[[str, str], str]:
    """The family of a test, from those of its measure and its outcome."""
    of_column: dict[str, str] = {}
    for family, names in families.items():
        for name in names:
            if name not in (*measures, *outcomes):
                raise UnknownNameError.among(f"column in the family {family!r}", name, [*measures, *outcomes])
            if name in of_column:
                raise OperandError(f"{name!r} is in the families {of_column[name]!r} and {family!r}; leave it in one")
            of_column[name] = family
    if not families:
        return lambda measure, outcome: "all"
    return lambda m, o: f"{of_column.get(m, 'other measures')} × {of_column.get(o, 'outcomes')}"


def _adjusted(findings: list[Finding], rules: Rules) -> tuple[Finding, ...]:
    """The findings with p-values adjusted inside their families; each kind of test among themselves."""
    labels = [f.family for f in findings]
    plain, within, partial = (
        adjust([None if part is None else part.p_value for part in parts], rules.adjustment, labels)
        for parts in zip(*((f.correlation, f.within, f.partial) for f in findings), strict=True)
    )
    effects = [f.correlation.effect for f in findings]
    small = [None if effect is None else effect.equivalence_p(rules.relevant) for effect in effects]
    weak = adjust(small, rules.adjustment, labels)
    sizes = Counter(f.family for f in findings if f.correlation.p_value is not None)
    return tuple(
        replace(f, tests=sizes[f.family], adjusted_p=p, weak_adjusted_p=s, within_adjusted_p=w, partial_adjusted_p=q)
        for f, p, s, w, q in zip(findings, plain, weak, within, partial, strict=True)
    )
