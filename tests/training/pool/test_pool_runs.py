"""Pools from start to end: who leaves when, who fails, what is kept, and what is picked up again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from landscope.core.errors import SpecError, UnknownNameError
from landscope.core.seeding import generator, normal
from landscope.training.loop.run import Run
from landscope.training.loop.train import train
from landscope.training.pool import train_pool as pool_module
from landscope.training.pool.passes import Passes
from landscope.training.pool.result import Pool
from landscope.training.pool.train_pool import train_pool

Spec = dict[str, object]
MLP: Spec = {"name": "mlp", "widths": [8], "batch_norm": True}
NOISY: Spec = {**MLP, "dropout": 0.3}
SPEC: Spec = {"model": NOISY, "epochs": 2, "batch_size": 8, "averaging": "ema", "early_stopping": {}}


def data() -> dict[str, tuple[Tensor, Tensor]]:
    x = normal((34, 5), generator(0, "vectors"), torch.float32)
    y = (x[:, 0] + x[:, 1].square() > 0.5).long() + (x[:, 2] > 1).long()
    return {"train": (x[:22], y[:22]), "validation": (x[22:28], y[22:28]), "test": (x[28:], y[28:])}


def pool_of(spec: Spec = SPEC, seeds: int = 3, **options: object) -> Pool:
    settings = {"data": data(), "strategy": "stacked", "device": "cpu", **options}
    return train_pool(spec, seeds, **settings)  # type: ignore[arg-type]


def weights(pool: Pool) -> list[dict[str, Tensor]]:
    models = [net for member in pool.members for net in (member.model, member.best, member.average) if net is not None]
    return [dict(net.state_dict()) for net in models]


def assert_identical(one: Pool, other: Pool) -> None:
    assert len(weights(one)) == len(weights(other))
    for mine, theirs in zip(weights(one), weights(other), strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    for mine, theirs in zip(one.history, other.history, strict=True):
        assert [{**row, "seconds": 0} for row in mine] == [{**row, "seconds": 0} for row in theirs]
    assert [m.scores for m in one.members] == [m.scores for m in other.members]


@pytest.mark.parametrize("strategy", ["stacked", "sequential"])
def test_members_that_converge_leave(strategy: str) -> None:
    spec = {
        "model": MLP,
        "epochs": 30,
        "batch_size": 8,
        "convergence": {"relative_change": 0.05},
        "precision": "float64",
    }
    pool = pool_of(spec, 4, strategy=strategy)
    epochs = list(pool.to_frame()["epochs"])
    assert len(set(epochs)) > 1, "the seeds are meant to converge at different times"
    for member in pool.members:
        alone = train(member.spec, data=data(), device="cpu")
        assert (len(member.history), member.stopped) == (len(alone.history), alone.stopped)
        assert member.stopped.startswith("converged")
        for name, value in member.model.state_dict().items():
            assert torch.allclose(value, alone.model.state_dict()[name], rtol=1e-9, atol=1e-9)


def test_patience_ends_members_at_their_own_time() -> None:
    spec = {"model": MLP, "epochs": 40, "batch_size": 8, "early_stopping": {"patience": 2}, "precision": "float64"}
    pool = pool_of(spec, 3)
    for member in pool.members:
        alone = train(member.spec, data=data(), device="cpu")
        assert (len(member.history), member.stopped) == (len(alone.history), alone.stopped)


def test_below_ends_members() -> None:
    spec = {"model": {"name": "mlp", "widths": [16]}, "epochs": 60, "batch_size": 8, "convergence": {"below": 0.5}}
    pool = pool_of(spec)
    assert all(member.history[-1]["train_loss"] < 0.5 for member in pool.members)
    assert all(member.history[-2]["train_loss"] >= 0.5 for member in pool.members if len(member.history) > 1)


@pytest.mark.parametrize("optimizer", [{}, {"name": "adamw", "weight_decay": 0.1, "eps": 1e-4}])
def test_a_member_that_fails_fails_alone(optimizer: Spec) -> None:
    spec = {"model": MLP, "epochs": 3, "batch_size": 8, "precision": "float64", "optimizer": optimizer}
    rates = {"optimizer.lr": [0.05, 1e200, 0.02]}
    pool = pool_of(spec, 3, overrides=rates)
    assert list(pool.failed) == [1]
    assert pool.finished
    assert [member.finished for member in pool.members] == [True, False, True]
    assert "step 1 (epoch 1, batch 2 of 3)" in pool.failed[1]
    assert "learning rate 1e+200" in pool.failed[1]
    assert pool.members[1].history == []
    for at in (0, 2):
        alone = train(pool.members[at].spec, data=data(), device="cpu")
        for name, value in pool.model(at).state_dict().items():
            assert torch.allclose(value, alone.model.state_dict()[name], rtol=1e-10, atol=1e-12)


def bad_rows() -> dict[str, tuple[Tensor, Tensor]]:
    """Inputs that are not finite in one row, which every member meets at another step of its first epoch."""
    splits = data()
    splits["train"][0][7, 0] = float("inf")
    return splits


def test_a_failed_member_keeps_its_weights_from_before_the_step() -> None:
    """Statistics, too: everything is as after the steps before, which a run without the bad rows shows."""
    spec = {"model": MLP, "epochs": 1, "batch_size": 4, "precision": "float64"}
    pool = pool_of(spec, 4, data=bad_rows())
    assert len(pool.failed) == 4
    for at, member in enumerate(pool.members):
        step = int(pool.failed[at].partition(" at step ")[2].split()[0])
        assert "not finite: look at these samples" in pool.failed[at]
        alone = train_pool(
            {**spec, "snapshots": [step]}, [member.spec.seed], data=data(), strategy="stacked", device="cpu"
        ).members[0]
        for name, value in member.model.state_dict().items():
            assert torch.allclose(value, alone.snapshots[step][name], rtol=1e-12, atol=1e-12), name


@pytest.mark.parametrize("strategy", ["stacked", "sequential"])
def test_a_failed_member_is_not_tried_again(strategy: str, tmp_path: Path) -> None:
    spec = {"model": MLP, "epochs": 2, "batch_size": 8, "precision": "float64"}
    rates = {"optimizer.lr": [0.05, 1e200]}
    first = pool_of(spec, 2, overrides=rates, strategy=strategy, folder=tmp_path)
    again = pool_of(spec, 2, overrides=rates, strategy=strategy, folder=tmp_path)
    assert first.failed == again.failed
    assert list(again.failed) == [1]
    assert [member.finished for member in again.members] == [True, False]


class KilledError(BaseException):
    pass


def killed_after(steps: int, work: Callable[[], object]) -> None:
    """Run until this many steps are done, then fall over in the next one, as a killed process does."""
    original, left = Run.advance, [steps]

    def advance(run: Run) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KilledError
        original(run)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(Run, "advance", advance)
        work()


@pytest.mark.parametrize("steps", [2, 4, 8])
def test_resuming_gives_the_same_weights(steps: int, tmp_path: Path) -> None:
    """Killed in the middle of an epoch, at its end, and in the second chunk: bit for bit the same as never stopped."""
    whole = pool_of(at_once=2, seeds=4)
    killed_after(steps, lambda: pool_of(at_once=2, seeds=4, folder=tmp_path, checkpoint_every=0))
    resumed = pool_of(at_once=2, seeds=4, folder=tmp_path)
    assert_identical(whole, resumed)
    assert not list(tmp_path.glob("chunk-*"))
    assert_identical(whole, pool_of(at_once=2, seeds=4, folder=tmp_path))


@pytest.mark.parametrize("averaging", ["swa", "ema"])
@pytest.mark.parametrize("steps", [1, 3, 4, 6, 14])
def test_resuming_between_rows_gives_the_same_weights(steps: int, averaging: str, tmp_path: Path) -> None:
    """Killed within an epoch and at the ends of epochs without and with a row."""
    spec = {**SPEC, "epochs": 5, "evaluate_every": 2, "averaging": averaging}
    whole = pool_of(spec)
    assert [[row["epoch"] for row in rows] for rows in whole.history] == [[2, 4, 5]] * 3
    killed_after(steps, lambda: pool_of(spec, folder=tmp_path, checkpoint_every=0))
    assert_identical(whole, pool_of(spec, folder=tmp_path))


@pytest.mark.slow
def test_rows_change_nothing_but_the_history() -> None:
    spec = {"model": MLP, "epochs": 600, "batch_size": "full", "optimizer": {"name": "adam", "lr": 1e-3}}
    every, some = pool_of(spec, 2), pool_of({**spec, "evaluate_every": 250}, 2)
    assert list(some.to_frame()["epochs"]) == [600, 600]
    for mine, theirs in zip(weights(every), weights(some), strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    for all_rows, rows in zip(every.history, some.history, strict=True):
        assert [row["epoch"] for row in rows] == [250, 500, 600]
        late = [row["train_loss"] for row in all_rows[500:]]
        assert rows[-1]["train_loss"] == pytest.approx(sum(late) / len(late), rel=1e-12)


def test_a_member_that_fails_leaves_at_the_next_row() -> None:
    spec = {"model": MLP, "epochs": 6, "batch_size": 8, "precision": "float64", "evaluate_every": 4}
    pool = pool_of(spec, 3, overrides={"optimizer.lr": [0.05, 1e200, 0.02]})
    assert "step 1 (epoch 1, batch 2 of 3)" in pool.failed[1]
    assert [len(rows) for rows in pool.history] == [2, 0, 2]
    for at in (0, 2):
        alone = train(pool.members[at].spec, data=data(), device="cpu")
        for name, value in pool.model(at).state_dict().items():
            assert torch.allclose(value, alone.model.state_dict()[name], rtol=1e-10, atol=1e-12)


def test_a_finished_pool_is_read_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pool_of(folder=tmp_path)
    monkeypatch.setattr(Run, "advance", lambda run: pytest.fail("nothing is left to do"))
    again = pool_of(folder=tmp_path)
    assert_identical(first, again)
    assert [m.folder for m in again.members] == [tmp_path / f"member-{at:03d}" for at in range(3)]
    alone = train(first.members[1].spec, data=data(), device="cpu", folder=tmp_path / "member-001")
    assert alone.history == first.members[1].history, "a member's folder is the folder of a run"


@pytest.mark.parametrize("strategy", ["stacked", "sequential"])
def test_a_time_limit_returns_what_there_is(strategy: str, tmp_path: Path) -> None:
    stopped = pool_of(strategy=strategy, time_limit=0.0, folder=tmp_path)
    assert not stopped.finished
    assert {member.stopped for member in stopped.members} == {"time limit"}
    assert_identical(pool_of(strategy=strategy), pool_of(strategy=strategy, folder=tmp_path))


@pytest.mark.parametrize("later", [0, 1])
def test_members_that_left_before_a_stop_are_not_lost(later: int, tmp_path: Path) -> None:
    """Nor do the others draw other noise, with the last checkpoint from before or after the first member left."""
    spec = {"model": NOISY, "epochs": 30, "batch_size": 8, "convergence": {"relative_change": 0.05}}
    whole = pool_of(spec, 4)
    ends = sorted(int(row[-1]["step"]) for row in whole.history)
    assert ends[0] < ends[-1] - 1
    killed_after(ends[0] + later, lambda: pool_of(spec, 4, folder=tmp_path, checkpoint_every=0))
    assert len(list(tmp_path.glob("member-*/history.json"))) >= 1
    assert_identical(whole, pool_of(spec, 4, folder=tmp_path))


def test_a_folder_of_another_pool_is_refused(tmp_path: Path) -> None:
    pool_of(folder=tmp_path)
    with pytest.raises(SpecError, match=r"epochs is 2 there and 1 here"):
        pool_of({**SPEC, "epochs": 1}, folder=tmp_path)
    assert len(pool_of({**SPEC, "epochs": 1}, folder=tmp_path, resume=False).history[0]) == 1


def test_chunks_that_do_not_fit_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {**SPEC, "model": MLP}
    whole = pool_of(spec, seeds=5)
    sizes: list[int] = []
    original = Passes.objectives

    def short_of_memory(self: Passes, stack: object, x: Tensor, *rest: object) -> object:
        if len(x) > 2:
            raise torch.OutOfMemoryError("out of memory")
        sizes.append(len(x))
        return original(self, stack, x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Passes, "objectives", short_of_memory)
    halved = pool_of(spec, seeds=5)
    assert set(sizes[1:]) == {1, 2}
    assert [row[-1]["train_loss"] for row in halved.history] == pytest.approx(
        [row[-1]["train_loss"] for row in whole.history], rel=1e-4
    )


def test_what_one_program_cannot_do_is_sequential() -> None:
    spec = {"model": {"name": "mlp", "widths": [8]}, "epochs": 1, "batch_size": 8, "fam": 0.1}
    pool = pool_of(spec, 2, strategy="auto")
    assert pool.choice.strategy == "sequential"
    assert pool.choice.reason.startswith("fam:")
    assert "kappa" in pool.history[0][0]
    with pytest.raises(SpecError, match=r"fam: .* Use train for each member"):
        pool_of(spec, 2, strategy="stacked")
    with pytest.raises(SpecError, match="precision: float16"):
        pool_of({**SPEC, "precision": "float16"}, strategy="stacked")


class Peeking(nn.Module):
    """Looks at a number, which no vmapped program can."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.fc(x)
        return z * 2 if float(z.detach().sum()) > 0 else z


