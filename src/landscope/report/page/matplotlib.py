"""The report's figures for a paper: PNG, SVG and PDF by matplotlib, text kept as text.

    forest         every measure against every outcome, with intervals
    correlations   the same numbers as a heat map
    scatter        the strongest measures (columns) against the outcomes (rows), conditions by colour
    axes           outcomes along an axis of numbers
    checkpoints    measures and outcomes over the steps at which they were measured
    over-loss      measures over the training loss at those steps
    reliability    confidence against accuracy, before and after temperature scaling where both were measured
    spectra        densities of eigenvalues
    landscape      lines of equal loss, train beside test
    training       what the histories tell, along epochs or steps

A figure without data is not made.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from landscope.analysis.coefficients import Method
from landscope.core.errors import UnknownNameError
from landscope.core.files import writing
from landscope.report.data.associations import Associations, associate
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.static_correlations import draw_correlations, draw_forest, draw_scatter
from landscope.report.page.static_histories import draw_training
from landscope.report.page.static_models import draw_axes, draw_landscapes, draw_reliability, draw_spectra
from landscope.report.page.static_through_training import draw_over_loss, draw_through_training
from landscope.studies.record import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "figures", "pictures"]

FORMATS = ("png", "svg", "pdf")
SCREEN = 110
"""Dots per inch of figures inside a page."""
PALETTE = 256
SETTINGS = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "landscope",
    "font.size": 8,
    "axes.titlesize": 8,
}


def figures(
    records: Sequence[Record],
    folder: str | os.PathLike[str],
    formats: Sequence[str] = FORMATS,
    *,
    measures: Sequence[str] | None = None,
    outcomes: Sequence[str] | None = None,
    method: Method = "kendall",
    checkpoint: str | None = None,
) -> list[Path]:
    """Draw every figure for which there is data and return the files.

    Args:
        records: the runs of a study.
        folder: where to; made where it is not there.
        formats: of "png", "svg", "pdf".
        measures: columns, such as "train.hessian_trace"; by default everything measured on the training rows.
        outcomes: columns, such as "test.error"; by default all held-out errors.
        method: "kendall", "spearman" or "pearson".
        checkpoint: of which models: "final", "best", …; by default of those that most runs have.
    """
    for name in formats:
        if name not in FORMATS:
            raise UnknownNameError.among("format", name, FORMATS)
    study = Cohorts.of(records, measures, outcomes, checkpoint)
    found = associate(study, study.main, method, given=None)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in _drawn(study, found):
        for suffix in formats:
            path = target / f"{name}.{suffix}"
            # No date: the same study gives the same file.
            about = {"png": {"Software": "Landscope"}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[suffix]
            with writing(path, flush=False) as aside:
                figure.savefig(aside, format=suffix, dpi=200, metadata=about)
            written.append(path)
    return written


def pictures(study: Cohorts, found: Associations | None) -> dict[str, bytes]:
    """Every figure for which there is data as a small PNG, by its name."""
    shown = {}
    for name, figure in _drawn(study, found):
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=SCREEN, bbox_inches="tight")
        shown[name] = _with_palette(content)
    return shown


def _with_palette(content: io.BytesIO) -> bytes:
    """The PNG with its 256 commonest colours: a third of the bytes, and to the eye the same."""
    from PIL import Image  # Pillow comes with matplotlib

    few = Image.open(content).convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE)
    smaller = io.BytesIO()
    few.save(smaller, "png", optimize=True)
    return smaller.getvalue()


def _drawn(study: Cohorts, found: Associations | None) -> Iterator[tuple[str, Figure]]:
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):  # type: ignore[arg-type]
        for name, draw in _drawings(study, found).items():
            figure = draw()
            if figure is not None:
                figure.draw_without_rendering()
                figure.set_layout_engine("none")  # it has found its places; they need not be sought for every format
                yield name, figure


def _drawings(study: Cohorts, found: Associations | None) -> dict[str, Callable[[], Figure | None]]:
    correlated: dict[str, Callable[[], Figure | None]] = {}
    if found is not None:
        correlated = {
            "forest": lambda: draw_forest(found),
            "correlations": lambda: draw_correlations(found),
            "scatter": lambda: draw_scatter(study, found),
        }
    return correlated | {
        "axes": lambda: draw_axes(study),
        "checkpoints": lambda: draw_through_training(study),
        "over-loss": lambda: draw_over_loss(study),
        "reliability": lambda: draw_reliability(study),
        "spectra": lambda: draw_spectra(study),
        "landscape": lambda: draw_landscapes(study),
        "training": lambda: draw_training(study),
    }
