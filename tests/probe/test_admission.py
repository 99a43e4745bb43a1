"""Models that cannot be measured are refused with a remedy; what can be is measured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import landscope as ls
from landscope import GGN, Hessian, Probe, errors

X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
TOKENS = torch.randint(0, 7, (20, 3), generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


class Words(nn.Module):
    def __init__(self, sparse: bool = False, bag: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        kind = nn.EmbeddingBag if bag else nn.Embedding
        self.embedding, self.norm, self.head = kind(7, 4, sparse=sparse), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.embedding(tokens)
        return self.head(self.norm(found if found.dim() == 2 else found.mean(1)))


@pytest.mark.filterwarnings("ignore")
def test_quantised_models() -> None:
    whole = torch.ao.quantization.quantize_dynamic(net(), {nn.Linear})
    with pytest.raises(errors.ModelError, match="weights of 0, 2 are quantised.*before its quantisation"):
        Probe(whole, (X, Y))
    part = torch.ao.quantization.quantize_dynamic(Words(), {nn.Linear})
    with pytest.raises(errors.ModelError, match="weights of head are quantised.* Only the 36 parameters"):
        Probe(part, (TOKENS, Y))
    with pytest.raises(errors.ModelError, match=r"exactly 0.*because head let no gradient through"):
        Probe(part, (TOKENS, Y), params="embedding")
    recurrent = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LSTM(4, 3)), {nn.LSTM})
    with pytest.raises(errors.ModelError, match="are quantised"):
        Probe(recurrent, (X, Y))


@pytest.mark.filterwarnings("ignore")
def test_a_float_head_on_quantised_layers_can_be_measured_by_name() -> None:
    stubs = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
    model = nn.Sequential(stubs[0], nn.Linear(4, 5), stubs[1], nn.Tanh(), nn.Linear(5, 3)).eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
    model[4].qconfig = None
    prepared = torch.ao.quantization.prepare(model)
    prepared(X)
    quantised = torch.ao.quantization.convert(prepared)
    with pytest.raises(errors.ModelError, match=r"weights of 0, 1, 2 are quantised.*params="):
        Probe(quantised, (X, Y))
    probe = Probe(quantised, (X, Y), params="4")
    assert probe.n_params == 18
    assert float((Hessian(probe) @ torch.ones(18)).norm()) > 0


@pytest.mark.filterwarnings("ignore")
def test_statically_quantised_models() -> None:
    model = nn.Sequential(torch.ao.quantization.QuantStub(), net(), torch.ao.quantization.DeQuantStub()).eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
    prepared = torch.ao.quantization.prepare(model)
    prepared(X)
    with pytest.raises(errors.ModelError, match=r"1\.0.* are quantised"):
        Probe(torch.ao.quantization.convert(prepared), (X, Y))


@pytest.mark.filterwarnings("ignore")
def test_torchscript() -> None:
    for scripted in (torch.jit.script(net()), torch.jit.trace(net(), X)):
        with pytest.raises(errors.ModelError, match="compiled by torch.jit.*Measure the eager model"):
            Probe(scripted, (X, Y))
    inside = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3))
    with pytest.raises(errors.ModelError, match=r"layer that holds 0\.weight, 0\.bias is compiled"):
        Probe(inside, (X, Y))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scripted_layer_that_is_not_measured(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(4, 4), nn.Linear(4, 3)
    eager = Probe(nn.Sequential(first, nn.Tanh(), last), (X, Y), params="2", dtype=dtype)
    mixed = nn.Sequential(torch.jit.script(first), nn.Tanh(), last)
    probe = Probe(mixed, (X, Y), params="2", dtype=dtype)
    assert torch.allclose(probe.gradient(), eager.gradient())
    assert torch.allclose(GGN(probe) @ torch.ones(15, dtype=dtype), GGN(eager) @ torch.ones(15, dtype=dtype))
    assert mixed[0].weight.dtype == torch.float32


@pytest.mark.parametrize("bag", [False, True])
def test_sparse_embeddings_are_dense_on_the_copy(bag: bool) -> None:
    model = Words(sparse=True, bag=bag)
    probe, dense = Probe(model, (TOKENS, Y)), Probe(Words(bag=bag), (TOKENS, Y))
    assert torch.equal(probe.gradient(), dense.gradient())
    assert model.embedding.sparse
    v = torch.randn(probe.n_params, generator=torch.Generator().manual_seed(1))
    assert torch.equal(Hessian(probe) @ v, Hessian(dense) @ v)
    assert torch.equal(GGN(probe) @ v, GGN(dense) @ v)


def test_gradients_that_are_divided_by_frequency_are_those_of_the_loss() -> None:
    model, plain = Words(), Words()
    model.embedding.scale_grad_by_freq = True
    assert torch.equal(Probe(model, (TOKENS, Y)).gradient(), Probe(plain, (TOKENS, Y)).gradient())
    assert model.embedding.scale_grad_by_freq


def test_bags_are_the_means_of_their_rows() -> None:
    """`nn.EmbeddingBag` averages what `Words` averages by hand: the same Hessian, which torch's bags do not have."""
    bags, rows = Words(bag=True).double(), Words().double()
    rows.load_state_dict(bags.state_dict())

    def forward(tokens: Tensor) -> Tensor:
        return rows.head(rows.norm(rows.embedding(tokens).mean(1)))

    rows.forward = forward  # type: ignore[method-assign]
    v = torch.randn(bags.embedding.weight.numel() + 23, dtype=torch.float64)
    assert torch.allclose(Hessian(Probe(bags, (TOKENS, Y))) @ v, Hessian(Probe(rows, (TOKENS, Y))) @ v)


