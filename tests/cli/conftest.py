"""A way to call the command line inside this process, and checkpoints for it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from data.data_samples import SAMPLES
from safetensors.torch import save_file
from typer.testing import CliRunner

from landscope.cli import app
from landscope.models import build
from landscope.studies.executors.base import Job, JobQueue, OnEvent, Summary, ignore
from landscope.studies.executors.local import LocalExecutor
from landscope.studies.work.attempt import attempt_run

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call() -> Call:
    """Runs a command; gives exit code, standard output and standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, [str(word) for word in words], prog_name="landscope")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


@pytest.fixture
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of studies are attempted in this process: that a worker does the same is tested in `tests/studies`."""

    def run(self: LocalExecutor, jobs: Sequence[Job], *, on_event: OnEvent = ignore) -> Summary:
        queue = JobQueue(self.store, jobs, on_event, attempts=self.attempts, retry_failed=self.retry_failed)
        while job := queue.next():
            queue.started(job, "this process")
            with redirect_stdout(io.StringIO()):  # what a run prints is in its log
                result = attempt_run(self.work, self.store.run(job.key))
            queue.ended(job, result)
        return queue.summary

    monkeypatch.setattr(LocalExecutor, "run", run)


@pytest.fixture(scope="session")
def digits_net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of an untrained 64-4-10 network."""
    path = tmp_path_factory.mktemp("nets") / "net.safetensors"
    save_file(build("mlp", in_features=64, widths=(4,)).state_dict(), path)
    return path


@pytest.fixture(scope="session")
def sample_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 60 + 20 random images in the files of MNIST."""
    root = tmp_path_factory.mktemp("data")
    SAMPLES["mnist"][0](root, np.random.default_rng(0))
    return root
