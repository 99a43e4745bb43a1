"""Where the things live that golden files are made with; nothing else here imports the package. Edit it when they move."""

from __future__ import annotations

import landscope
from landscope import AS_PUBLISHED, MEASURES, measure, train, train_pool
from landscope.analysis.coefficients import COEFFICIENTS
from landscope.cli import app
from landscope.data import CORRUPTIONS, corrupt, load
from landscope.data.dataset import DATASETS
from landscope.data.sets.functions import TEST_FUNCTIONS
from landscope.measures.invariance import TRANSFORMATIONS
from landscope.models import MODELS
from landscope.planes.slices import NORMALISATIONS
from landscope.probe.loss.losses import LOSSES
from landscope.recipes import RECIPES, load_bundle, results_page, study_as_kept, take_over
from landscope.recipes.results_text import part_of
from landscope.report import Claim, ReportOptions, write_report
from landscope.specs.schema import to_plain
from landscope.spectra.eigen import ends as ENDS
from landscope.studies.executors import EXECUTORS
from landscope.studies.grid import runs_of
from landscope.studies.spec import StudySpec
from landscope.studies.store.identity import SCHEMA, legacy_keys, run_key
from landscope.studies.study import Study
from landscope.training import Callback, TrainingSpec

__all__ = [
    "EXECUTORS",
    "MEASURES",
    "MODULE",
    "RECIPES",
    "REGISTRIES",
    "SCHEMA",
    "Callback",
    "Claim",
    "ReportOptions",
    "Study",
    "StudySpec",
    "TrainingSpec",
    "app",
    "corrupt",
    "landscope",
    "legacy_keys",
    "load",
    "load_bundle",
    "measure",
    "part_of",
    "published_measures",
    "results_page",
    "run_key",
    "runs_of",
    "study_as_kept",
    "take_over",
    "to_plain",
    "train",
    "train_pool",
    "write_report",
]

MODULE = "landscope"
"""What `python -m` runs."""

REGISTRIES = {
    "measure": MEASURES,
    "preset": AS_PUBLISHED,
    "model": MODELS,
    "data set": DATASETS,
    "corruption": CORRUPTIONS,
    "test function": TEST_FUNCTIONS,
    "loss": LOSSES,
    "executor": EXECUTORS,
    "recipe": RECIPES,
    "correlation": COEFFICIENTS,
    "normalisation of directions": NORMALISATIONS,
    "function-preserving transformation": TRANSFORMATIONS,
    "end of the spectrum": ENDS,
}


def published_measures() -> dict[str, object]:
    """The measures of every preset, as published and corrected, under names that say which."""
    return {
        f"{preset} {kind} {name}": one
        for preset in AS_PUBLISHED
        for kind in ("measures", "corrected")
        for name, one in getattr(AS_PUBLISHED[preset], kind).items()
    }
