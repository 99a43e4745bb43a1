"""Runs of a study that are trained together: the same models as alone, handed to their own runs, resumed when stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_runs import do_here

from landscope.core.errors import RunStoppedError
from landscope.studies.executors.base import Job, Resources
from landscope.studies.executors.local import LocalExecutor
from landscope.studies.store.identity import POOL
from landscope.studies.study import Study
from landscope.studies.work import attempt
from landscope.studies.work.pools import pools_of
from landscope.studies.work.run import run_in_folder

SPEC: dict[str, object] = {
    "name": "together",
    "training": {
        "data": "circles",
        "model": {"name": "mlp", "widths": [6]},
        "epochs": 4,
        "batch_size": 20,
        "precision": "float64",
        "early_stopping": {},
        "snapshots": [7],
    },
    "axes": {
        "method": {"plain": {}, "decay": {"optimizer.weight_decay": 0.05}, "sam": {"sam.rho": 0.05}},
        "rate": {"optimizer.lr": [0.05, 0.2]},
    },
    "seeds": 2,
    "measuring": {
        "checkpoints": ["final", "best", "step 7"],
        "splits": {"train": ["loss", "l2_norm"], "test": ["loss", "error"]},
    },
}


def values(study: Study) -> dict[str, list[float]]:
    return {
        record.run: [e.value for s in record.subjects for report in s.reports.values() for e in report.values()]
        for record in study.records()
    }


def train(study: Study) -> list[Job]:
    """The pools of a study, as a worker would train them."""
    jobs = study.pools(Resources())
    for job in jobs:
        run = study.store.add(job.spec)
        with run.claim():
            run_in_folder(run.spec(), str(run.folder))
    return jobs


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """What is measured on the runs that train by themselves."""
    return values(do_here(Study.of(SPEC, tmp_path_factory.mktemp("alone"))))


def test_members_are_what_they_are_alone(tmp_path: Path, alone: dict[str, list[float]]) -> None:
    study = Study.of(SPEC, tmp_path / "together")
    jobs = train(study)
    pools = [dict(job.spec[POOL]) for job in jobs]  # type: ignore[call-overload]
    assert [len(pool["members"]) for pool in pools] == [8, 4]
    assert set(pools[0]["overrides"]) == {"optimizer.lr", "optimizer.weight_decay"}
    trained = {key for job in jobs for key in study.store.run(job.key).record()["trained"]}  # type: ignore[union-attr]
    assert trained == set(study.runs)
    assert not pools_of(study)
    found = values(do_here(study))
    assert list(found) == list(alone)
    for key, numbers in alone.items():
        assert found[key] == pytest.approx(numbers, rel=1e-9)
    assert all(record.seconds > 0 for record in study.records())


def test_what_is_not_faster_together_trains_by_itself(tmp_path: Path) -> None:
    fam = {**SPEC, "axes": {}, "training": {**SPEC["training"], "fam": {"strength": 0.1}}}  # type: ignore[dict-item]
    study = Study.of(fam, tmp_path)
    [job] = train(study)
    assert study.store.run(job.key).record()["trained"] == []
    assert len(do_here(study).records()) == 2


def test_a_member_that_fails_says_so_in_its_own_run(tmp_path: Path) -> None:
    wild = {**SPEC, "axes": {"rate": {"optimizer.lr": [0.05, 1e200]}}, "measuring": {"splits": {"train": ["loss"]}}}
    study = Study.of(wild, tmp_path)
    [job] = train(study)
    good = {key for key, run in study.runs.items() if run.training.optimizer.lr < 1}  # type: ignore[union-attr]
    assert set(study.store.run(job.key).record()["trained"]) == good  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r"learning rate 1e\+200"):
        do_here(study)


def test_a_pool_that_is_stopped_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: dict[str, list[float]]
) -> None:
    study = Study.of(SPEC, tmp_path / "stopped")
    asked = iter([False] * 5 + [True] * 1000)
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "stop_requested", lambda: next(asked))
        with pytest.raises(RunStoppedError):
            train(study)
    attempt._asked.clear()
    assert not any((study.store.root / "runs" / key / "training").exists() for key in study.runs)
    train(study)
    for key, numbers in values(do_here(study)).items():
        assert numbers == pytest.approx(alone[key], rel=1e-9)


def test_runs_that_were_begun_are_left_alone(tmp_path: Path) -> None:
    study = Study.of({**SPEC, "axes": {}, "seeds": 3}, tmp_path)
    first = next(iter(study.runs))
    study.store.add(study.runs[first].plain).path("training").mkdir(parents=True)
    [pool] = pools_of(study)
    assert pool[POOL]["members"] == list(study.runs)[1:]  # type: ignore[index,call-overload]


def test_only_runs_that_are_asked_for_are_pooled(tmp_path: Path) -> None:
    study = Study.of({**SPEC, "axes": {}, "seeds": 4}, tmp_path)
    asked = [key for key, run in study.runs.items() if run.seed in (0, 2)]
    [pool] = pools_of(study, asked)
    assert pool[POOL]["members"] == asked  # type: ignore[index,call-overload]
    assert pools_of(study, asked[:1]) == []


def test_an_executor_trains_pools_as_any_job(tmp_path: Path) -> None:
    study = Study.of({**SPEC, "axes": {}}, tmp_path)
    needs = Resources()
    LocalExecutor(study.store, run_in_folder, workers=1).run(study.pools(needs) + study.jobs(needs)).check()
    [pool] = set(study.store.keys()) - study.runs.keys()
    assert sorted(study.store.run(pool).record()["trained"]) == sorted(study.runs)  # type: ignore[type-var, arg-type]
    assert study.progress().done == 2
