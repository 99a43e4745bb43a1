"""A folder belongs to one spec, one model and one set of rows, and holds nothing of a run before."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from loop_runs import BASE, interrupted, merged, same
from torch import Tensor, nn

from landscope.core.errors import SpecError
from landscope.training.loop.folder import STATE, TrainingResult, read_tensors, write_tensors
from landscope.training.loop.train import train
from landscope.training.pool.result import Pool
from landscope.training.pool.train_pool import train_pool

Data = dict[str, tuple[Tensor, Tensor]]
SPEC = {"epochs": 2, "batch_size": 8}
POOL = {"model": {"name": "mlp", "widths": [4]}, "epochs": 3, "batch_size": 8}


def rows(**changes: Callable[[Tensor], Tensor]) -> Data:
    """Three splits, with other labels in some of them."""
    x = torch.randn(36, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    data = {"train": (x[:20], y[:20]), "validation": (x[20:28], y[20:28]), "test": (x[28:], y[28:])}
    return {name: (x, changes.get(name, Tensor.clone)(y)) for name, (x, y) in data.items()}


def flipped(y: Tensor) -> Tensor:
    return 1 - y


def net(activation: nn.Module, *, frozen: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2))
    model[0].requires_grad_(not frozen)
    return model


class Named(nn.Module):
    """Holds a function, whose text has its address in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.scale = nn.Linear(3, 2), lambda z: 2 * z
        with torch.no_grad():
            self.fc.weight.fill_(0.1)
            self.fc.bias.zero_()

    def extra_repr(self) -> str:
        return f"scale={self.scale}"

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.fc(x))


def stopped_after(steps: int) -> Callable[[], bool]:
    left = iter(range(steps))
    return lambda: next(left, steps) >= steps - 1


OTHERS = {
    "activation": (net(nn.Tanh()), rows()),
    "setting": (net(nn.LeakyReLU(0.2)), rows()),
    "frozen": (net(nn.LeakyReLU(0.1), frozen=True), rows()),
    "shape": (nn.Sequential(nn.Linear(3, 5), nn.LeakyReLU(0.1), nn.Linear(5, 2)), rows()),
    "train": (net(nn.LeakyReLU(0.1)), rows(train=flipped)),
    "validation": (net(nn.LeakyReLU(0.1)), rows(validation=flipped)),
    "test": (net(nn.LeakyReLU(0.1)), rows(test=flipped)),
    "no test": (net(nn.LeakyReLU(0.1)), {**rows(), "test": None}),
}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("other", OTHERS)
def test_another_model_or_other_rows_are_refused(other: str, finished: bool, tmp_path: Path) -> None:
    model, data = OTHERS[other]
    mine = net(nn.LeakyReLU(0.1))
    train(SPEC, model=mine, data=rows(), folder=tmp_path, should_stop=None if finished else stopped_after(2))
    with pytest.raises(SpecError, match="another model or other data. Choose another folder"):
        train(SPEC, model=model, data=data, folder=tmp_path)
    assert same(train(SPEC, model=mine, data=rows(), folder=tmp_path), train(SPEC, model=mine, data=rows()))


def test_an_address_in_memory_is_no_difference(tmp_path: Path) -> None:
    first = train(SPEC, model=Named(), data=rows(), folder=tmp_path)
    kept = Named()
    assert repr(kept) != repr(first.model)
    assert same(train(SPEC, model=kept, data=rows(), folder=tmp_path), first)


@pytest.mark.parametrize("finished", [True, False])
def test_folders_of_older_versions_are_taken_up_where_they_agree(finished: bool, tmp_path: Path) -> None:
    mine = net(nn.ReLU())
    train(SPEC, model=mine, data=rows(), folder=tmp_path, should_stop=None if finished else stopped_after(2))
    if finished:
        path = tmp_path / "history.json"
        content = json.loads(path.read_text())
        content["given"] = {key: content["given"][key] for key in ("model", "data")}
        path.write_text(json.dumps(content))
    else:
        tensors, plain = read_tensors(tmp_path / STATE)
        plain["given"] = {key: plain["given"][key] for key in ("model", "data")}
        write_tensors(tmp_path / STATE, tensors, plain)
    with pytest.raises(SpecError, match="another model or other data"):
        train(SPEC, model=mine, data=rows(train=flipped), folder=tmp_path)
    with pytest.raises(SpecError, match="another model or other data"):
        train(SPEC, data=rows(), folder=tmp_path, model=nn.Sequential(nn.Linear(3, 2)))
    assert same(train(SPEC, model=mine, data=rows(), folder=tmp_path), train(SPEC, model=mine, data=rows()))


