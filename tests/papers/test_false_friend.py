"""The third paper's recipe: its settings, every part from end to end at the tiny size, verdicts on tables of known truth."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from study_runs import do_here

from landscope.core.estimate import Estimate, Status
from landscope.data.dataset import Split
from landscope.measures import Report
from landscope.papers import PAPERS, inputs
from landscope.papers.false_friend.analytical import counterexample, deep_linear
from landscope.papers.framework.compare import compare, published_numbers, published_of
from landscope.papers.framework.paper import HUNDRED_CLASSES
from landscope.papers.framework.records import Bundle, load_bundle, save_bundle
from landscope.papers.inputs import enlarged_digits, halved_cifar10
from landscope.spectra import Spectrum
from landscope.studies.grid import runs_of
from landscope.studies.record import MeasuredModel, Record, wide_table
from landscope.studies.study import Study
from landscope.training.schedule import averaging_begins, learning_rate

PAPER = PAPERS["false-friend"]

MODES = ("preresnet164", "wideresnet28x10", "vgg16bn", "vgg16bn-cifar10")
BEYOND = {"vgg16bn-cifar10-modes", "wideresnet28x4-cifar10", "cnn-cifar10", "softmax-rates", "mlp-rates"}
"""Parts for what the paper asks and the first ones cannot show; the paper's own size or the smallest."""
PARTS = {"softmax-regression", "mlp", "vanishing-loss", "cnn", *MODES, *(f"{part}-eval" for part in MODES)}
TOP, TRACE = "train.hessian_top_eigenvalue", "train.hessian_trace"


