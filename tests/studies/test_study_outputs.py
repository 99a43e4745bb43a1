"""Networks of the user's own in studies: whatever holds their predictions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from study_runs import do_here

from landscope.studies.study import Study

MODULE = """\
from types import SimpleNamespace

from torch import nn


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(2, 2)

    def forward(self, x):
        return SimpleNamespace(loss=None, logits=self.inside(x))
"""


def test_a_network_that_returns_more_than_its_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrapped_logits.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "wrapped_logits", None)  # so that it is gone afterwards
    del sys.modules["wrapped_logits"]
    spec = {
        "name": "wrapped",
        "training": {"data": "circles", "model": "wrapped_logits:Wrapped", "epochs": 1, "batch_size": 20},
        "seeds": 1,
        "measuring": {"temperature": "both", "splits": {"train": ["loss"], "test": ["error", "ece"]}},
    }
    study = do_here(Study.of(spec, tmp_path / "study"))
    (record,) = study.records()
    assert len(record.subjects) == 2
    assert len({one.reports["test"]["error"].value for one in record.subjects}) == 1
