"""Pages without script whose pictures are not drawn, for tests of their words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from landscope.report.page.blocks import Picture
from landscope.report.page.figure import Figure


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_picture(figure: Figure, conditions: Sequence[str]) -> Picture:
        return Picture("data:,", figure.caption or figure.panels[0].caption)

    monkeypatch.setattr("landscope.report.write.as_picture", as_picture)
