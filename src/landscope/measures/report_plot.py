"""The figure of a report: a table of estimates in, a figure out."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from landscope.core.estimate import Estimate, Plain
from landscope.spectra import Spectrum

__all__ = ["plot_report"]

INK, ACCENT, NEGATIVE = "#222222", "#1f5fa8", "#b5442e"


def plot_report(estimates: Mapping[str, Estimate], about: Mapping[str, Plain]) -> Figure:
    """|value| with both error bars for each measure, most sharply different scales side by side on a log axis."""
    shown = {name: e for name, e in estimates.items() if e.status.has_value and e.value != 0}
    spectra = {name: e for name, e in estimates.items() if "offdiagonal" in e.details}
    drawn = "hessian_spectrum" if "hessian_spectrum" in spectra else next(iter(spectra), "")
    spectral = spectra.get(drawn)
    height = max(3.0, 0.27 * len(shown) + 1.4)
    figure = Figure(figsize=(7.5 if spectral is None else 13.0, height), layout="constrained")
    axes = figure.subplots(1, 1 if spectral is None else 2, squeeze=False)[0]
    left = axes[0]
    for row, estimate in enumerate(shown.values()):
        size, colour = abs(estimate.value), ACCENT if estimate.value > 0 else NEGATIVE
        for error, width, shade in ((estimate.data_stderr, 6.0, 0.25), (estimate.stderr, 1.6, 1.0)):
            if error:
                low, high = max(size - 2 * error, size * 1e-2), size + 2 * error
                left.plot([low, high], [row, row], lw=width, color=colour, alpha=shade, solid_capstyle="butt")
        left.plot(size, row, "o", ms=4, color=colour)
    left.set_xscale("log")
    left.set_yticks(range(len(shown)), list(shown))
    left.invert_yaxis()
    left.grid(axis="x", color="#dddddd", lw=0.6)
    left.set_axisbelow(True)
    left.set_xlabel("|value|, with two standard errors: thin the estimator's, wide the data's; red: negative")
    left.set_title(
        f"{about.get('model', '')}: {about.get('parameters', '')}, {about.get('samples', '')}", loc="left", fontsize=10
    )
    if spectral is not None:
        Spectrum.from_dict(spectral.details).plot(ax=axes[1])
        axes[1].set_title(drawn, loc="left", fontsize=10)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=INK, labelsize=8)
    return figure
