"""The third paper's recipe: its settings, every part from end to end at the tiny size, verdicts on tables of known truth."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from study_runs import do_here

from landscope.core.estimate import Estimate, Status
from landscope.data.dataset import Split
from landscope.measures import Report
from landscope.recipes import false_friend, halved_images
from landscope.recipes.bundle import Bundle, load_bundle, save_bundle
from landscope.recipes.comparing import compare
from landscope.recipes.false_friend import RECIPE
from landscope.recipes.false_friend_claims import DECAYS, claims
from landscope.recipes.false_friend_images import enlarged_digits, halved_cifar10
from landscope.recipes.hundred_classes import HUNDRED_CLASSES
from landscope.recipes.numbers import published_numbers, published_of
from landscope.spectra import Spectrum
from landscope.studies.grid import runs_of
from landscope.studies.record import MeasuredModel, Record, wide_table
from landscope.studies.study import Study
from landscope.training.schedule import averaging_begins, learning_rate

MODES = ("preresnet164", "wideresnet28x10", "vgg16bn", "vgg16bn-cifar10")
PARTS = {"softmax-regression", "mlp", "vanishing-loss", "cnn", *MODES, *(f"{part}-eval" for part in MODES)}
TOP, TRACE = "train.hessian_top_eigenvalue", "train.hessian_trace"


@pytest.fixture(scope="module")
def paper():
    return RECIPE.parts("paper")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Part → its study, every run of it done."""
    studies = {}
    for name, part in RECIPE.parts("tiny").items():
        studies[name] = study = Study(part.study, tmp_path_factory.mktemp(name))
        do_here(study)
    return studies


@pytest.mark.parametrize("size", ["tiny", "small", "paper"])
def test_every_study_is_valid_and_says_what_differs(size):
    parts = RECIPE.parts(size)
    assert set(parts) == PARTS
    names = [part.study.name for part in parts.values()]
    assert len(set(names)) == len(names)
    for part in parts.values():
        assert runs_of(part.study)
        assert part.note


def test_mnist_is_trained_as_the_paper_says(paper):
    for name, epochs in (("softmax-regression", 1000), ("mlp", 50)):
        runs = runs_of(paper[name].study)
        assert {(run.condition, run.training.optimizer.weight_decay) for run in runs} == set(DECAYS.items())
        for run in runs:
            assert (run.training.epochs, run.training.batch_size, run.training.optimizer.lr) == (epochs, 128, 0.01)
            assert run.training.data.name == "landscope.recipes.false_friend:mnist_split"
        first, spec = runs[0].training, math.ceil(45_000 / 128)
        rates = [learning_rate(first, round(share * epochs * spec), spec) for share in (0, 0.5, 0.7, 0.9, 0.99)]
        assert rates == pytest.approx([0.01, 0.01, 0.00505, 1e-4, 1e-4], rel=1e-3)
    assert RECIPE.parts("small")["softmax-regression"].study == paper["softmax-regression"].study
    assert RECIPE.parts("small")["mlp"].study == paper["mlp"].study


def test_the_split_keeps_the_last_rows_of_the_training_file_for_validation(monkeypatch):
    rows = Split(torch.arange(60_000), torch.arange(60_000) % 10)
    asked = {}

    def load(name, **options):
        asked.update(options, name=name)
        return SimpleNamespace(train=rows, test=Split(torch.arange(3), torch.arange(3)))

    monkeypatch.setattr(false_friend, "load", load)
    split = false_friend.mnist_split()
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
    parts = RECIPE.parts("small")
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
    monkeypatch.setattr(
        halved_images, "load", lambda name, **_: SimpleNamespace(train=rows, validation=held[name], test=rows)
    )
    assert list(halved_cifar10()) == ["train", "validation", "test"]
    assert list(halved_images.halved_fashion_mnist()) == ["train", "test"]
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

    run = next(run for run in runs_of(RECIPE.parts("tiny")["vgg16bn"].study) if run.condition == "sgd")
    trained = train(run.training, progress=False)
    final, average = dict(trained.model.named_parameters()), dict(trained.average.named_parameters())
    assert all(torch.equal(final[name], average[name]) for name in final)


def test_a_spectrum_travels_through_the_bundle_of_records(tiny, tmp_path):
    study = tiny["softmax-regression"]
    bundle = Bundle("false-friend", "softmax-regression", "tiny", study.spec, tuple(study.records()))
    again = load_bundle(save_bundle(bundle, tmp_path / "softmax-regression.json.gz"))
    pd.testing.assert_frame_equal(wide_table(again.records), study.table(), check_exact=False)
    report = again.records[0].subjects[0].reports["train"]
    spectrum = Spectrum.from_dict(report["published.hessian_top_eigenvalue"].details)
    assert spectrum.nodes.max() == pytest.approx(report["corrected.hessian_top_eigenvalue"].value, rel=1e-3)
    assert report["corrected.hessian_trace"].stderr > 0


