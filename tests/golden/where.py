"""Where the things live that golden files are made with; nothing else here imports the package. Edit it when they move."""

from __future__ import annotations

import landscope
from landscope import MEASURES, measure, train, train_pool
from landscope.analysis.coefficients import COEFFICIENTS
from landscope.cli import app
from landscope.data import CORRUPTIONS, corrupt, load
from landscope.data.dataset import DATASETS
from landscope.data.sets.functions import TEST_FUNCTIONS
from landscope.measures.invariance import TRANSFORMATIONS
from landscope.measures.resolve import resolve_measures
from landscope.models import MODELS
from landscope.papers import PAPERS, findings, load_bundle, study_as_kept, take_over
from landscope.papers.framework.appendix import part_of
from landscope.planes.slices import NORMALISATIONS
from landscope.probe.loss.losses import LOSSES
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
    "PAPERS",
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
    "findings",
    "landscope",
    "legacy_keys",
    "load",
    "load_bundle",
    "measure",
    "part_of",
    "published_measures",
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
    "model": MODELS,
    "data set": DATASETS,
    "corruption": CORRUPTIONS,
    "test function": TEST_FUNCTIONS,
    "loss": LOSSES,
    "executor": EXECUTORS,
    "paper": PAPERS,
    "correlation": COEFFICIENTS,
    "normalisation of directions": NORMALISATIONS,
    "function-preserving transformation": TRANSFORMATIONS,
    "end of the spectrum": ENDS,
}


def published_measures() -> dict[str, object]:
    """What every paper's code computed, as published and corrected, under names that say which."""
    found = {}
    for name in PAPERS:
        for key, one in PAPERS[name].measures.items():
            for kind, settings in (("measures", dict(one.published)), ("corrected", dict(one.corrected))):
                measure = settings.pop("measure")
                found[f"{name} {kind} {key}"] = resolve_measures({measure: settings})[measure]
    return {name: found[name] for name in sorted(found, key=lambda name: name.split()[0])}
