"""What a run tells: callbacks, lines of progress, the command line."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
import torch
import typer
from loop_runs import BASE, Signal, merged
from torch import Tensor, nn
from typer.testing import CliRunner

from landscope.cli import train as command
from landscope.cli.failures import Commands
from landscope.core.errors import MissingExtraError
from landscope.specs.schema import parse
from landscope.training.callbacks import Callback, TensorBoard, WeightsAndBiases
from landscope.training.loop import train as loop
from landscope.training.loop.folder import TrainingResult
from landscope.training.loop.train import train
from landscope.training.spec import TrainingSpec

FILE = """
model: {name: mlp, widths: [4]}
data: circles
epochs: 2
batch_size: 50
optimizer: sgd
early_stopping: {}
"""


class Diary(Callback):
    def __init__(self) -> None:
        self.entries: list[object] = []

    def on_start(self, spec: TrainingSpec, model: nn.Module) -> None:
        self.entries.append(("start", spec.epochs))

    def on_step(self, step: int, loss: Tensor, lr: float) -> None:
        self.entries.append(step)
        assert loss.dim() == 0
        assert loss.isfinite()

    def on_epoch(self, row: dict[str, float], model: nn.Module) -> None:
        self.entries.append(("epoch", row["epoch"]))

    def on_end(self, result: TrainingResult) -> None:
        self.entries.append(("end", result.finished))


def test_callbacks_are_told_in_order() -> None:
    diary = Diary()
    train({**BASE, "epochs": 2, "batch_size": 50}, callbacks=[diary])
    assert diary.entries == [("start", 2), 1, 2, ("epoch", 1), 3, 4, ("epoch", 2), ("end", True)]


def test_callbacks_are_told_of_rows() -> None:
    diary = Diary()
    train({**BASE, "epochs": 3, "batch_size": 100, "evaluate_every": 2}, callbacks=[diary])
    assert diary.entries == [("start", 3), 1, 2, ("epoch", 2), 3, ("epoch", 3), ("end", True)]


def test_lines_of_progress(capsys: pytest.CaptureFixture[str]) -> None:
    train({**BASE, "epochs": 2}, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("]")[0] for line in lines] == ["[1/2", "[2/2"]
    assert all("accuracy" in line and "s left" in line for line in lines)
    train({**BASE, "epochs": 2})
    assert capsys.readouterr().err == ""
    train({**BASE, "epochs": 5, "evaluate_every": 2}, progress=True)
    assert [line.split("]")[0] for line in capsys.readouterr().err.splitlines()] == ["[2/5", "[4/5", "[5/5"]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("landscope.training.callbacks.INTERVAL", 0.0)
    train({**BASE, "epochs": 2})


def test_extras_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"landscope\[tensorboard\]"):
        TensorBoard(tmp_path)
    with pytest.raises(MissingExtraError, match=r"landscope\[wandb\]"):
        WeightsAndBiases(project="mine")


def test_weights_and_biases_gets_spec_and_history(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, object]] = []

    class FakeRun:
        def log(self, values: dict[str, float], step: int) -> None:
            calls.append(("log", (step, sorted(values))))

        def finish(self, exit_code: int) -> None:
            calls.append(("finish", exit_code))

    def init(**options: object) -> FakeRun:
        calls.append(("init", options))
        return FakeRun()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    train({**BASE, "epochs": 1}, callbacks=[WeightsAndBiases(project="mine")])
    (_, options), (_, (step, names)), last = calls
    assert options["project"] == "mine"
    assert options["config"]["epochs"] == 1
    assert (step, "validation_error" in names, last) == (4, True, ("finish", 0))


def test_tensorboard_gets_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    points: list[tuple[str, int]] = []

    class FakeWriter:
        def __init__(self, log_dir: str) -> None:
            assert log_dir == str(tmp_path)

        def add_scalar(self, name: str, value: float, global_step: int) -> None:
            points.append((name, global_step))

        def close(self) -> None:
            points.append(("closed", 0))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=FakeWriter))
    train({**BASE, "epochs": 1}, callbacks=[TensorBoard(tmp_path)])
    assert ("train_loss", 4) in points
    assert points[-1] == ("closed", 0)


def test_tensorboard_itself_reads_what_was_written(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard")
    result = train({**BASE, "epochs": 3}, callbacks=[TensorBoard(tmp_path)])
    events = reading.EventAccumulator(str(tmp_path))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("train_loss")]
    assert shown == [(row["step"], pytest.approx(row["train_loss"])) for row in result.history]


def test_weights_and_biases_itself_keeps_a_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    train({**BASE, "epochs": 2}, callbacks=[WeightsAndBiases(mode="offline", dir=str(tmp_path), project="mine")])
    [kept] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"train_loss" in kept.read_bytes()
    assert "train_loss" in capfd.readouterr().err  # its own summary at the end of a run


def call(*words: object) -> tuple[int, str, str]:
    app = typer.Typer(cls=Commands)
    app.command("train")(command.train)
    app.callback()(lambda: None)
    result = CliRunner().invoke(app, ["train", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    return path


def test_command(spec: Path) -> None:
    code, out, err = call(spec, "--device", "cpu")
    assert code == 0, err
    assert "final" in out
    assert "best" in out
    assert (Path("runs/mine") / "best.safetensors").is_file()
    code, out, _ = call(spec, "--device", "cpu", "--json")
    assert (code, json.loads(out)["finished"]) == (0, True)


def test_command_with_other_values(spec: Path) -> None:
    changes = ["--set", "optimizer.lr=0.2", "--set", "schedule.name=cosine", "--set", "seed=4"]
    code, _, err = call(spec, "--into", "other", "--device", "cpu", *changes)
    assert code == 0, err
    written = parse(TrainingSpec, json.loads(Path("other/spec.json").read_text()))
    assert (written.optimizer.name, written.optimizer.lr, written.schedule.name, written.seed) == (
        "sgd",
        0.2,
        "cosine",
        4,
    )
    code, _, err = call(spec, "--into", "other", "--device", "cpu")
    assert code == 2
    assert "optimizer.lr is 0.2 there and 0.05 here" in err


def test_command_with_a_time_limit(spec: Path) -> None:
    code, _, err = call(spec, "--time-limit", "0", "--device", "cpu")
    assert code == 4
    assert "run the same command to resume" in err
    assert call(spec, "--device", "cpu")[0] == 0


def test_command_and_ctrl_c(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    whole = loop.train
    interrupt = [Signal(2, signal.SIGINT)]
    monkeypatch.setattr(loop, "train", lambda spec, **options: whole(spec, **{**options, "callbacks": interrupt}))
    code, _, err = call(spec, "--device", "cpu")
    assert code == 130
    assert "checkpoint written: runs/mine; run the same command to resume" in err
    monkeypatch.undo()
    monkeypatch.chdir(spec.parent)
    assert call(spec, "--device", "cpu")[0] == 0


def test_command_names_the_line_of_a_mistake(spec: Path) -> None:
    spec.write_text(FILE.replace("epochs: 2", "epochs: none"))
    code, _, err = call(spec)
    assert code == 2
    assert "mine.yaml:4: epochs: must be an integer" in err


def test_numbers_of_threads_come_back() -> None:
    before = torch.get_num_threads()
    train(merged(BASE, {"epochs": 1}), threads=2)
    assert torch.get_num_threads() == before
