"""One contract for every way to train: deterministic, in lower precision, in parts, clipped, interrupted, in two processes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from loop_runs import BASE, EXACT, METHODS, distance, interrupted, merged, same, weights
from processes import run_together
from safetensors.torch import load_file, save_file

from landscope.training.loop.train import train

every_method = pytest.mark.parametrize("method", METHODS)
PARTS = [name for name in METHODS if name not in ("m-sam", "fam-probe", "everything")]
"""Those whose step on a batch in parts is that on the whole: m-SAM is defined by its parts, probes are drawn for each."""
ROUNDING = 1e5 * torch.finfo(torch.float64).eps


@every_method
def test_same_seed_same_weights_and_another_seed_others(method: str) -> None:
    spec = merged(BASE, METHODS[method])
    before = torch.get_rng_state()
    result = train(spec)
    assert torch.equal(before, torch.get_rng_state()), "the global generator is as it was"
    assert result.finished
    assert len(result.history) == 3
    assert same(result, train(spec))
    assert distance(result.model, train({**spec, "seed": 4}).model) > 1e-3
    assert all(math.isfinite(value) for row in result.history for value in row.values())
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


@every_method
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_stays_near(method: str, precision: str) -> None:
    spec = merged(BASE, METHODS[method], {"model": {"dropout": 0.0}})
    lower = train({**spec, "precision": precision})
    assert {p.dtype for p in lower.model.parameters()} == {torch.float32}
    assert abs(lower.history[-1]["train_loss"] - train(spec).history[-1]["train_loss"]) < 0.1


def test_losses_of_a_lower_precision_are_summed_in_a_higher_one() -> None:
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(300, 5, generator=generator), torch.randint(3, (300,), generator=generator)
    spec = {"epochs": 1, "batch_size": 300, "precision": "bfloat16", "optimizer": {"lr": 0.0}}
    result = train(
        {**spec, "model": {"name": "mlp", "widths": [7]}}, data={"train": (x, y), "validation": (x, y)}, device="cpu"
    )
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = result.model(x)
    assert outputs.dtype == torch.bfloat16
    truth = float(torch.nn.functional.cross_entropy(outputs.double(), y))
    assert result.history[0]["train_loss"] == pytest.approx(truth, rel=1e-6)
    assert result.history[0]["validation_loss"] == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("method", PARTS)
def test_a_batch_in_parts_is_the_whole_batch(method: str) -> None:
    spec = merged(BASE, METHODS[method], EXACT)
    whole, parts = train(spec), train({**spec, "accumulate": 3})
    assert distance(parts.model, whole.model) < ROUNDING
    if whole.average is not None:
        assert distance(parts.average, whole.average) < ROUNDING


@every_method
def test_clipping(method: str) -> None:
    spec = merged(BASE, METHODS[method])
    assert same(train({**spec, "clip_norm": 1e6}), train({**spec, "clip_norm": 1e9})), "it is never reached"
    assert distance(train({**spec, "clip_norm": 1e-2}).model, train({**spec, "clip_norm": 1e9}).model) > 1e-3


@every_method
def test_interrupted_runs_end_alike(method: str, tmp_path: Path) -> None:
    spec = merged(BASE, METHODS[method])
    # in the middle of an epoch, at its end, right after its end, just before the last step
    assert same(interrupted(spec, tmp_path, 2, 4, 5, 11), train(spec))


@every_method
def test_interrupted_runs_with_few_rows_end_alike(method: str, tmp_path: Path) -> None:
    spec = merged(BASE, METHODS[method], {"epochs": 5, "evaluate_every": 2})
    # in the middle of an epoch, at the ends of epochs without and with a row, after the last row but one
    whole = train(spec)
    assert [row["epoch"] for row in whole.history] == [2, 4, 5]
    assert same(interrupted(spec, tmp_path, 2, 4, 6, 8, 13, 17), whole)


@pytest.mark.parametrize(("rows", "epochs"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])])
@pytest.mark.parametrize("batches", [{}, {"drop_last": True}, {"batch_size": "full"}])
def test_a_row_is_the_mean_since_the_row_before(rows: int, epochs: list[int], batches: dict[str, object]) -> None:
    spec = merged(BASE, batches, {"epochs": 5, "fam": 0.1})
    every, some = train(spec), train({**spec, "evaluate_every": rows})
    assert distance(every.model, some.model) == 0
    assert [row["epoch"] for row in some.history] == epochs
    for before, row in zip([0, *epochs], some.history, strict=False):
        met = every.history[before : int(row["epoch"])]
        for key in ("train_loss", "train_error", "kappa"):
            assert row[key] == pytest.approx(sum(one[key] for one in met) / len(met), rel=1e-12)
        for key in ("step", "lr", "validation_loss", "validation_error"):
            assert row[key] == met[-1][key]
    assert some.epochs == 5
    assert some.scores == every.scores


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float64"])
def test_interrupted_runs_end_alike_in_other_precisions(precision: str, tmp_path: Path) -> None:
    spec = merged(BASE, METHODS["fam-sam"], {"precision": precision, "accumulate": 2})
    assert same(interrupted(spec, tmp_path, 3, 6), train(spec))


def in_processes(rank: int, folder: Path) -> None:
    for method, settings in METHODS.items():
        result = train(merged(BASE, settings, EXACT), folder=folder / method)
        if rank == 1:
            save_file(
                {str(at): value for at, value in enumerate(weights(result.model))}, folder / f"{method}.safetensors"
            )
    stopped = train(merged(BASE, EXACT), folder=folder / "limited", time_limit=0.0)
    assert (stopped.finished, len(stopped.history)) == (False, 0)
    train(merged(BASE, EXACT), folder=folder / "limited")


def test_two_processes_are_one(tmp_path: Path) -> None:
    run_together(in_processes, tmp_path)
    for method, settings in METHODS.items():
        spec = merged(BASE, settings, EXACT)
        alone, together = train(spec), train(spec, folder=tmp_path / method)
        other = load_file(tmp_path / f"{method}.safetensors")
        assert all(torch.equal(value, other[str(at)]) for at, value in enumerate(weights(together.model))), method
        if "probes" in str(settings):  # each process has signs of its own
            continue
        assert distance(together.model, alone.model) < 1e-12, method
        for a, b in zip(together.history, alone.history, strict=True):
            assert {k: pytest.approx(v, rel=1e-9) for k, v in a.items() if k != "seconds"} == {
                k: v for k, v in b.items() if k != "seconds"
            }
    limited = train(merged(BASE, EXACT), folder=tmp_path / "limited")
    assert same(limited, train(merged(BASE, EXACT), folder=tmp_path / "momentum"))
