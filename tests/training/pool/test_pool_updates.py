"""Stacked optimizer steps against torch's optimizers, one per member, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from landscope.core.seeding import generator, normal
from landscope.training.pool.updates import Settings, fresh_state, update
from landscope.training.spec import OptimizerSpec

MEMBERS, STEPS = 3, 7
SHAPES = ((4, 5), (5,), ())
RATES = (0.1, 0.03, 0.01)


def alone(spec: OptimizerSpec, params: list[torch.Tensor]) -> torch.optim.Optimizer:
    if spec.name == "sgd":
        coupled = 0.0 if spec.decoupled else spec.weight_decay
        return torch.optim.SGD(params, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, weight_decay=coupled)
    kind = torch.optim.AdamW if spec.name == "adamw" or spec.decoupled else torch.optim.Adam
    return kind(params, lr=spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)


SPECS = {
    "sgd": OptimizerSpec(momentum=0.0),
    "momentum": OptimizerSpec(momentum=0.9),
    "nesterov": OptimizerSpec(momentum=0.9, nesterov=True, weight_decay=0.1),
    "coupled": OptimizerSpec(momentum=0.9, weight_decay=0.1),
    "decoupled sgd": OptimizerSpec(momentum=0.9, weight_decay=0.1, decoupled=True),
    "adam": OptimizerSpec(name="adam"),
    "adam, coupled": OptimizerSpec(name="adam", weight_decay=0.1, betas=(0.8, 0.95), eps=1e-3),
    "adam, decoupled": OptimizerSpec(name="adam", weight_decay=0.1, decoupled=True),
    "adamw": OptimizerSpec(name="adamw", weight_decay=0.1),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_member_steps_as_torch_would(spec: OptimizerSpec) -> None:
    specs = [replace(spec, lr=lr, weight_decay=spec.weight_decay * (1 + lr)) for lr in RATES]
    start = [normal((MEMBERS, *shape), generator(k, "w"), torch.float64) for k, shape in enumerate(SHAPES)]
    stacked = {str(k): w.clone() for k, w in enumerate(start)}
    settings = Settings(specs)
    single = [[w[i].clone().requires_grad_() for w in start] for i in range(MEMBERS)]
    optimizers = [alone(one, params) for one, params in zip(specs, single, strict=True)]
    state = fresh_state(spec, stacked, settings.remembers)
    for step in range(STEPS):
        factor = 1 / (1 + step)
        grads = [normal(w.shape, generator(k, "g", step), torch.float64) for k, w in enumerate(start)]
        named = {str(k): grad for k, grad in enumerate(grads)}
        update(spec, stacked, named, state, settings(factor, step + 1), settings.decays)
        for i, (one, params, optimizer) in enumerate(zip(specs, single, optimizers, strict=True)):
            for group in optimizer.param_groups:
                group["lr"] = one.lr * factor
            for param, grad in zip(params, grads, strict=True):
                if spec.name == "sgd" and spec.decoupled:
                    param.data.mul_(1 - one.lr * factor * one.weight_decay)
                param.grad = grad[i]
            optimizer.step()
    for k, w in enumerate(stacked.values()):
        for i in range(MEMBERS):
            assert torch.allclose(w[i], single[i][k].detach(), rtol=1e-13, atol=1e-13)
            assert not torch.allclose(w[i], start[k][i], rtol=1e-3, atol=0)


def test_momentum_differs_per_member() -> None:
    """Two members with settings of their own move apart although they see the same gradients."""
    settings = Settings([OptimizerSpec(momentum=0.0), OptimizerSpec(momentum=0.9)])
    w = {"w": torch.zeros(2, 1, dtype=torch.float64)}
    state = fresh_state(OptimizerSpec(), w)
    for step in range(2):
        update(OptimizerSpec(), w, {"w": torch.ones_like(w["w"])}, state, settings(1.0, step + 1))
    assert torch.allclose(w["w"].flatten(), torch.tensor([-0.05 * 2, -0.05 * 2.9], dtype=torch.float64))


def test_what_has_no_gradient_stays() -> None:
    """Weight decay included, as in torch."""
    spec = OptimizerSpec(name="adamw", weight_decay=0.1)
    w = {name: torch.ones(1, 2, dtype=torch.float64) for name in ("seen", "unseen")}
    update(spec, w, {"seen": torch.ones_like(w["seen"])}, fresh_state(spec, w), Settings([spec])(1.0, 1))
    assert torch.equal(w["unseen"], torch.ones(1, 2, dtype=torch.float64))
    assert not torch.equal(w["seen"], w["unseen"])


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_no_rate_and_no_gradient_is_no_move(spec: OptimizerSpec) -> None:
    """That is how a member that failed is frozen."""
    w = {"w": normal((2, 3), generator(0), torch.float64)}
    before = w["w"].clone()
    state = fresh_state(spec, w)
    for tensors in state.values():
        tensors["w"].fill_(0.5)
    frozen = {"rate": 0.0, "corrected_rate": 0.0, "shrink": 1.0}
    settings = Settings([spec, spec])(1.0, 3)
    for name in frozen.keys() & settings.keys():
        settings[name] = torch.stack([settings[name][0], torch.tensor(frozen[name], dtype=torch.float64)])
    update(spec, w, {"w": torch.tensor([[1.0] * 3, [0.0] * 3], dtype=torch.float64)}, state, settings)
    assert torch.equal(w["w"][1], before[1])
    assert not torch.equal(w["w"][0], before[0])
