"""Runs that are stopped: by signals, time, kill -9, damaged files, other specs, NaN. What is left, and how they resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from loop_killed import SPEC
from loop_runs import BASE, METHODS, Signal, distance, interrupted, merged, same
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from landscope.core.errors import NonFiniteTrainingError, SpecError, TrainingError
from landscope.models import build
from landscope.training.callbacks import Callback
from landscope.training.loop.train import train

EVERYTHING = merged(BASE, METHODS["everything"])


class Crash(Callback):
    """An error of the user's own after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, step: int, loss: Tensor, lr: float) -> None:
        if step == self._step:
            raise ZeroDivisionError


def killed(folder: Path, kills: int, seed: int) -> int:
    script = Path(__file__).with_name("loop_killed.py")
    done = subprocess.run(
        [sys.executable, script, folder, str(kills), str(seed)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments(kills: int, tmp_path: Path) -> None:
    assert killed(tmp_path / "run", kills, seed=kills) == kills, "every kill was before the end"
    assert same(train(SPEC, folder=tmp_path / "run"), train(SPEC))
    assert not list((tmp_path / "run").glob("state*")), "the checkpoint is gone when the result is there"


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = train(EVERYTHING, folder=tmp_path)
    again = train(EVERYTHING, folder=tmp_path, callbacks=[Crash(1)])
    assert same(first, again)
    assert again.spec == first.spec
    assert again.seconds == first.seconds
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    weights = {"final.safetensors", "best.safetensors", "average.safetensors"}
    assert files == weights | {
        "spec.json",
        "history.json",
        "snapshots/step-0.safetensors",
        "snapshots/step-5.safetensors",
    }
    net = build("mlp", in_features=2, num_classes=2, widths=(6,), batch_norm=True, dropout=0.2)
    net.load_state_dict(load_file(tmp_path / "final.safetensors"))
    assert distance(net, first.model) == 0
    with pytest.raises(ZeroDivisionError):
        train(EVERYTHING, folder=tmp_path, resume=False, callbacks=[Crash(1)])
    assert not (tmp_path / "history.json").exists(), "it started over"


def test_another_spec_is_refused_with_what_differs(tmp_path: Path) -> None:
    train(BASE, folder=tmp_path, time_limit=0.0)
    with pytest.raises(SpecError, match=r"optimizer\.lr is 0\.1 there and 0\.2 here; sam is null there"):
        train(merged(BASE, {"optimizer": {"lr": 0.2}, "sam": 0.1}), folder=tmp_path)


def test_another_model_is_refused(tmp_path: Path) -> None:
    mine, other = (build("mlp", seed=seed, in_features=2, num_classes=2, widths=(6,)) for seed in (1, 2))
    before = [p.clone() for p in mine.parameters()]
    spec = {key: value for key, value in BASE.items() if key != "model"}
    with pytest.raises(ZeroDivisionError):
        train(spec, model=mine, folder=tmp_path, checkpoint_every=0, callbacks=[Crash(3)])
    with pytest.raises(SpecError, match="another model or other data"):
        train(spec, model=other, folder=tmp_path)
    assert same(train(spec, model=mine, folder=tmp_path), train(spec, model=mine))
    with pytest.raises(SpecError, match="another model or other data"):
        train(spec, model=other, folder=tmp_path)
    assert all(map(torch.equal, before, mine.parameters())), "the model that was given is not touched"


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "gone"])
def test_a_damaged_checkpoint(damage: str, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(EVERYTHING, folder=tmp_path, checkpoint_every=0, callbacks=[Crash(8)])
    state = tmp_path / "state.safetensors"
    content = bytearray(state.read_bytes())
    content[-5] ^= 4
    if damage == "gone":
        state.unlink()
    else:
        state.write_bytes({"cut": bytes(content[:-9]), "flipped": bytes(content), "empty": b""}[damage])
    if damage == "gone":
        assert same(train(EVERYTHING, folder=tmp_path), train(EVERYTHING))
        return
    with pytest.warns(UserWarning, match="state.safetensors is damaged"):
        result = train(EVERYTHING, folder=tmp_path)
    assert same(result, train(EVERYTHING))


def test_both_checkpoints_damaged_starts_anew(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(BASE, folder=tmp_path, checkpoint_every=0, callbacks=[Crash(8)])
    for state in tmp_path.glob("state*"):
        state.write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="damaged"):
        assert same(train(BASE, folder=tmp_path), train(BASE))


def test_a_damaged_result_is_said_so(tmp_path: Path) -> None:
    train(BASE, folder=tmp_path)
    (tmp_path / "final.safetensors").write_bytes(b"")
    with pytest.raises(TrainingError, match="final.safetensors is damaged"):
        train(BASE, folder=tmp_path)


def test_time_limit(tmp_path: Path) -> None:
    stopped = train(BASE, folder=tmp_path, time_limit=0.0)
    assert (stopped.finished, stopped.stopped, len(stopped.history)) == (False, "time limit", 0)
    assert same(train(BASE, folder=tmp_path), train(BASE))


def test_ctrl_c_writes_a_checkpoint_and_goes_up(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        train(BASE, folder=tmp_path, callbacks=[Signal(5, signal.SIGINT)])
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert (tmp_path / "state.safetensors").exists()
    assert same(train(BASE, folder=tmp_path), train(BASE))


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(BASE, folder=tmp_path, callbacks=[Signal(5, signal.SIGINT), Signal(5, signal.SIGINT)])
    assert not (tmp_path / "state.safetensors").exists(), "not even a checkpoint was waited for"


def test_another_thread_leaves_signals_alone() -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append(train(BASE)))
    thread.start()
    thread.join()
    assert same(results[0], train(BASE))


def test_checkpoints_in_memory_formats(tmp_path: Path) -> None:
    spec = {
        "model": {"name": "resnet20", "width": 2},
        "data": {"name": "digits", "train_size": 60},
        "epochs": 1,
        "batch_size": 20,
        "channels_last": True,
        "early_stopping": {},
    }
    assert same(interrupted(spec, tmp_path, 1), train(spec))


class Breaks(nn.Module):
    """Gives NaN from its seventh pass in training on."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.passes = nn.Linear(2, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return self.fc(x) * (torch.nan if self.passes > 6 else 1.0)


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    spec = {key: value for key, value in BASE.items() if key != "model"}
    with pytest.raises(NonFiniteTrainingError) as caught:
        train(spec, model=Breaks(), folder=tmp_path, checkpoint_every=0)
    text = str(caught.value)
    for part in (
        "the loss became nan at step 6 (epoch 2, batch 3 of 4)",
        "learning rate 0.0",
        "training samples",
        "clip_norm",
    ):
        assert part in text
    with safe_open(tmp_path / "state.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["landscope"])["step"] == 6
    assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / "state.safetensors").values())


def test_rows_that_are_not_finite_are_named() -> None:
    x, y = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    x[17] = torch.inf
    with pytest.raises(NonFiniteTrainingError, match=r"\b17\b.*the inputs of this batch are not finite"):
        train(merged(BASE, {"batch_size": 8}), data={"train": (x, y)})


def test_weights_that_explode_leave_the_last_good_checkpoint(tmp_path: Path) -> None:
    spec = merged(BASE, {"optimizer": {"lr": 1e30}, "schedule": "constant", "model": {"batch_norm": False}})
    with pytest.raises(NonFiniteTrainingError, match="lower optimizer.lr"):
        train(spec, folder=tmp_path, checkpoint_every=0)
    for state in tmp_path.glob("state*"):
        assert all(tensor.isfinite().all() for tensor in load_file(state).values())
