"""The report without script: text, tables and figures as they stand; a tenth of a megabyte or two instead of five.

For places that keep many reports, such as a repository. Figures that only the script draws are left out.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace

from landscope.report.section import Block, Panels, Picture, Plot, Prose, Section

__all__ = ["lightened"]

FIGURES: Mapping[str, Mapping[str, str]] = {
    "axes": {"axes": "Outcomes along an axis: mean and standard deviation over models."},
    "through-training": {
        "checkpoints": "Over the steps at which models were measured: median of each condition, and from its smallest to its "
        "largest model where conditions are few.",
        "over-loss": "Measures over the training loss at those steps: medians of each condition, a point for each step, the "
        "last one larger.",
    },
    "correlations": {
        "forest": "Every measure against every outcome, with 95 % intervals.",
        "correlations": "The same correlations at a glance.",
    },
    "scatter": {"scatter": "The strongest measures against the outcomes, a point for each model."},
    "calibration": {"reliability": "Confidence against accuracy: all models of a condition together."},
    "spectra": {"spectra": "Densities of the eigenvalues of the Hessian."},
    "landscapes": {
        "landscape": "Lines of equal loss in a filter-normalised plane through the weights, all on one scale."
    },
    "training": {
        "training": "Training curves: a line for every model; with many, mean and standard deviation of each condition."
    },
}
"""Which of the drawn figures belong to a section, with their captions."""
SCRIPTED = "every-model"
"""The section that nothing is in without the script."""


def lightened(sections: Sequence[Section], pictures: Mapping[str, bytes]) -> list[Section]:
    """The sections with pictures for plots; those that are empty then are left out.

    >>> [section] = lightened([Section("scatter", "Model by model", [Plot("a", {}, "")])], {"scatter": b"PNG"})
    >>> section.blocks[0].source
    'data:image/png;base64,UE5H'
    """
    found = []
    for section in sections:
        drawn = [
            Picture(f"data:image/png;base64,{base64.b64encode(pictures[name]).decode()}", caption)
            for name, caption in FIGURES.get(section.key, {}).items()
            if name in pictures
        ]
        rest = [block for block in section.blocks if not _scripted(block)]
        if section.key != SCRIPTED and (drawn or rest):
            found.append(replace(section, blocks=[*drawn, *rest]))
    return found


def _scripted(block: Block) -> bool:
    return isinstance(block, Plot | Panels) or (isinstance(block, Prose) and block.scripted)