def test_our_numbers_stand_beside_the_published_ones(tiny):
    part = RECIPE.parts("small")["softmax-regression"]
    found = compare(RECIPE, part, tiny["softmax-regression"].records())
    assert [(row.condition, row.metric, row.paper) for row in found][:2] == [
        ("l2 0", "val_accuracy_pct", "93.48"),
        ("l2 0", "hessian_top_eigenvalue", "12.26"),
    ]
    assert all(row.published != "–" and row.corrected != "–" for row in found)
    assert len(found) == 6


def test_claims_of_tiny_tables_rest_on_their_records_and_say_that_models_are_too_few(tiny):
    found = claims({name: study.table() for name, study in tiny.items()})
    assert {claim.part for claim in found} == PARTS - {f"{part}-eval" for part in MODES if part != "wideresnet28x10"}
    for claim in found:
        assert set(claim.records) == set(tiny[claim.part].runs)
        assert "nan" not in claim.why
    regularised = [claim for claim in found if "L2" in claim.text or "minima" in claim.text]
    assert {claim.verdict for claim in regularised} == {"cannot be told"}


def test_without_tables_there_are_no_claims():
    assert claims({}) == []


# Tables whose truth is known


def regularised(top, accuracy, seeds=5, noise=1e-6, test=None):
    """One row per condition and seed; `top` and `accuracy` are the conditions' values."""
    rng = np.random.default_rng(0)
    rows = []
    for place, condition in enumerate(DECAYS):
        for seed in range(seeds):
            shift = noise * rng.standard_normal(6)
            rows.append(
                {
                    "run": f"{condition}-{seed}",
                    "condition": condition,
                    "seed": seed,
                    "checkpoint": "final",
                    "train.accuracy": 0.99,
                    "validation.accuracy": accuracy[place] + shift[0],
                    "test.accuracy": (test or accuracy)[place] + shift[1],
                    "train.corrected.hessian_top_eigenvalue": top[place] + shift[2],
                    "train.corrected.hessian_trace": top[place] + shift[3],
                    "train.corrected.hessian_frobenius": top[place] + shift[4],
                }
            )
    return pd.DataFrame(rows)


def verdicts(tables):
    return {claim.text: claim.verdict for claim in claims(tables)}


PUBLISHED = {"top": (12.26, 14.17, 15.84), "accuracy": (0.9348, 0.94, 0.9408)}


def test_the_published_pattern_makes_the_claims_hold():
    assert set(verdicts({"mlp": regularised(**PUBLISHED)}).values()) == {"holds"}


def test_the_opposite_pattern_makes_them_fail():
    found = verdicts({"mlp": regularised(top=(3, 2, 1), accuracy=(0.95, 0.94, 0.93))})
    assert found["MLP: L2 regularisation raises validation accuracy"] == "does not hold"
    assert found["MLP: L2 regularisation raises the spectral norm λ₁ of the Hessian"] == "does not hold"
    found = verdicts({"mlp": regularised(top=(3, 2, 1), accuracy=(0.93, 0.94, 0.95))})
    assert found["MLP: the sharper a network, the better it generalises"] == "does not hold"
    assert found["MLP: the generalisation gap is smallest where λ₁ is largest"] == "does not hold"


def test_one_run_of_each_condition_as_in_the_paper_cannot_tell():
    found = claims({"mlp": regularised(**PUBLISHED, seeds=1)})
    assert {claim.verdict for claim in found} == {"cannot be told"}
    assert all("n = 3" in claim.why for claim in found)


def test_validation_and_test_rows_must_agree():
    found = verdicts({"mlp": regularised(**PUBLISHED, test=(0.95, 0.94, 0.93))})
    assert found["MLP: L2 regularisation raises validation accuracy"] == "cannot be told"
    assert found["MLP: L2 regularisation raises the spectral norm λ₁ of the Hessian"] == "holds"


def test_intervals_are_those_of_other_models_and_not_of_other_seeds_alone():
    """Three seeds of each condition that hardly differ leave no doubt about these conditions, and much about τ."""
    (sharper,) = (c for c in claims({"mlp": regularised(**PUBLISHED, seeds=3)}) if "spectral norm" in c.text)
    low, high = map(float, re.search(r"λ₁: τ = \S+ \[(\S+), (\S+)\]", sharper.why).groups())
    assert high - low > 0.05


def test_a_correlation_whose_interval_contains_zero_is_not_told():
    table = regularised(top=(1.0, 2.0, 3.0), accuracy=(0.9, 0.9, 0.9), seeds=3)
    table["validation.accuracy"] = table["test.accuracy"] = [0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.5]
    (better,) = (c for c in claims({"mlp": table}) if "raises validation accuracy" in c.text)
    assert better.verdict == "cannot be told"