def test_a_checkpoint_of_version_0_1_is_resumed(tmp_path: Path) -> None:
    """There one model was not a run of n = 1 members: no member dimension, and averages by the number of the parameter."""
    spec = merged(BASE, {"averaging": {"kind": "ema", "start": 0.0}, "early_stopping": {}, "sam": 0.05})
    names = [name for name, _ in train(spec).model.named_parameters()]
    train(spec, folder=tmp_path, should_stop=stopped_after(6))
    tensors, plain = read_tensors(tmp_path / STATE)
    old = {}
    for key, value in tensors.items():
        group, _, name = key.partition("/")
        old_key = {"best": f"best.{name}", "average": f"average.{names.index(name)}" if name in names else ""}
        old[old_key.get(group, key)] = value[0] if group in ("best", "average", "totals") else value
    assert {key.partition(".")[0] for key in old} == {"model", "best", "average", "optimizer", "totals"}
    plain["history"] = plain["history"][0]
    del plain["numbers"]
    write_tensors(tmp_path / STATE, old, plain)
    assert same(train(spec, folder=tmp_path), train(spec))


def test_beginning_anew_leaves_nothing_of_the_run_before(tmp_path: Path) -> None:
    more = {"averaging": "swa", "early_stopping": {}, "snapshots": [1, 2]}
    train(merged(BASE, more), folder=tmp_path)
    first = train(BASE, folder=tmp_path, resume=False)
    assert {path.name for path in tmp_path.rglob("*.*")} == {"spec.json", "history.json", "final.safetensors"}
    assert same(train(BASE, folder=tmp_path), first)


@pytest.mark.parametrize("name", ["average", "best"])
def test_weights_that_the_spec_does_not_ask_for_are_not_read(name: str, tmp_path: Path) -> None:
    first = train(BASE, folder=tmp_path)
    (tmp_path / f"{name}.safetensors").write_bytes((tmp_path / "final.safetensors").read_bytes())
    assert same(train(BASE, folder=tmp_path), first)


@pytest.mark.parametrize("finished", [True, False])
def test_a_snapshot_that_is_gone_is_warned_of(finished: bool, tmp_path: Path) -> None:
    spec = merged(BASE, {"snapshots": [0, 2, 5]})
    train(spec, folder=tmp_path, should_stop=None if finished else stopped_after(5))
    gone = tmp_path / "snapshots" / "step-2.safetensors"
    gone.unlink()
    with pytest.warns(UserWarning, match="step-2.safetensors: gone"):
        assert sorted(train(spec, folder=tmp_path).snapshots) == [0, 5]


def test_a_snapshot_of_the_checkpoint_itself_is_made_again(tmp_path: Path) -> None:
    spec = merged(BASE, {"snapshots": [5]})
    train(spec, folder=tmp_path, should_stop=stopped_after(5))
    (tmp_path / "snapshots" / "step-5.safetensors").unlink()
    assert same(train(spec, folder=tmp_path), train(spec))
    assert same(interrupted(spec, tmp_path / "other", 5), train(spec))


BELOW = (0.6, 0.45, 0.4, 1e-9)


def below_every_loss(member: TrainingResult, x: Tensor, y: Tensor) -> dict[float, int]:
    """What `below` should be, from the weights after every epoch: plain rows, evaluation mode, torch's own loss."""
    losses = {}
    for step, weights in sorted(member.snapshots.items()):
        network = copy.deepcopy(member.model).eval()
        network.load_state_dict(dict(weights))
        losses[step] = nn.functional.cross_entropy(network(x), y).item()
    reached = {bound: [step for step, loss in losses.items() if loss <= bound] for bound in BELOW}
    return {bound: steps[0] for bound, steps in reached.items() if steps}


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("strategy", ["stacked", "sequential"])
def test_weights_are_kept_where_the_training_loss_falls_below(strategy: str, every: int, tmp_path: Path) -> None:
    data, model = rows(), {"name": "mlp", "widths": [8], "batch_norm": True, "dropout": 0.3}
    spec = {"model": model, "epochs": 24, "batch_size": 8, "label_smoothing": 0.2, "evaluate_every": every}
    options = {"data": data, "strategy": strategy, "device": "cpu"}
    ends = [3 * epoch for epoch in range(every, 25, every)]
    whole = train_pool({**spec, "snapshots": ends, "snapshots_below": BELOW}, 3, **options)  # type: ignore[arg-type]
    train_pool({**spec, "snapshots_below": BELOW}, 3, folder=tmp_path, should_stop=stopped_after(10), **options)  # type: ignore[arg-type]
    resumed = train_pool({**spec, "snapshots_below": BELOW}, 3, folder=tmp_path, **options)  # type: ignore[arg-type]
    found = [member.below for member in whole.members]
    assert found == [below_every_loss(member, *data["train"]) for member in whole.members]
    assert len({step for below in found for step in below.values()}) > 2, "they fall at different times"
    for one, other in zip(whole.members, resumed.members, strict=True):
        assert other.below == one.below
        assert sorted(other.snapshots) == sorted(set(one.below.values()))
        for step, weights in other.snapshots.items():
            assert all(torch.equal(weights[name], one.snapshots[step][name]) for name in weights)