@pytest.fixture(scope="module")
def paper():
    return PAPER.parts("paper")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Part → its study, every run of it done."""
    studies = {}
    for name, part in PAPER.parts("tiny").items():
        studies[name] = study = Study(part.study, tmp_path_factory.mktemp(name))
        do_here(study)
    return studies


@pytest.mark.parametrize("size", ["tiny", "small", "paper"])
def test_every_study_is_valid_and_says_what_differs(size):
    parts = PAPER.parts(size)
    assert set(parts) == (PARTS if size == "small" else PARTS | BEYOND)
    names = [part.study.name for part in parts.values()]
    assert len(set(names)) == len(names)
    for part in parts.values():
        assert runs_of(part.study)
        assert part.note


def test_mnist_is_trained_as_the_paper_says(paper):
    for name, epochs in (("softmax-regression", 1000), ("mlp", 50)):
        runs = runs_of(paper[name].study)
        assert {(run.condition, run.training.optimizer.weight_decay) for run in runs} == {
            ("l2 0", 0.0),
            ("l2 1e-4", 1e-4),
            ("l2 5e-4", 5e-4),
        }
        for run in runs:
            assert (run.training.epochs, run.training.batch_size, run.training.optimizer.lr) == (epochs, 128, 0.01)
            assert run.training.data.name == "landscope:mnist_split"
        first, spec = runs[0].training, math.ceil(45_000 / 128)
        rates = [learning_rate(first, round(share * epochs * spec), spec) for share in (0, 0.5, 0.7, 0.9, 0.99)]
        assert rates == pytest.approx([0.01, 0.01, 0.00505, 1e-4, 1e-4], rel=1e-3)
    assert PAPER.parts("small")["softmax-regression"].study == paper["softmax-regression"].study
    assert PAPER.parts("small")["mlp"].study == paper["mlp"].study


def test_the_split_keeps_the_last_rows_of_the_training_file_for_validation(monkeypatch):
    rows = Split(torch.arange(60_000), torch.arange(60_000) % 10)
    asked = {}

    def load(name, **options):
        asked.update(options, name=name)
        return SimpleNamespace(train=rows, test=Split(torch.arange(3), torch.arange(3)))

    monkeypatch.setattr(inputs, "load", load)
    split = inputs.mnist_split()
    assert asked == {"name": "mnist", "pixels": "symmetric", "validation": 0}
    assert {name: len(part.y) for name, part in split.items()} == {"train": 45_000, "validation": 5_000, "test": 3}
    assert int(split["train"].x.max()) == 44_999
    assert split["validation"].x.tolist() == list(range(55_000, 60_000))


def test_snapshots_of_softmax_regression_are_taken_after_whole_epochs(paper):
    study = paper["softmax-regression"].study
    steps = runs_of(study)[0].training.snapshots
    assert [step / math.ceil(45_000 / 128) for step in steps] == [10, 50, 200, 500]
    assert study.measuring.checkpoints == ("final", *(f"step {step}" for step in steps))


def test_the_images_are_trained_as_the_paper_says(paper):
    for name, lr in (("cnn", 0.01), ("preresnet164", 0.1), ("wideresnet28x10-eval", 0.1)):
        for run in runs_of(paper[name].study):
            assert (run.training.data.name, run.training.epochs) == (HUNDRED_CLASSES, 300)
            assert (run.training.optimizer.lr, run.training.optimizer.momentum) == (lr, 0.9)
            assert run.training.augmentation is not None
    modes = {name: part.study.measuring.mode for name, part in paper.items()}
    assert {name for name, mode in modes.items() if mode == "batch_statistics"} == set(MODES)


def test_small_images_are_few_plain_and_as_the_note_says():
    parts = PAPER.parts("small")
    for name in {"cnn", *MODES, *(f"{part}-eval" for part in MODES)}:
        note = parts[name].note
        for run in runs_of(parts[name].study):
            training, options = run.training, run.training.data.options
            assert training.augmentation is None
            images = options["train_size"] if name.startswith("vgg16bn") else options["train"]
            assert f"{images:,} images" in note
            assert f"{training.epochs} epochs" in note
            assert f"{parts[name].study.measuring.splits['train'].samples} training rows" in note
            if training.optimizer.name == "sgd":
                assert f"rate {training.optimizer.lr:g}" in note
        assert "Published numbers beside it are of other data and networks." in note


def test_halved_images_are_means_of_four_pixels(monkeypatch):
    rows = Split(torch.arange(48.0).view(1, 3, 4, 4), torch.tensor([1]))
    none = Split(rows.x[:0], rows.y[:0])
    held = {"cifar10": rows, "fashion_mnist": none}  # nothing is held out of the second
    monkeypatch.setattr(inputs, "load", lambda name, **_: SimpleNamespace(train=rows, validation=held[name], test=rows))
    assert list(halved_cifar10()) == ["train", "validation", "test"]
    assert list(inputs.halved_fashion_mnist()) == ["train", "test"]
    x, y = halved_cifar10()["test"]
    assert (x.shape, y.tolist()) == ((1, 3, 2, 2), [1])
    assert x[0, 0, 0, 0] == (0 + 1 + 4 + 5) / 4


@pytest.mark.parametrize(("part", "decays"), [("vgg16bn", (5e-4, 0.25)), ("vgg16bn-cifar10", (3e-4, 0.35))])
def test_gadam_averages_after_epoch_161_at_half_the_rate(paper, part, decays):
    sgd, adam = (
        next(run.training for run in runs_of(paper[part].study) if run.condition == c) for c in ("sgd", "adam")
    )
    assert (sgd.optimizer.weight_decay, adam.optimizer.weight_decay) == decays
    assert (adam.optimizer.decoupled, sgd.optimizer.decoupled) == (True, False)
    assert averaging_begins(adam) == 161
    per_epoch = 10
    rates = [learning_rate(adam, epoch * per_epoch, per_epoch) / 5e-4 for epoch in (0, 80, 161 * 0.7, 145, 161, 299)]
    assert rates == pytest.approx([1, 1, 0.75, 0.5, 0.5, 0.5], abs=5e-3)
    assert learning_rate(sgd, 299 * per_epoch, per_epoch) == pytest.approx(1e-3)


def test_every_published_number_has_its_part(paper):
    beside = pd.concat([published_of("false-friend", part) for part in paper.values()])
    everything = published_numbers("false-friend")
    assert set(zip(beside["table"], beside["metric"], beside["value"], strict=True)) == set(
        zip(everything["table"], everything["metric"], everything["value"], strict=True)
    )
    for part in paper.values():
        conditions = {run.condition for run in runs_of(part.study)}
        assert set(published_of("false-friend", part)["condition"]) <= conditions


def test_enlarged_digits_are_digits():
    x, y = enlarged_digits(train=10, times=2)["train"]
    assert x.shape == (10, 3, 16, 16)
    assert torch.equal(x[:, 0, ::2, ::2], x[:, 2, 1::2, 1::2])
    assert set(y.tolist()) <= set(range(10))


@pytest.mark.slow
def test_tiny_runs_from_end_to_end(tiny):
    for name, study in tiny.items():
        assert study.progress().done == len(study.runs), name
        for record in study.records():
            assert [subject.checkpoint for subject in record.subjects] == list(study.spec.measuring.checkpoints)
            for subject in record.subjects:
                failed = {k: e.reason for k, e in subject.reports["train"].items() if e.status is Status.FAILED}
                assert not failed, name


def test_averages_of_sgd_are_its_last_iterate(tmp_path):
    """The condition is measured as "average" beside Adam's; BatchNorm's statistics apart it must be the final model."""
    from landscope.training import train

    run = next(run for run in runs_of(PAPER.parts("tiny")["vgg16bn"].study) if run.condition == "sgd")
    trained = train(run.training, progress=False)
    final, average = dict(trained.model.named_parameters()), dict(trained.average.named_parameters())
    assert all(torch.equal(final[name], average[name]) for name in final)


@pytest.mark.slow
def test_a_spectrum_travels_through_the_bundle_of_records(tiny, tmp_path):
    study = tiny["softmax-regression"]
    bundle = Bundle("false-friend", "softmax-regression", "tiny", study.spec, tuple(study.records()))
    again = load_bundle(save_bundle(bundle, tmp_path / "softmax-regression.json.gz"))
    pd.testing.assert_frame_equal(wide_table(again.records), study.table(), check_exact=False)
    report = again.records[0].subjects[0].reports["train"]
    spectrum = Spectrum.from_dict(report["published.hessian_top_eigenvalue"].details)
    assert spectrum.nodes.max() == pytest.approx(report["corrected.hessian_top_eigenvalue"].value, rel=1e-3)
    assert report["corrected.hessian_trace"].stderr == 0  # exact where the network is affine in each parameter


@pytest.mark.slow
def test_our_numbers_stand_beside_the_published_ones(tiny):
    part = PAPER.parts("small")["softmax-regression"]
    found = compare(PAPER, part, tiny["softmax-regression"].records())
    assert [(row.condition, row.metric, row.paper) for row in found][:2] == [
        ("l2 0", "val_accuracy_pct", "93.48"),
        ("l2 0", "hessian_top_eigenvalue", "12.26"),
    ]
    assert all(row.published != "–" and row.corrected != "–" for row in found)
    assert len(found) == 6


def test_published_numbers_of_one_mode_of_batch_norm_stand_beside_no_other(paper):
    for name, part in paper.items():
        if name.startswith("wideresnet28x10"):
            tables = set(published_of(PAPER.name, part)["table"])
            assert ("figure 8" in tables) is name.endswith("-eval"), name


def test_the_gap_is_that_of_the_validation_rows(paper):
    errors = {"train": 0.01, "validation": 0.03, "test": 0.06}
    reports = {split: Report({"error": Estimate(value)}) for split, value in errors.items()}
    record = Record(
        run="r",
        condition="l2 0",
        axes={},
        seed=0,
        spec={},
        subjects=(MeasuredModel(checkpoint="final", temperature=1.0, reports=reports),),
    )
    numbers = {number.metric: number for number in compare(PAPER, paper["mlp"], [record])}
    assert numbers["generalisation_gap_pct"].corrected == "2"


def test_the_example_has_the_trace_of_equation_4_and_another_top_eigenvalue():
    for weights in ((-1.0, 1.0, 2.0), (-0.5, 0.7, 0.3)):
        a, b, c = weights
        v = np.array([b * c, a * c, a * b])
        off = np.array([[0, c, b], [c, 0, a], [b, a, 0]])
        truth = np.exp(a * b * c) * (np.outer(v, v) + off)  # by hand
        found = deep_linear(weights)
        assert found["trace"] == pytest.approx(np.trace(truth)) == pytest.approx(found["equation 4"])
        assert found["top"] == pytest.approx(np.linalg.eigvalsh(truth)[-1])
        assert found["top"] != pytest.approx(found["equation 4"], rel=0.1)


def test_the_loss_of_the_counterexample_vanishes_and_its_sharpness_does_not():
    found = [counterexample(m) for m in (5.0, 10.0, 20.0)]
    assert [one["loss"] for one in found] == pytest.approx([math.log1p(math.exp(-m)) for m in (5.0, 10.0, 20.0)])
    assert found[-1]["loss"] < 3e-9
    assert found[-1]["top"] == pytest.approx(math.exp(20), rel=1e-3)