def test_accuracies_are_those_of_the_part_that_predicts():
    wrong = regularised(top=(1, 2, 3), accuracy=(0.9, 0.8, 0.7))
    tables = {"preresnet164": wrong, "preresnet164-eval": regularised(top=(3, 2, 1), accuracy=(0.7, 0.8, 0.9))}
    assert set(verdicts(tables).values()) == {"holds"}
    alone = verdicts({"preresnet164": wrong})
    assert alone["PreResNet: L2 regularisation raises validation accuracy"] == "does not hold"


def test_published_numbers_of_one_mode_of_batch_norm_stand_beside_no_other(paper):
    for name, part in paper.items():
        if name.startswith("wideresnet28x10"):
            tables = set(published_of(RECIPE.name, part)["table"])
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
    numbers = {number.metric: number for number in compare(RECIPE, paper["mlp"], [record])}
    assert numbers["generalisation_gap_pct"].corrected == "2"


@pytest.mark.parametrize(("end", "verdict"), [(14.0, "holds"), (12.3, "does not hold"), (math.nan, "cannot be told")])
def test_convergence_is_judged_by_the_second_half_of_the_training(end, verdict):
    final = regularised(top=(end, 14.1, 15.9), accuracy=PUBLISHED["accuracy"])
    half = regularised(top=(14.01, 14.1, 15.9), accuracy=PUBLISHED["accuracy"]).assign(checkpoint="step 1760")
    early = half.assign(checkpoint="step 352")
    found = verdicts({"softmax-regression": pd.concat([final, half, early], ignore_index=True)})
    assert found["Softmax regression: after 1000 epochs convergence is not an issue"] == verdict


@pytest.mark.parametrize(
    ("seeds", "sharper", "verdict"), [(5, 30.0, "holds"), (5, 0.1, "does not hold"), (3, 30.0, "cannot be told")]
)
def test_optimizers_are_compared_seed_by_seed(seeds, sharper, verdict):
    rows = [
        {
            "run": f"{condition}-{seed}",
            "condition": condition,
            "seed": seed,
            "checkpoint": "average",
            "train.accuracy": 1.0,
            "validation.accuracy": 0.735 + 0.02 * (condition == "adam") + 0.1 * seed,
            "test.accuracy": 0.735 + 0.02 * (condition == "adam") + 0.1 * seed,
            TOP: (sharper if condition == "adam" else 1.0) + 0.01 * seed,
            "train.l2_norm": 40.0 + 5 * (condition == "sgd") + seed,
        }
        for condition in ("sgd", "adam")
        for seed in range(seeds)
    ]
    better, sharp, large = claims({"vgg16bn-cifar10": pd.DataFrame(rows)})
    assert sharp.verdict == verdict
    assert f"{'29 to 30' if sharper == 30 else '0.1 to 0.13'} times as sharp" in sharp.why
    assert large.verdict == ("does not hold" if seeds == 5 else "cannot be told")
    assert better.verdict == ("holds" if seeds == 5 else "cannot be told")


@pytest.mark.parametrize(
    ("losses", "tops", "verdict"),
    [
        ((2.3, 0.1, 1e-5), (20.0, 30.0, 0.01), "holds"),
        ((2.3, 0.1, 1e-5), (20.0, 30.0, 25.0), "does not hold"),
        ((2.3, 1.5, 1.2), (20.0, 30.0, 0.01), "cannot be told"),
    ],
)
def test_the_theorem_is_judged_where_the_loss_has_vanished(losses, tops, verdict):
    rows = [
        {
            "run": f"{seed}",
            "condition": "mlp 100",
            "seed": seed,
            "checkpoint": f"step {step}",
            "train.loss": loss,
            TOP: top,
        }
        for seed in range(3)
        for step, (loss, top) in enumerate(zip(losses, tops, strict=True))
    ]
    table = pd.DataFrame(rows)
    norm, trace = claims({"vanishing-loss": table})
    assert (norm.verdict, trace.verdict) == (verdict, "cannot be told")
    assert trace.why == "trace was not measured"
    assert len(norm.records) == 3
    _, trace = claims({"vanishing-loss": table.assign(**{TRACE: 3 * table[TOP]})})
    assert (trace.verdict, trace.text) == (
        verdict,
        "In the limit of training loss 0 the trace of the Hessian goes to 0",
    )


@pytest.mark.parametrize(("top", "verdict"), [((1, 9, 900), "holds"), ((1, 2, 3), "does not hold")])
def test_sharpness_in_evaluation_mode_is_a_ratio(top, verdict):
    table = regularised(top=top, accuracy=PUBLISHED["accuracy"], seeds=3)
    (claim,) = claims({"wideresnet28x10-eval": table})
    assert claim.verdict == verdict
    (few,) = claims({"wideresnet28x10-eval": table[table["seed"] == 0]})
    assert few.verdict == "cannot be told"
