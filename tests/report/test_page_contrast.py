"""Words of a page stand out from what is behind them by WCAG's 4.5 to 1, in light and in dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import landscope.report

CSS = (Path(landscope.report.__file__).parent / "assets" / "page.css").read_text()
BLOCKS = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in re.split(r"(?=--paper: )", CSS)[1:]]
SCHEMES = [colours for colours in BLOCKS if "ink" in colours]  # not that of print, which is black on white


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", SCHEMES, ids=str)
@pytest.mark.parametrize("behind", ["paper", "raised", "best", "worst"])
@pytest.mark.parametrize("word", ["ink", "muted"])
def test_words_stand_out(colours: dict[str, str], behind: str, word: str) -> None:
    assert contrast(colours[word], colours[behind]) >= 4.5


def test_no_words_are_fainter() -> None:
    faint = re.findall(r"([^{}\n]+) \{[^}]*(?<![-\w])color: var\(--faint\)", CSS)
    assert {rule.strip() for rule in faint} <= {".findings li::marker", ".controls button:disabled"}
