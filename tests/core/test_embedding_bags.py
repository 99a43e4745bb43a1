"""Bags of embeddings with every derivative: what torch returns, and its derivatives against difference quotients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

from landscope.core.torch_fixes.embedding_bags import differentiate_embedding_bags

WORDS = torch.randint(0, 9, (5, 6), generator=torch.Generator().manual_seed(0))
WORDS[2] = 3


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("last", [False, True])
def test_bags_are_those_of_torch(mode: str, padding: int | None, last: bool) -> None:
    torch.manual_seed(0)
    layer = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding, include_last_offset=last).double()
    ours = copy.deepcopy(layer)
    differentiate_embedding_bags(ours)
    starts = torch.tensor([0, 2, 2, 7, *([30] if last else [])])
    assert torch.equal(ours(WORDS), layer(WORDS))
    assert torch.equal(ours(WORDS.flatten(), starts), layer(WORDS.flatten(), starts))
    if mode == "sum":
        weights = torch.rand(5, 6, dtype=torch.float64)
        assert torch.equal(ours(WORDS, per_sample_weights=weights), layer(WORDS, per_sample_weights=weights))

    def bags(weight: Tensor) -> Tensor:
        return functional_call(ours, {"weight": weight}, (WORDS,)).tanh()

    weight = layer.weight.detach().requires_grad_()
    assert gradcheck(bags, weight, check_forward_ad=True)
    assert gradgradcheck(bags, weight)


def test_a_subclass_stays_what_it_is() -> None:
    class Own(nn.EmbeddingBag):
        pass

    layer = Own(3, 2)
    differentiate_embedding_bags(layer)
    assert type(layer) is Own