class Counting(nn.Module):
    """Gives other numbers every time it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(5, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x) * self.calls


def make_peeking() -> nn.Module:
    return Peeking()


def make_counting() -> nn.Module:
    return Counting()


@pytest.mark.parametrize(
    ("function", "why"),
    [("make_peeking", "does not work with torch.func.vmap"), ("make_counting", "gives other numbers")],
)
def test_models_that_vmap_cannot_follow(function: str, why: str) -> None:
    spec = {"model": f"{__name__}:{function}", "epochs": 1, "batch_size": 8}
    pool = pool_of(spec, 2, strategy="auto")
    assert pool.choice.strategy == "sequential"
    assert why in pool.choice.reason
    assert pool.finished


def test_large_activations_are_sequential_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SMALL_WORK", 100)
    assert pool_of(strategy="auto", seeds=2).choice.strategy == "sequential"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seeds": 0}, SpecError, "≥ 1"),
        ({"seeds": []}, SpecError, "empty"),
        (
            {"overrides": {"optimizer.lr": [0.1]}},
            SpecError,
            "expected one value for each of 3 members, got 1 values",
        ),
        ({"overrides": {"optimizer.lr": 0.1}}, SpecError, "one value for each of 3 members"),
        ({"overrides": {"optimizer.lr": [0.1, -1, 0.2]}}, SpecError, "optimizer.lr: must be a number ≥ 0"),
        ({"overrides": {"optimizer.rate": [1, 2, 3]}}, UnknownNameError, "did you mean"),
        ({"overrides": {"batch_size": [1, 2, 3]}}, UnknownNameError, "Choices: clip_norm, optimizer.betas"),
        ({"overrides": {"sam.rho": [1, 2, 3]}}, SpecError, "the spec has no sam"),
        ({"strategy": "fast"}, SpecError, "'fast'"),
        ({"at_once": -1}, SpecError, "at_once: expected a number of members ≥ 1"),
        ({"at_once": 0}, SpecError, "at_once: expected a number of members ≥ 1"),
    ],
)
def test_mistakes_are_told(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pool_of(**{"seeds": 3, **options})  # type: ignore[arg-type]


def test_tables_and_models() -> None:
    pool = pool_of(seeds=2, overrides={"optimizer.lr": [0.1, 0.2]})
    frame = pool.to_frame()
    assert list(frame["optimizer.lr"]) == [0.1, 0.2]
    assert list(frame["epochs"]) == [2, 2]
    assert frame["test_loss"].tolist() == pytest.approx(pool.losses("test").tolist(), rel=1e-6)
    assert len(pool.history_frame()) == 4
    assert pool.outputs(data()["test"][0], "average").shape == (2, 6, 3)
    assert "2 × mlp on the given data" in repr(pool)
    assert "mlp on the given data" in repr(pool.members[0])
    assert not pool.model(0, "best").training
    with pytest.raises(ValueError, match="no average weights"):
        pool_of({"model": MLP, "epochs": 1}).model(0, "average")


def test_measures_of_every_member() -> None:
    pool = pool_of(seeds=2)
    reports = pool.measure(["l2_norm"], split="train")
    for report, member in zip(reports, pool.members, strict=True):
        norm = torch.cat([p.detach().flatten() for p in member.model.parameters()]).double().norm()
        assert report["l2_norm"].value == pytest.approx(float(norm), rel=1e-5)
