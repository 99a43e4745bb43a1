"""Files of a store have one mode, so that a colleague can resume a study."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from store_work import work

from landscope.core.files import writing
from landscope.studies.executors import Job, LocalExecutor, Resources
from landscope.studies.store import Store
from landscope.studies.study import Study
from landscope.studies.work.attempt import attempt_run
from landscope.studies.work.run import run_in_folder

STUDY = {
    "name": "modes",
    "training": {
        "data": "circles",
        "model": {"name": "mlp", "widths": [4]},
        "epochs": 2,
        "batch_size": 20,
        "snapshots": [1],
        "early_stopping": {},
        "averaging": {},
    },
    "axes": {"rate": {"optimizer.lr": [0.1, 1e30]}},
    "seeds": 1,
    "measuring": {
        "splits": {"train": ["loss"], "test": ["loss"]},
        "checkpoints": ["final", "best", "average", "step 1"],
    },
}


@pytest.fixture(params=[0o002, 0o022, 0o027], ids=oct)
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def other_modes(root: Path, mask: int) -> dict[str, str]:
    """What in a folder is not as the umask has it."""
    found = {}
    for path in [root, *root.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode != (0o777 if path.is_dir() else 0o666) & ~mask:
            found[str(path.relative_to(root))] = oct(mode)
    return found


def test_all_of_a_study_has_the_modes_of_the_umask(tmp_path: Path, mask: int) -> None:
    root = tmp_path / "s"
    study = Study.of(STUDY, root)
    study.save(root)
    [pool] = study.pools(Resources())
    attempt_run(run_in_folder, study.store.add(pool.spec))
    for key, run in study.runs.items():
        attempt_run(run_in_folder, study.store.add(run.plain))
        record = study.store.run(key).path("record.json")
        if record.exists():  # damaged, quarantined and made again
            record.write_bytes(record.read_bytes()[:40])
            attempt_run(run_in_folder, study.store.run(key))
    names = {path.name for path in root.rglob("*")}
    assert {"record.json", "failure.txt", "log.txt", "final.safetensors", "quarantine", "0001.json"} <= names
    assert other_modes(root, mask) == {}


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_process_leaves_the_same_modes(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        LocalExecutor(Store(tmp_path / "s"), work, workers=1).run([Job.of({"seed": 1, "steps": 2})])
    finally:
        os.umask(before)
    assert other_modes(tmp_path / "s", 0o002) == {}


def test_whatever_library_writes(tmp_path: Path, mask: int) -> None:
    def private(path: Path) -> None:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))

    for name, write in {"a": lambda path: save_file({"x": torch.ones(1)}, path), "b": private}.items():
        with writing(tmp_path / name) as aside:
            write(aside)
    for name in "ab":
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~mask
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
