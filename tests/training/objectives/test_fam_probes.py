"""FAM's random probes: unbiased to the last digit over all signs, and drawn the same again after a restart."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from fam_cases import BY_NAME, CLASSES, F64, gradients, relative
from torch import Tensor, nn

from landscope.curvature.layer.behind import Call, behind
from landscope.curvature.layer.forms import exact_flatness, factor_of, sampled_flatness, sign_shapes
from landscope.training.objectives import FAM
from landscope.training.objectives.recording import Recorder


def every_sign(*shapes: tuple[int, ...]) -> list[Tensor]:
    """All combinations of signs for tensors of these shapes, each (2^total, *shape)."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    table = torch.tensor(list(itertools.product((1.0, -1.0), repeat=sum(sizes))), dtype=F64)
    return [part.reshape(-1, *shape) for part, shape in zip(table.split(sizes, 1), shapes, strict=True)]


def one_call(net: nn.Module, layer: str, x: Tensor) -> tuple[Call, Tensor]:
    recorder = Recorder()
    handle = net.get_submodule(layer).register_forward_hook(recorder.after_layer, with_kwargs=True)
    loss = F.cross_entropy(net(x), torch.arange(len(x)) % CLASSES)
    handle.remove()
    return recorder.taken()[0], loss


def tiny(kind: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    nets = {
        "rows": (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, CLASSES)), (2, 3)),
        "batchnorm": (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, CLASSES)), (5, 3)),
        "conv": (nn.Sequential(nn.Conv1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6, CLASSES)), (4, 1, 5)),
        "grouped": (
            nn.Sequential(nn.Conv1d(2, 2, 2, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(4, CLASSES)),
            (4, 2, 3),
        ),
    }
    net, shape = nets[kind]
    return net.to(F64), torch.randn(shape, dtype=F64)


@pytest.mark.parametrize("layerwise", [False, True], ids=["neuronwise", "layerwise"])
@pytest.mark.parametrize("kind", ["rows", "batchnorm", "conv", "grouped"])
def test_the_mean_over_all_signs_is_the_exact_value_with_its_gradient(kind: str, layerwise: bool) -> None:
    net, x = tiny(kind)
    call, loss = one_call(net, "0", x)
    factor = factor_of(call.weight, layerwise)
    at, mixed = behind(loss, call.outputs), kind == "batchnorm"
    shapes = sign_shapes(call, factor, mixed)
    if len(shapes) == 2:  # a single column of signs: 2^(r + m) draws
        shapes = [(shape[0], 1) for shape in shapes]
    exact = exact_flatness(at, call, factor, mixed)
    mean = sampled_flatness(at, call, factor, every_sign(*shapes))
    assert relative(mean, exact) < 1e-12
    assert relative(gradients(mean, net), gradients(exact, net)) < 1e-12


def test_several_columns_of_signs_are_unbiased_too() -> None:
    net, x = tiny("grouped")
    call, loss = one_call(net, "0", x)
    factor, at = factor_of(call.weight, layerwise=False), behind(loss, call.outputs, differentiable=False)
    mean = sampled_flatness(at, call, factor, every_sign((2, 2), (2, 2)))
    assert relative(mean, exact_flatness(at, call, factor, mixed=False)) < 1e-12


@pytest.mark.parametrize("name", ["hidden, tanh", "conv", "sequences", "BatchNorm behind", "hidden, ReLU"])
def test_many_probes_come_close(name: str) -> None:
    case = BY_NAME[name]
    net, x = case.problem()
    with FAM(net, layer=case.layer) as exact, FAM(net, layer=case.layer, probes=16) as sampled:
        loss = case.loss(net, x)
        exact(loss)
        draws = []
        for _ in range(20):
            sampled(case.loss(net, x))
            draws.append(float(sampled.value))
    found = torch.tensor(draws, dtype=F64)
    assert abs(found.mean() - float(exact.value)) < 4 * found.std() / 20**0.5


def trained(steps: int, net: nn.Module, fam: FAM, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        fam(F.cross_entropy(net(x), torch.arange(len(x)) % CLASSES)).backward()
        optimizer.step()


def test_a_resumed_training_is_the_same_bit_for_bit() -> None:
    net, x = tiny("conv")
    fam, optimizer = FAM(net, layer="0", probes=2, seed=3), torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    trained(2, net, fam, optimizer, x)
    saved = [{k: v.clone() if isinstance(v, Tensor) else v for k, v in net.state_dict().items()}, fam.state_dict()]
    momentum = [optimizer.state[p]["momentum_buffer"].clone() for p in net.parameters()]
    trained(3, net, fam, optimizer, x)

    again, _ = tiny("conv")
    again.load_state_dict(saved[0])
    other, resumed = FAM(again, layer="0", probes=2), torch.optim.SGD(again.parameters(), 0.1, momentum=0.9)
    other.load_state_dict(saved[1])
    for p, buffer in zip(again.parameters(), momentum, strict=True):
        resumed.state[p]["momentum_buffer"] = buffer
    trained(3, again, other, resumed, x)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), again.parameters(), strict=True))
    assert other.state_dict() == fam.state_dict() == {"seed": 3, "draws": 5}


def test_draws_differ_between_steps_and_seeds_and_leave_the_global_generator_alone() -> None:
    net, x = tiny("rows")
    values = {}
    before = torch.get_rng_state()
    for seed in (0, 1):
        with FAM(net, layer="0", probes=1, seed=seed) as fam:
            for step in range(2):
                fam(F.cross_entropy(net(x), torch.arange(len(x)) % CLASSES))
                values[seed, step] = float(fam.value)
    assert len(set(values.values())) == 4
    assert torch.equal(before, torch.get_rng_state())


def test_signs_for_a_recorded_step_are_those_that_it_would_draw_itself() -> None:
    net, _ = tiny("rows")
    with FAM(net, layer="0", probes=2, seed=3) as eager, FAM(net, layer="0", probes=2, seed=3) as replayed:
        passes = [torch.empty(2, 2, 3, dtype=F64), torch.empty(2, 2, 3, dtype=F64)]  # two in one step, as SAM has
        replayed._recorded_signs = [[own] for own in passes]
        for _ in range(2):
            replayed.redraw()
            for own in passes:
                drawn = [torch.empty_like(own)]
                eager._draw(drawn)
                assert torch.equal(own, drawn[0])
        assert replayed.state_dict() == eager.state_dict() == {"seed": 3, "draws": 4}
