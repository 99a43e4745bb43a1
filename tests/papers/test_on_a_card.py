"""A run on a card, from its training to its record, on machines without one: nothing of it is left on the wrong device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretend_card import pretend_card

from landscope.papers import PAPERS
from landscope.studies.record import Record
from landscope.studies.study import Study
from landscope.studies.work.run import run_in_folder
from landscope.training.loop.train import train


def test_the_pretended_card_refuses_what_a_card_refuses() -> None:
    with pretend_card():
        here, there = torch.ones(3, 3), torch.ones(3, 3, device="cuda")
        assert there.device.type == (there @ there).detach()[0].device.type == "cuda"
        assert torch.nn.Linear(3, 3).to("cuda").weight.device.type == "cuda"
        assert there.cpu().device.type == here.device.type == "cpu"
        assert (there * torch.tensor(2.0)).device.type == "cuda", "single numbers may be on the CPU"
        for mixed in (lambda: here + there, lambda: torch.equal(here, there), lambda: torch.cat([here, there])):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
            there.numpy()
    assert not torch.cuda.is_available()
    assert (torch.ones(3) + torch.ones(3)).device.type == "cpu"


def test_rows_that_are_on_the_card_are_trained_on() -> None:
    x, y = torch.randn(20, 2), torch.arange(20) % 2
    spec = {"model": {"name": "mlp", "widths": [4]}, "epochs": 1, "batch_size": 10}
    here = train(spec, data={"train": (x, y), "test": (x, y)}, device="cpu")
    with pretend_card():
        rows = x.to("cuda"), y.to("cuda")
        there = train(spec, data={"train": rows, "test": rows})
    assert there.scores["final"]["test_loss"] == pytest.approx(here.scores["final"]["test_loss"], rel=1e-5)


# Weights kept on the way are on the CPU, those of the end on the card; the temperature of the code is fitted on the card.
@pytest.mark.parametrize(
    ("paper", "part", "condition"),
    [
        pytest.param("explicit-regularisation", "cifar10-levels", "baseline", id="levels"),
        pytest.param("fam", "overhead", "small", id="overhead", marks=pytest.mark.slow),
        pytest.param("adaptive-sharpness", "lenet5-notebook", "as coded", id="lenet5", marks=pytest.mark.slow),
        pytest.param("fam", "cifar10-bottleneck", "fam as coded", id="bottleneck", marks=pytest.mark.slow),
        pytest.param("false-friend", "vgg16bn-cifar10-modes", "adam", id="modes", marks=pytest.mark.slow),
        pytest.param("function-centric", "images-cell", "base + SAM", id="cell", marks=pytest.mark.slow),
    ],
)
def test_a_run_on_a_card_ends_with_its_record(paper: str, part: str, condition: str, tmp_path: Path) -> None:
    spec = PAPERS[paper].parts("tiny")[part].study
    study = Study(replace(spec, seeds=1), tmp_path / part)
    key, run = next((key, run) for key, run in study.runs.items() if run.condition == condition)
    folder = study.store.add(run.plain)
    with pretend_card(), folder.claim():
        run_in_folder(run.plain, str(folder.folder))
    ((_, plain),) = study.store.records([key])
    record = Record.from_dict(plain)
    assert record.environment["device"] == "a pretended card"
    assert record.history
    if part == "cifar10-levels":
        assert len({model.checkpoint for model in record.subjects}) > 1, (
            "weights kept on the way are compared with the last"
        )
    failed = {
        f"{model.checkpoint} {split}.{name}": estimate.reason
        for model in record.subjects
        for split, report in model.reports.items()
        for name, estimate in report.items()
        if estimate.status.value == "failed" and name != "temperature"
    }
    assert not failed
