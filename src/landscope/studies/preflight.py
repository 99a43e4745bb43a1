"""Before a study runs: what it would call, and whether its inputs are here."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import redirect_stdout

from landscope.core.errors import DataFileError, MissingExtraError
from landscope.models import MODELS
from landscope.specs.canonical import canonical_json
from landscope.specs.names import is_import
from landscope.specs.schema import to_plain
from landscope.studies.store import RunState
from landscope.studies.study import Study
from landscope.training.spec import TrainingSpec
from landscope.training.task import make_task
from landscope.training.task_data import load_task_data


def functions_of(study: Study) -> dict[str, str]:
    """Every function that the study would import and call because its spec names it, and what for; nothing is run.

    >>> from landscope.studies.spec import StudySpec
    >>> spec = StudySpec(name="own", training={"data": {"name": "os:system", "command": "true"}, "model": "mlp"})
    >>> functions_of(Study(spec, "no/such/folder", imports=False))
    {'os:system': 'data'}
    """
    taken = study.spec.checkpoints
    given = [(run.training.data.name, run.training.model.name) for run in study.runs.values() if run.training]
    given += [(taken.data.name, taken.model.name)] if taken is not None else []
    named = [(name, what) for pair in given for name, what in zip(pair, ("data", "model"), strict=True)]
    named += [(name, "measure") for split in study.spec.measuring.splits.values() for name in split.own()]
    return {name: what for name, what in named if is_import(name)}


# Whether the inputs are here.
#
# A named data set is looked for when its study is made. Whether a function finds its files, or a network its package, shows only
# when it is called: here once for all runs, at the cost that each of them has at its start.


def check_inputs(study: Study, keys: Collection[str], asked: set[tuple[str, str]]) -> None:
    """Raise the `DataFileError` or `MissingExtraError` that runs with these keys would end in; other errors are left to them.

    Those that are done need nothing. `asked` remembers, over several studies, which data and which network on them were here.
    """
    for training in _left(study, keys):
        data, network = training.data, training.model.name
        rows = (canonical_json(to_plain(data)), "")
        task = (rows[0], network) if _may_lack_a_package(network) else rows
        if task in asked or (task == rows and not is_import(data.name)):
            continue
        asked |= {rows, task}
        try:
            with redirect_stdout(sys.stderr):  # standard output is for results
                load_task_data(data) if task == rows else make_task(training)
        except (DataFileError, MissingExtraError):
            raise
        except Exception:  # of the user's own, or of settings: it stops those runs that it concerns, not the others
            continue


def _left(study: Study, keys: Collection[str]) -> Iterator[TrainingSpec]:
    """What the unfinished runs train, or take as trained, for those that have something to ask for."""
    taken = study.spec.checkpoints
    given = None if taken is None else TrainingSpec(model=taken.model, data=taken.data, loss=taken.loss)
    trainings = {key: run.training or given for key, run in study.runs.items() if key in keys}
    asked = {key: training for key, training in trainings.items() if training is not None and _is_asked(training)}
    for key, status in study.statuses(asked).items():
        if status.state is not RunState.DONE:
            yield asked[key]


def _is_asked(training: TrainingSpec) -> bool:
    """Whether there is anything to ask: most studies name data sets and networks that are known to be here."""
    return is_import(training.data.name) or _may_lack_a_package(training.model.name)


def _may_lack_a_package(network: str) -> bool:
    """Whether only building it would show a missing package: a function, or a network that needs an extra."""
    return is_import(network) or MODELS[network].extra is not None
