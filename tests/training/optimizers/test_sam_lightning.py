"""SAM in Lightning's automatic optimisation, which calls step with a closure of the last micro-batch."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from sam_problems import batch, distance, loss_of, network, plain_for, sam_for, weights, written_out
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from landscope.core.errors import StepOrderError

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

BATCHES = 5


class Task(lightning.LightningModule):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.net = network(norm=norm)

    def training_step(self, rows: list[Tensor], _: int) -> Tensor:
        return loss_of(self.net, *rows)()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sam_for(self.net, "momentum")


def fit(task: Task, folder: Path, **options: object) -> None:
    pieces = [batch(seed=seed) for seed in range(BATCHES)]
    rows = TensorDataset(torch.cat([x for x, _ in pieces]), torch.cat([y for _, y in pieces]))
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=folder, **quiet, **options)
        trainer.fit(task, DataLoader(rows, batch_size=len(pieces[0][0])))


@pytest.mark.parametrize("clip", [None, 1e-2])
def test_one_batch_a_step_is_the_definition(tmp_path: Path, clip: float | None) -> None:
    task, theirs = Task(), network()
    fit(task, tmp_path, gradient_clip_val=clip)
    plain = plain_for(theirs, "momentum")
    for seed in range(BATCHES):
        written_out(plain, list(theirs.parameters()), loss_of(theirs, *batch(seed=seed)), 0.5, clip)
    assert distance(weights(task.net), weights(theirs)) < 1e-11


def test_statistics_move_once_a_batch(tmp_path: Path) -> None:
    task = Task(norm=True)
    fit(task, tmp_path)
    assert int(task.net[1].num_batches_tracked) == BATCHES


@pytest.mark.parametrize("parts", [2, 3])
def test_accumulation_is_refused(tmp_path: Path, parts: int) -> None:
    with pytest.raises(StepOrderError, match="accumulate_grad_batches in Lightning"):
        fit(Task(), tmp_path, accumulate_grad_batches=parts)
