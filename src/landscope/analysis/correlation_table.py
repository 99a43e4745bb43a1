"""What `correlate` returns: a finding for every measure and outcome, as a frame, plain values or sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from landscope.analysis.coefficients import Method
from landscope.analysis.findings import Finding, Rules
from landscope.core.errors import UnknownNameError

__all__ = ["CorrelationTable"]


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
        """How sure one can be that the two go together, in plain words."""
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
                "family": f.family,
                "n": c.n,
                "dropped": c.dropped,
                "verdict": f.verdict(self.rules),
                "p_method": c.p_method,
                "interval": c.interval,
                "status": c.status,
                "reason": c.reason,
            }
            for name, part in (("within", f.within), ("partial", f.partial)):
                if part is not None:
                    record |= {name: part.value, f"{name}_low": part.low, f"{name}_high": part.high}
                    record[f"{name}_p"] = part.p_value
            if f.within is not None:
                record["paradox"] = f.paradox
            if f.partial is not None:
                record["partial_adjusted_p"] = f.partial_adjusted_p
            if f.granulated is not None:
                g = f.granulated
                record |= {"granulated": g.value, "granulated_low": g.low, "granulated_high": g.high}
            records.append(record)
        return pd.DataFrame(records)

    def to_dict(self) -> dict[str, object]:
        """Plain values only, with the sentences."""
        return {
            "method": self.method,
            "alpha": self.rules.alpha,
            "adjustment": self.rules.adjustment,
            "relevant": self.rules.relevant,
            "group": self.group,
            "given": list(self.given),
            "axes": list(self.axes),
            "findings": [
                f.to_dict() | {"verdict": f.verdict(self.rules), "sentence": self.sentence(f.measure, f.outcome)}
                for f in self.findings
            ],
        }
