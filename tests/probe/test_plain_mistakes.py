"""What a newcomer gets wrong first: each is refused with what was found and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

import landscope as ls
from landscope.core.errors import LandscopeError

X, Y = torch.randn(12, 4), torch.arange(12) % 3


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "weights for a network": (lambda: ls.measure(net().state_dict(), (X, Y)), "Load weights"),
    "a path for a network": (lambda: ls.measure("net.pt", (X, Y)), "Load weights"),
    "data first": (lambda: ls.measure((X, Y), net()), "The model comes first"),
    "classes in words": (lambda: ls.measure(net(), (X, ["a"] * 12)), "no tensors (found: str)"),
    "no such device": (
        lambda: ls.measure(net(), (X, Y), device="gpu"),
        "device 'gpu' cannot be used: Expected one of cpu",
    ),
    "nothing to measure": (lambda: ls.measure(nn.Identity(), (X, Y)), "no parameters at all: there is nothing"),
    "no measures": (lambda: ls.measure(net(), (X, Y), []), "no measures are named"),
    "a misspelt setting": (
        lambda: ls.measure(net(), (X, Y), {"hessian_trace": {"tolerance": 0.1}}),
        "did you mean 'tol'?",
    ),
    "models without names": (lambda: ls.compare([net(), net()], (X, Y)), "models need names"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_says_what_to_do(name: str) -> None:
    call, said = MISTAKES[name]
    with pytest.raises(LandscopeError, match=re.escape(said)):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_not_blamed_on_the_model() -> None:
    with pytest.raises(LandscopeError, match="device 'cuda' cannot be used"):
        ls.measure(net(), (X, Y), device="cuda")


def test_running_statistics_that_were_never_set_are_told() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    told = "the running statistics of BatchNorm (1) were never set"
    assert told in str(ls.measure(model, (X, Y), ["loss"]))
    assert told not in str(ls.measure(model, (X, Y), ["loss"], mode="batch_statistics"))
    model.train()(X)
    assert told not in str(ls.measure(model, (X, Y), ["loss"]))
