"""Runs that differ in their seeds and numbers, trained together as one program (`train_pool`) before each is measured alone.

A pool is a job like any other: it has a folder in the store, is claimed, stopped and resumed. When it is done, the training of
each member lies in the folder of the member's own run, which then only needs to be measured. Members that failed, and pools for
which one program is not faster, are left to train separately.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from landscope.core.errors import ClaimError
from landscope.core.json import Plain
from landscope.specs.canonical import canonical_json
from landscope.specs.overlay import get, with_value
from landscope.specs.schema import parse, to_plain
from landscope.studies.store.identity import POOL
from landscope.studies.store.run_folder import SECONDS, RunFolder
from landscope.studies.work import attempt
from landscope.training.pool.train_pool import NUMBERS, choose, train_pool, unsupported
from landscope.training.spec import TrainingSpec
from landscope.training.task import make_task

if TYPE_CHECKING:
    from landscope.studies.study import Study


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """The training of the first member, what the others have instead, and the keys of their runs."""

    training: TrainingSpec
    seeds: tuple[int, ...]
    overrides: dict[str, tuple[object, ...]]
    members: tuple[str, ...]


def pools_of(study: Study, among: Collection[str] | None = None) -> list[dict[str, Plain]]:
    """Specs of the pools that a study can be trained in: runs that have not been begun and differ in seeds and numbers only.

    `among` are the keys of the runs that are asked for; all by default.

    >>> import tempfile
    >>> from landscope.studies.study import Study
    >>> spec = {"name": "tiny", "training": {"model": "mlp"}, "axes": {"rate": {"optimizer.lr": [0.1, 0.2]}}, "seeds": 2}
    >>> with tempfile.TemporaryDirectory() as root:
    ...     [pool] = pools_of(Study.of(spec, root))
    >>> pool["pool"]["seeds"], pool["pool"]["overrides"]
    ([0, 1, 0, 1], {'optimizer.lr': [0.1, 0.1, 0.2, 0.2]})
    """
    alike: dict[str, list[tuple[str, dict[str, Plain]]]] = {}
    for key, run in study.runs.items():
        training = run.plain.get("training")
        place = study.store.root / "runs" / key
        begun = (place / "training").exists() or (place / "record.json").exists()
        if isinstance(training, dict) and not begun and (among is None or key in among):
            alike.setdefault(canonical_json(without_numbers(training)), []).append((key, training))
    return [{POOL: to_plain(_pool(group))} for group in alike.values() if len(group) > 1]


def members_of(spec: Mapping[str, Plain]) -> list[str]:
    """Keys of the runs of a pool."""
    pool = spec[POOL]
    assert isinstance(pool, dict), "the spec of a pool"
    return cast(list[str], pool["members"])


def _pool(group: list[tuple[str, dict[str, Plain]]]) -> PoolSpec:
    specs = [training for _, training in group]
    columns = {name: tuple(get(spec, name) for spec in specs) for name in NUMBERS}
    return PoolSpec(
        training=parse(TrainingSpec, specs[0]),
        seeds=tuple(cast(int, spec["seed"]) for spec in specs),
        overrides={name: values for name, values in columns.items() if any(value != values[0] for value in values[1:])},
        members=tuple(key for key, _ in group),
    )


def without_numbers(training: Mapping[str, Plain]) -> dict[str, object]:
    """A training without what may differ between the members of a pool; whether a number is given stays."""
    rest: dict[str, object] = {**training, "seed": 0}
    for name in NUMBERS:
        if get(rest, name) is not None:
            rest = with_value(rest, name, "a number")
    return rest


def train_together(spec: Plain, run: RunFolder, device: torch.device) -> None:
    """Train a pool in the folder of its run, and hand each member's training to the member's run."""
    pool = parse(PoolSpec, spec)
    choice = choose(make_task(pool.training).to(device), "auto", unsupported(pool.training))
    if choice.strategy != "stacked":
        run.finish({"trained": [], "seconds": 0.0, "why": choice.reason})
        return
    trained = train_pool(
        pool.training,
        pool.seeds,
        overrides=pool.overrides,
        strategy="stacked",
        folder=run.path("members"),
        device=device,
        should_stop=attempt.stop_requested,
        progress=False,
    )
    if not trained.finished:
        attempt.request_stop()  # a signal that the training took was meant for this whole process
        attempt.raise_if_stopping()
    each = trained.seconds / len(trained)
    handed = []
    for at, key in enumerate(pool.members):
        folder = trained.members[at].folder
        if at not in trained.failed and folder is not None and _hand_over(folder, run.folder.parent / key, each):
            handed.append(key)
    run.finish({"trained": handed, "seconds": trained.seconds, "why": choice.reason})


def _hand_over(trained: Path, folder: Path, seconds: float) -> bool:
    """Move a finished training into the folder of its run, unless somebody else has begun it."""
    member = RunFolder(folder)
    try:
        with member.claim(to="prepare"):
            if member.done() or member.path("training").exists():
                return False
            member.write_json(SECONDS, seconds)
            os.rename(trained, member.path("training"))
    except ClaimError:
        return False
    return True
