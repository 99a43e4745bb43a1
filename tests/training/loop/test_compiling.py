"""Compiled passes on the CPU: the steps are those of the network as it is, for whole batches alone; nothing is left behind."""

from __future__ import annotations

import copy

import pytest
import torch
from loop_runs import BASE, EXACT, METHODS, merged
from torch import Tensor, nn

from landscope.core.errors import DifferentiationError, SpecError
from landscope.specs.schema import parse
from landscope.training.fast_steps import Compiled, parts_to_compile
from landscope.training.loop.program import SingleProgram
from landscope.training.loop.step import Feed, TrainingStep
from landscope.training.objectives import FAM
from landscope.training.spec import TrainingSpec
from landscope.training.task import make_task

DOUBLE = {"precision": "float64", "model": {"dropout": 0.0}}


class Counting:
    """A backend that runs graphs as they are, gradients of graphs included, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        self.graphs += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)  # type: ignore[attr-defined]


def _run(method: str, steps: int, backend: Counting | None) -> nn.Module:
    """Steps of a run, two epochs of three batches of 32 rows and one of 4, compiled or not."""
    torch._dynamo.reset()  # type: ignore[attr-defined]
    spec = parse(TrainingSpec, merged(BASE, DOUBLE, METHODS[method]))
    task = make_task(spec)
    program = SingleProgram(task, graphs=False)
    step = TrainingStep(task, program.optimizer, fam=program.fam)
    if backend is not None:
        layer = task.model.get_submodule(program.fam.layer) if program.fam else None
        step = Compiled(step, 32, parts_to_compile(task.model, layer), backend)  # type: ignore[assignment]
    feed = Feed(task)
    for at in range(steps):
        step(*feed(at))
    program.close()
    return task.model


@pytest.mark.parametrize("method", ["momentum", "adam", "sam", "fam", "fam-probe", "fam-sam"])
def test_steps_are_those_of_the_network_as_it_is(method: str) -> None:
    counting = Counting()
    fast, plain = _run(method, 8, counting), _run(method, 8, None)
    assert counting.graphs > 0
    for name, value in plain.state_dict().items():
        assert torch.allclose(fast.state_dict()[name], value, rtol=1e-9, atol=1e-12), name


def test_a_smaller_batch_is_not_compiled() -> None:
    counts = []
    for steps in (1, 3, 4, 8):
        counting = Counting()
        _run("momentum", steps, counting)
        counts.append(counting.graphs)
    assert counts == [1, 1, 1, 1]


def test_nothing_is_left_on_the_model() -> None:
    model = _run("momentum", 2, Counting())
    assert all("forward" not in vars(module) for module in model.modules())
    copy.deepcopy(model)


def test_a_forward_of_the_user_s_own_comes_back() -> None:
    layer = nn.Linear(2, 2)
    own = layer.forward
    layer.forward = own  # type: ignore[method-assign]
    seen: list[object] = []

    def step(x: Tensor, y: Tensor) -> Tensor:
        seen.append(vars(layer)["forward"])
        return layer(x).sum()

    Compiled(step, 1, [layer], Counting())(torch.ones(1, 2), torch.ones(1))
    assert seen[0] is not own
    assert vars(layer)["forward"] is own


def test_what_cannot_be_compiled_is_said() -> None:
    def refuses(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        raise OSError("no compiler here")

    layer = nn.Linear(2, 2)
    with pytest.raises(
        SpecError, match="compile: torch cannot compile this network: .*no compiler here.*Set compile: false"
    ):
        Compiled(lambda x, y: layer(x).sum(), 1, [layer], refuses)(torch.ones(1, 2), torch.ones(1))


def test_other_errors_come_as_they_are() -> None:
    layer = nn.Linear(2, 2)

    def fails(x: Tensor, y: Tensor) -> Tensor:
        raise RuntimeError("out of something")

    with pytest.raises(RuntimeError, match="out of something"):
        Compiled(fails, 1, [layer], Counting())(torch.ones(1, 2), torch.ones(1))


class Listed(nn.Module):
    """Blocks in a list, which is never called itself; a layer in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)])
        self.head = nn.Linear(2, 2)


def test_lists_are_looked_into() -> None:
    net = Listed()
    assert parts_to_compile(net, before=net.head) == (net.stem, *net.blocks)
    assert parts_to_compile(net, before=net.blocks[1]) == (net.stem, net.blocks[0])


class Backwards(nn.Module):
    """Registers what runs last first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
        self.body = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_what_is_compiled_behind_the_layer_is_refused() -> None:
    torch._dynamo.reset()  # type: ignore[attr-defined]
    net = Backwards()
    fam = FAM(net, layer="body")

    def step(x: Tensor, y: Tensor) -> Tensor:
        return fam(nn.functional.cross_entropy(net(x), y))

    x, y = torch.randn(4, 2), torch.arange(4) % 2
    with pytest.raises(DifferentiationError, match=r"leave out `torch\.compile`"):
        Compiled(step, 4, parts_to_compile(net, before=net.body), Counting())(x, y)
    step(x, y).backward()


def test_compile_is_for_gpus() -> None:
    spec = parse(TrainingSpec, merged(BASE, EXACT, {"compile": True}))
    assert isinstance(SingleProgram(make_task(spec))._step, TrainingStep)
