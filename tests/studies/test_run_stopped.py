"""A run that is stopped while it measures keeps every estimate that it has, and ends as one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from study_runs import do_here

from landscope.core.errors import RunStoppedError
from landscope.measures import Report
from landscope.studies.record import Record
from landscope.studies.study import Study
from landscope.studies.work import attempt
from landscope.studies.work import measure as measuring

SPEC: dict[str, Any] = {
    "name": "stopped",
    "training": {"data": "circles", "model": {"name": "mlp", "widths": [4]}, "epochs": 1, "batch_size": "full"},
    "seeds": 1,
    "measuring": {
        "splits": {
            "train": ["loss", "gradient_norm", "hessian_trace", "hessian_top_eigenvalue", "adaptive_sharpness"],
            "test": ["error", "ece"],
        },
        "temperature": "both",
        "layers": True,
        "landscape": {"resolution": 5},
    },
}


def numbers(record: Record) -> object:
    """All that does not tell how long it took."""
    return [
        (
            one.checkpoint,
            one.temperature,
            {
                (split, name): (e.value, e.stderr, e.data_stderr, e.status)
                for split, report in one.reports.items()
                for name, e in report.estimates.items()
            },
            "landscape" in one.extras and one.extras["landscape"]["values"],  # type: ignore[index, call-overload]
            one.extras.get("reliability"),
        )
        for one in record.subjects
    ]


@pytest.mark.parametrize("patience", [17, 30])
def test_what_was_measured_is_kept(patience: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = do_here(Study.of(SPEC, tmp_path / "whole")).records()
    finished: list[tuple[str, ...]] = []
    original, asked = measuring.measured, 0

    def noted(*words: Any, **how: Any) -> Report:
        report = original(*words, **how)
        finished.append(tuple(report.estimates))
        return report

    def stop_requested() -> bool:
        nonlocal asked
        asked += 1
        return asked > patience

    monkeypatch.setattr(measuring, "measured", noted)
    monkeypatch.setattr(attempt, "stop_requested", stop_requested)
    monkeypatch.setattr(attempt, "request_stop", lambda: None)
    study, rounds = Study.of(SPEC, tmp_path / "stopped"), 0
    while not (records := list(study.records())):
        asked, rounds = 0, rounds + 1
        assert rounds < 40, "no round gets any further"
        try:
            do_here(study)
        except RunStoppedError:
            continue
    assert rounds > 1
    assert numbers(records[0]) == numbers(whole)
    names = [name for report in finished for name in report]
    assert len(names) == 2 * 7, "each was measured once at each temperature, and none again"
