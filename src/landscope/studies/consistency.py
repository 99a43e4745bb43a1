"""How far the models of one condition agree: each model's mean disagreement with the others of its condition."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from landscope.core.errors import DamagedFileError
from landscope.core.estimate import Estimate
from landscope.core.files import check_regular
from landscope.measures import Report
from landscope.measures.consistency import disagreement
from landscope.studies.record import Record
from landscope.studies.store import Store

__all__ = ["OUTPUTS", "outputs_file", "with_consistency"]

OUTPUTS = "outputs"


def outputs_file(checkpoint: str) -> str:
    """Where a run keeps the test outputs of one of its models.

    >>> outputs_file("step 100")
    'outputs/step-100.safetensors'
    """
    return f"{OUTPUTS}/{checkpoint.replace(' ', '-')}.safetensors"


def with_consistency(records: Sequence[Record], store: Store) -> list[Record]:
    """The records, each model with its mean disagreement with the others of its condition and checkpoint.

    Nothing is added where a condition has one model, or outputs were not kept. Temperature changes no prediction.
    """
    found: dict[tuple[str, str], Estimate] = {}
    kinds = {(record.condition, subject.checkpoint) for record in records for subject in record.subjects}
    for condition, checkpoint in sorted(kinds):
        runs = [record.run for record in records if record.condition == condition]
        outputs = {run: logits for run in runs if (logits := _outputs(store, run, checkpoint)) is not None}
        if len(outputs) < 2 or len({logits.shape for logits in outputs.values()}) > 1:
            continue
        matrix = disagreement(list(outputs.values())).matrix
        others = len(outputs) - 1
        for at, run in enumerate(outputs):
            with_others = np.delete(matrix[at], at)
            spread = float(with_others.std(ddof=1)) / others**0.5 if others > 1 else 0.0
            found[run, checkpoint] = Estimate(float(with_others.mean()), spread, details={"models": others + 1})
    return [_added(record, found) for record in records]


def _added(record: Record, found: dict[tuple[str, str], Estimate]) -> Record:
    subjects = tuple(
        replace(subject, reports={**subject.reports, "consistency": Report({"disagreement": estimate})})
        if (estimate := found.get((record.run, subject.checkpoint))) is not None
        else subject
        for subject in record.subjects
    )
    return replace(record, subjects=subjects)


def _outputs(store: Store, run: str, checkpoint: str) -> Tensor | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = store.run(run).path(outputs_file(checkpoint))
    if not os.path.lexists(path):
        return None
    try:
        check_regular(path)
        logits = load_file(path)["test"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{path} is damaged: {error}. Move the run's folder away and run the study again"
        ) from error
    return logits if logits.dim() == 2 and logits.shape[1] > 1 else None