def pool_of(seeds: int = 4, data: Data | None = None, **options: object) -> Pool:
    settings = {"data": data or rows(), "strategy": "stacked", "device": "cpu", **options}
    return train_pool(POOL, seeds, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_an_interrupted_pool_does_not_go_on_with_other_rows(split: str, tmp_path: Path) -> None:
    pool_of(folder=tmp_path, should_stop=stopped_after(4))
    with pytest.raises(SpecError, match="chunk-000 holds a run that began from another model or other data"):
        pool_of(folder=tmp_path, data=rows(**{split: flipped}))
    assert pool_of(folder=tmp_path).losses().tolist() == pool_of().losses().tolist()


def test_a_chunk_of_an_older_version_goes_on_with_a_warning(tmp_path: Path) -> None:
    pool_of(folder=tmp_path, should_stop=stopped_after(4))
    path = tmp_path / "chunk-000" / STATE
    tensors, plain = read_tensors(path)
    del plain["given"]
    write_tensors(path, tensors, plain)
    with pytest.warns(UserWarning, match="did not note its data"):
        assert pool_of(folder=tmp_path).losses().tolist() == pool_of().losses().tolist()


@pytest.mark.parametrize("at_once", [None, 2, 3])
def test_a_pool_with_fewer_members_goes_on_with_its_own(at_once: int | None, tmp_path: Path) -> None:
    pool_of(folder=tmp_path, at_once=at_once, should_stop=stopped_after(4))
    fewer = pool_of(2, folder=tmp_path)
    assert fewer.finished
    assert fewer.losses().tolist() == pytest.approx(pool_of(2).losses().tolist(), rel=1e-5)
    assert pool_of(folder=tmp_path).losses().tolist() == pytest.approx(pool_of().losses().tolist(), rel=1e-5)


def test_a_member_that_failed_has_no_snapshots_after_that(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    spec = {**POOL, "precision": "float64", "snapshots": [1, 2, 5]}
    rates = {"optimizer.lr": [0.05, 1e200]}
    options = {"data": rows(), "strategy": "stacked", "device": "cpu", "overrides": rates, "folder": tmp_path}
    train_pool(spec, 2, **options, should_stop=stopped_after(2))
    pool = train_pool(spec, 2, **options)
    assert list(pool.failed) == [1]
    assert [sorted(member.snapshots) for member in pool.members] == [[1, 2, 5], [1]]
    assert not recwarn.list


@pytest.mark.parametrize("finished", [True, False])
def test_a_spec_of_another_version_is_the_same_spec(finished: bool, tmp_path: Path) -> None:
    """Without fields that were added later, and with a function by the place at which it was."""
    spec = merged(BASE, {"model": {"name": "landscope:MLP", "widths": [4]}})
    train(spec, folder=tmp_path, should_stop=None if finished else stopped_after(2))
    written = json.loads((tmp_path / "spec.json").read_text())
    del written["evaluate_every"], written["compile"], written["optimizer"]["decoupled"]
    written["model"]["name"] = "landscope.models.tabular.mlp:MLP"
    (tmp_path / "spec.json").write_text(json.dumps(written))
    assert same(train(spec, folder=tmp_path), train(spec))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compile": True}, "compile is true there and false here"),
        ({"sam": {"rho": 0.1}}, 'sam is {"rho": 0.1, .*} there and null here'),
        ({"no_such_key": 1}, "no_such_key is 1 there and null here"),
    ],
)
def test_another_spec_is_told_by_what_differs(change: dict[str, object], message: str, tmp_path: Path) -> None:
    train(BASE, folder=tmp_path, should_stop=stopped_after(2))
    written = json.loads((tmp_path / "spec.json").read_text())
    del written["evaluate_every"], written["compile"]
    (tmp_path / "spec.json").write_text(json.dumps({**written, **change}))
    with pytest.raises(SpecError, match=f"holds a run of another spec: [^;]*{message}"):
        train(BASE, folder=tmp_path)


def test_the_module_of_a_class_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(SPEC, model=Named(), data=rows(), folder=tmp_path)
    monkeypatch.setattr(Named, "__module__", "moved")
    assert same(train(SPEC, model=Named(), data=rows(), folder=tmp_path), first)
