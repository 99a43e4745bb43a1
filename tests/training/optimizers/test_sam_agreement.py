"""Agreement with pytorch_optimizer's SAM where both are defined: SAM itself, and ASAM with η = 0 for every tensor.

Its adaptive perturbation has T = |w| for every parameter, biases included, and no η; its closure is called once by `step`, at the
perturbed weights; its norm is a float32 number whatever the weights are, which is how far the two can agree.
"""

from __future__ import annotations

import pytest
import torch
from sam_problems import BASES, batch, closure_of, distance, loss_of, network, plain_for, weights

from landscope.training.optimizers import SAM

other = pytest.importorskip("pytorch_optimizer", reason="pytorch_optimizer is not installed")


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("base", BASES)
def test_the_same_steps(base: str, adaptive: bool) -> None:
    kind, options = BASES[base]
    ours, theirs, plain = network(), network(), network()
    sam = SAM(ours.parameters(), kind, rho=0.5, adaptive="all" if adaptive else False, eta=0.0, **options)
    reference = other.SAM(theirs.parameters(), kind, rho=0.5, adaptive=adaptive, perturb_eps=0.0, **options)
    without = plain_for(plain, base)
    for seed in range(5):
        sam.step(closure_of(sam, loss_of(ours, *batch(seed=seed))))
        closure = closure_of(reference, loss_of(theirs, *batch(seed=seed)))
        closure()
        reference.step(closure)
        closure_of(without, loss_of(plain, *batch(seed=seed)))()
        without.step()
    assert distance(weights(ours), weights(theirs)) < torch.finfo(torch.float32).eps
    assert distance(weights(ours), weights(plain)) > 1e-3


def test_adaptive_by_dimension_is_another_definition() -> None:
    ours, theirs = network(), network()
    sam = SAM(ours.parameters(), torch.optim.SGD, rho=0.5, adaptive=True, eta=0.0, lr=0.1)
    reference = other.SAM(theirs.parameters(), torch.optim.SGD, rho=0.5, adaptive=True, perturb_eps=0.0, lr=0.1)
    sam.step(closure_of(sam, loss_of(ours, *batch())))
    closure = closure_of(reference, loss_of(theirs, *batch()))
    closure()
    reference.step(closure)
    assert distance(weights(ours), weights(theirs)) > 1e-4
