"""Workers that begin at once, for tests of what is done with them."""

from __future__ import annotations

import pytest
from store_processes import ForkedWorker

from landscope.studies.executors import local


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "subprocess", ForkedWorker)
