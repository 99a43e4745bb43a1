"""Networks of the user's own in studies, whatever holds their predictions; and weights, wherever they lie."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from study_runs import do_here

from landscope.studies.study import Study
from landscope.studies.work.run import _are_same

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


class Elsewhere:
    """Weights on a graphics card: torch compares them with none on the processor, until they are brought there."""

    def __init__(self, value: torch.Tensor) -> None:
        self._value = value

    def cpu(self) -> torch.Tensor:
        return self._value


def test_weights_of_two_devices_are_compared_in_one_place() -> None:
    here, other = {"w": torch.arange(3.0)}, {"w": torch.ones(3)}
    there: dict[str, Any] = {"w": Elsewhere(torch.arange(3.0))}
    with pytest.raises(TypeError):
        torch.equal(there["w"], here["w"])
    assert _are_same(there, here)
    assert _are_same(here, there)
    assert not _are_same(there, other)
    assert not _are_same(there, {"v": here["w"]})