def test_a_largest_norm_of_embeddings_is_applied_once() -> None:
    model = Words()
    model.embedding = nn.Embedding(7, 4, max_norm=1.0)
    before = model.embedding.weight.detach().clone()
    probe = Probe(model, (TOKENS, Y))
    assert torch.equal(model.embedding.weight, before)
    assert probe.value() == pytest.approx(nn.functional.cross_entropy(model(TOKENS), Y).item(), rel=1e-6)
    assert model.embedding.max_norm == 1.0
    assert torch.isfinite(Hessian(probe) @ probe.vector()).all()


def test_a_sparse_gradient_of_the_models_own() -> None:
    class Direct(Words):
        def forward(self, tokens: Tensor) -> Tensor:
            found = nn.functional.embedding(tokens, self.embedding.weight, sparse=True)
            return self.head(self.norm(found.mean(1)))

    assert torch.equal(Probe(Direct(), (TOKENS, Y)).gradient(), Probe(Words(), (TOKENS, Y)).gradient())


def test_weights_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = net()
    with pytest.raises(errors.ModelError, match=r"0\.weight is on the meta device.*Load the weights"):
        Probe(model, (X, Y))
    part = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    part[1].running_mean = torch.empty(3, device="meta")
    with pytest.raises(errors.ModelError, match=r"1\.running_mean is on the meta device"):
        Probe(part, (X, Y))


class Rotated(nn.Module):
    """A complex buffer, as rotary position embeddings have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 3)
        self.register_buffer("turn", torch.polar(torch.ones(2), torch.tensor([0.3, 0.7])))

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.unflatten(1, (2, 2))) * self.turn
        return self.head(torch.view_as_real(turned).flatten(1))


def test_complex_weights_are_refused_and_complex_buffers_follow_the_precision() -> None:
    model = net()
    model[0].phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(errors.ModelError, match=r"0\.phase is complex.*view_as_complex"):
        Probe(model, (X, Y))
    for dtype, kind in ((torch.float32, torch.complex64), (torch.float64, torch.complex128)):
        probe = Probe(Rotated(), (X, Y), dtype=dtype)
        assert probe.module("").turn.dtype == kind
        assert ls.measure(probe, measures="gradient_norm")["gradient_norm"].status.has_value


class Graph(nn.Module):
    """A sparse matrix as a buffer, as graph networks hold their edges."""

    def __init__(self, dense: bool, learned: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 3)
        edges = (torch.rand(4, 4) > 0.5).float()
        edges = edges if dense else edges.to_sparse()
        if learned:
            self.edges = nn.Parameter(edges)
        else:
            self.register_buffer("edges", edges)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.edges @ x.T).T)


def test_sparse_tensors() -> None:
    sparse, dense = Probe(Graph(False), (X, Y)), Probe(Graph(True), (X, Y))
    assert torch.allclose(sparse.gradient(), dense.gradient(), atol=1e-6)
    assert torch.allclose(Hessian(sparse) @ dense.vector(), Hessian(dense) @ dense.vector(), atol=1e-6)
    with pytest.raises(errors.ModelError, match="edges is a sparse_coo tensor.*to_dense"):
        Probe(Graph(False, learned=True), (X, Y))


def test_a_fixed_batch_size_keeps_its_batches() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Tensor:
            assert len(x) == 20, "exported for 20 rows"
            return self.inner(x)

    with pytest.raises(errors.ModelError, match=r"(?s)exported for 20 rows.*mode='batch_statistics'"):
        Probe(Fixed(), (X, Y))
    assert Probe(Fixed(), (X, Y), mode="batch_statistics").value() == Probe(net(), (X, Y)).value()
