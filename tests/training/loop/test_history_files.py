"""What a run of a training leaves in JSON, written by something else: one clear error that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from loop_runs import BASE, merged
from malformed import TEXTS, with_other

from landscope.core.errors import LandscopeError, SpecError, TrainingError
from landscope.training.loop.folder import TrainingResult, read_tensors, write_tensors
from landscope.training.loop.train import train
from landscope.training.pool.runs import PoolFolder

SPEC = merged(BASE, {"epochs": 2})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train(SPEC, folder=tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("name", TEXTS)
def test_histories_and_specs(name: str, finished: TrainingResult) -> None:
    assert finished.folder is not None
    for file, error in (("history.json", TrainingError), ("spec.json", SpecError)):
        path = finished.folder / file
        whole = path.read_bytes()
        path.write_bytes(TEXTS[name])
        with pytest.raises(error, match=r"resume=False"):
            train(SPEC, folder=finished.folder)
        path.write_bytes(whole)
    assert train(SPEC, folder=finished.folder).history == finished.history


@pytest.mark.parametrize("value", ["x", 5, None], ids=repr)
@pytest.mark.parametrize(
    "place",
    [("history",), ("history", 0), ("history", 0, "step"), ("scores",), ("given",), ("stopped",), ("seconds",)],
    ids=lambda place: ".".join(map(str, place)),
)
def test_histories_with_something_else_in_them(
    place: tuple[str | int, ...], value: object, finished: TrainingResult
) -> None:
    assert finished.folder is not None
    path = finished.folder / "history.json"
    whole = path.read_bytes()
    plain = json.loads(whole)
    path.write_text(json.dumps(with_other(plain, place, value)))
    try:
        train(SPEC, folder=finished.folder)
    except LandscopeError as error:
        assert "history.json is damaged" in str(error)  # noqa: PT017 (5 is a number of seconds)
    else:
        assert value == (5 if place[-1] in ("step", "seconds") else "x")
    finally:
        path.write_bytes(whole)


def test_infinity_is_kept(tmp_path: Path) -> None:
    """A state may hold one: the best loss before there is any."""
    write_tensors(tmp_path / "state", {"w": torch.ones(2)}, {"best": float("inf")})
    assert read_tensors(tmp_path / "state")[1] == {"best": float("inf")}


def test_a_state_whose_text_is_too_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep: list[object] = []
    for _ in range(400):
        deep = [deep]
    write_tensors(tmp_path / "state", {"w": torch.ones(2)}, deep)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="state is damaged .* more than 100 deep"):
        read_tensors(tmp_path / "state")


@pytest.mark.parametrize("cut", range(10))
def test_a_state_of_a_few_bytes(cut: int, tmp_path: Path) -> None:
    write_tensors(tmp_path / "state", {"w": torch.ones(2)}, {})
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:cut])
    with pytest.raises(TrainingError, match="state is damaged"):
        read_tensors(tmp_path / "state")


@pytest.mark.parametrize("name", TEXTS)
def test_the_strategy_of_a_pool(name: str, tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path, [], {}, resume=True)
    (tmp_path / "pool.json").write_bytes(TEXTS[name])
    with pytest.raises(SpecError, match=r"pool\.json is damaged"):
        pool.strategy()


@pytest.mark.parametrize(("old", "now"), [("together", "stacked"), ("one by one", "sequential")])
def test_the_strategy_of_a_pool_of_version_0_1(old: str, now: str, tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path, [], {}, resume=True)
    (tmp_path / "pool.json").write_text(json.dumps({"way": old}))
    assert pool.strategy() == now
    pool.keep("stacked")
    assert json.loads((tmp_path / "pool.json").read_text()) == {"strategy": "stacked"}
