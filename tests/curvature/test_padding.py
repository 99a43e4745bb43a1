"""The padding row of an embedding is a constant in every way to differentiate; a weight tied to it elsewhere is not."""

from __future__ import annotations

import pytest
import torch
from networks import relative
from torch import Tensor, nn
from torch.func import jvp

from landscope import GGN, EmpiricalFisher, Fisher, Hessian, Probe
from landscope.curvature import dense
from landscope.curvature.differentiation import gauss_newton_methods, hessian_methods

OPERATORS = {
    Hessian: dense.hessian,
    GGN: dense.ggn,
    Fisher: dense.fisher,
    EmpiricalFisher: dense.empirical_fisher,
}


class Doubled(nn.Embedding):
    """A subclass with a forward of its own."""

    def forward(self, tokens: Tensor) -> Tensor:
        return 2 * super().forward(tokens)


class Bag(nn.Module):
    """The sum of the embeddings, then a head; `tied` lets the head use the embedding's weight."""

    def __init__(self, kind: type[nn.Embedding], tied: bool) -> None:
        super().__init__()
        self.embedding, self.head = kind(6, 3, padding_idx=0), nn.Linear(3, 6)
        nn.init.normal_(self.embedding.weight)  # the padding row too
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).sum(1).tanh())


def bag(kind: type[nn.Embedding] = nn.Embedding, tied: bool = False) -> Probe:
    torch.manual_seed(0)
    tokens = torch.randint(0, 6, (12, 4))
    tokens[:, 0] = 0
    return Probe(Bag(kind, tied).double(), (tokens, torch.arange(12) % 6))


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
@pytest.mark.parametrize("kind", [nn.Embedding, Doubled])
def test_every_product_is_that_of_the_masked_gradient(kind: type[nn.Embedding], tied: bool, operator: type) -> None:
    probe = bag(kind, tied)
    truth = OPERATORS[operator](probe)
    assert relative(truth, truth.T) < 1e-12
    assert bool(truth[:3].any()) == tied
    ways = (hessian_methods if operator is Hessian else gauss_newton_methods)(True, torch.device("cpu"))
    for way in ways:
        op = operator(probe)
        op._methods[True] = [way]
        assert relative(op @ torch.eye(probe.n_params, dtype=torch.float64), truth) < 1e-12, way.name


def test_the_tangents_of_outputs_are_those_of_the_jacobian() -> None:
    probe = bag(tied=True)
    batch = next(probe.batches())
    jacobian, _ = dense._jacobian(probe, batch)
    tangent = jvp(lambda at: probe.outputs(at, batch), (dict(probe.params),), (dict(probe.params),))[1]
    assert relative(tangent.flatten(), jacobian @ probe.vector()) < 1e-12


def test_values_and_gradients_stay_as_they_are() -> None:
    torch.manual_seed(0)
    model, tokens, labels = Bag(nn.Embedding, False).double(), torch.randint(0, 6, (12, 4)), torch.arange(12) % 6
    probe = Probe(model, (tokens, labels))
    loss = nn.functional.cross_entropy(model(tokens), labels)
    loss.backward()
    assert probe.value() == pytest.approx(loss.item(), rel=1e-12)
    assert relative(probe.gradient(), torch.cat([p.grad.flatten() for p in model.parameters()])) < 1e-12
    assert type(model.embedding) is nn.Embedding
