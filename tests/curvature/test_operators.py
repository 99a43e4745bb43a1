"""Every operator on every kind of network against the dense float64 truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from networks import BY_NAME, NETS, Net, relative
from scipy.sparse.linalg import eigsh as scipy_eigsh
from torch import nn

from landscope import GGN, EmpiricalFisher, Fisher, Hessian, Loss, Probe, errors
from landscope.curvature import dense
from landscope.curvature.differentiation import gauss_newton_methods, hessian_methods

OPERATORS = {
    Hessian: dense.hessian,
    GGN: dense.ggn,
    Fisher: dense.fisher,
    EmpiricalFisher: dense.empirical_fisher,
}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5}


@pytest.fixture(scope="module")
def truths() -> dict[tuple[str, str], torch.Tensor]:
    return {}


def truth(net: Net, kind: type, known: dict) -> torch.Tensor:
    """The slow truth on the whole data in one batch, computed once per network."""
    key = (net.name, kind.__name__)
    if key not in known:
        known[key] = OPERATORS[kind](Probe(net.model(), net.data()))
    return known[key]


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("net", NETS, ids=str)
def test_matches_the_dense_truth_over_uneven_batches(net: Net, dtype: torch.dtype, kind: type, truths: dict) -> None:
    matrix = truth(net, kind, truths)
    x, y = net.data()
    probe = Probe(net.model(), [(x[:6], y[:6]), (x[6:12], y[6:12]), (x[12:], y[12:])], dtype=dtype)
    op = kind(probe)
    v = torch.randn(op.shape[0], generator=torch.Generator().manual_seed(1), dtype=dtype)
    block = torch.randn(op.shape[0], 3, generator=torch.Generator().manual_seed(2), dtype=dtype)
    assert relative(op @ v, matrix @ v.double()) < TOLERANCE[dtype]
    assert relative(op @ block, matrix @ block.double()) < TOLERANCE[dtype]
    if dtype is torch.float64 and op.shape[0] < 200:  # products with unit vectors, a block at a time
        assert relative(op.dense(), matrix) < TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["relu_mlp", "residual_batchnorm", "transformer_encoder", "lstm"])
@pytest.mark.parametrize("kind", [Hessian, GGN], ids=lambda kind: kind.__name__)
def test_every_way_to_differentiate_twice_gives_the_same(name: str, kind: type, truths: dict) -> None:
    net = BY_NAME[name]
    matrix = truth(net, kind, truths)
    ways = (hessian_methods if kind is Hessian else gauss_newton_methods)(True, torch.device("cpu"))
    block = torch.randn(len(matrix), 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for way in ways:
        op = kind(Probe(net.model(), net.data()))
        op._methods[True] = [way]
        assert relative(op @ block, matrix @ block) < 1e-12, way.name


def test_falls_back_where_an_operation_has_no_forward_derivative() -> None:
    net = BY_NAME["no_forward_derivative"]
    for kind in (Hessian, GGN):
        op = kind(Probe(net.model(), net.data()))
        op._methods[False].sort(key=lambda way: way.name)  # forward mode first
        assert op._methods[False][0].name.startswith("forward")
        op @ torch.ones(op.shape[0], dtype=torch.float64)
        assert [way.name for way in op._methods[False]] == ["reverse over reverse"]


class CutCube(torch.autograd.Function):
    """x³ whose backward pass forgets that its own result depends on x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return (3 * ctx.saved_tensors[0] ** 2 * grad).detach()


def test_wrong_second_derivatives_are_refused_every_time() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.head(CutCube.apply(self.body(x)))

    torch.manual_seed(0)
    probe = Probe(Model().double(), (torch.randn(12, 4), torch.arange(12) % 3))
    head = Hessian(probe, params="head")
    assert relative(head.dense(), dense.hessian(head.probe)) < 1e-9  # nothing of it runs through the wrong operation
    for _ in range(3):
        with pytest.raises(errors.DifferentiationError, match="difference quotients"):
            Hessian(probe) @ torch.ones(probe.n_params)
    assert relative(head.dense(), dense.hessian(head.probe)) < 1e-9


@pytest.mark.parametrize("loss", [nn.HuberLoss(), nn.SmoothL1Loss(), nn.L1Loss()], ids=lambda loss: type(loss).__name__)
def test_ggn_of_losses_whose_gradient_has_no_forward_derivative(loss: nn.Module) -> None:
    net = BY_NAME["gelu_mlp"]
    x, _ = net.data()
    probe = Probe(net.model(), (x, torch.randn(len(x), 3, dtype=torch.float64)), loss)
    expected = dense.ggn(probe)
    for way in gauss_newton_methods(True, torch.device("cpu")):
        op = GGN(probe)
        op._methods[True] = [way]
        assert float((op.dense() - expected).abs().max()) < 1e-12, way.name


def test_says_so_when_an_operation_cannot_be_differentiated_twice() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return ctx.saved_tensors[0].cos() * grad

    class Model(nn.Linear):
        def forward(self, x):
            return Once.apply(super().forward(x))

    op = Hessian(Probe(Model(2, 2), (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))))
    with pytest.raises(errors.DifferentiationError, match="second derivatives|differentiated twice"):
        op @ torch.ones(6)


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
def test_batch_statistics_mode_differs_and_matches_its_own_truth(kind: type) -> None:
    net = BY_NAME["residual_batchnorm"]
    x, y = net.data(12)
    batches = [(x[:5], y[:5]), (x[5:], y[5:])]
    probe = Probe(net.model(), batches, mode="batch_statistics")
    if kind is EmpiricalFisher:  # a sample alone has no batch statistics: the truth is J with samples coupled
        jacobians = []
        for batch in probe.batches():
            jacobian, z = dense._jacobian(probe, batch)
            z = z.detach().requires_grad_()
            (r,) = torch.autograd.grad(probe.loss_of(z, batch), z)
            rows = jacobian.view(*z.shape, -1)
            jacobians.append(torch.einsum("nc,ncp->np", r, rows))
        g = torch.cat(jacobians)
        matrix = g.T @ g / len(g)
    else:
        matrix = OPERATORS[kind](probe)
    assert relative(kind(probe).dense(), matrix) < 1e-9
    assert relative(kind(Probe(net.model(), batches)).dense(), matrix) > 1e-2


@pytest.mark.parametrize("loss", ["mse", "binary_cross_entropy"])
def test_regression_and_yes_no_losses(loss: str) -> None:
    net = BY_NAME["gelu_mlp"]
    x, _ = net.data()
    y = torch.rand(len(x), 3, dtype=torch.float64)
    probe = Probe(net.model(), (x, y if loss == "mse" else y.round()), loss)
    ggn = dense.ggn(probe)
    assert relative(Hessian(probe).dense(), dense.hessian(probe)) < 1e-9
    assert relative(GGN(probe).dense(), ggn) < 1e-9
    assert relative(EmpiricalFisher(probe).dense(), dense.empirical_fisher(probe)) < 1e-9
    assert relative(Fisher(probe).dense(), ggn) < 1e-9  # natural parameters: the two coincide


def test_fisher_of_a_normal_model_is_the_second_moment_of_scores_over_drawn_labels() -> None:
    x = torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64)
    torch.manual_seed(0)
    net = nn.Linear(1, 1, bias=False).double()
    z = net(x).detach()
    draws = z + (0.5**0.5) * torch.randn(3, 200_000, dtype=torch.float64)
    scores = 2 * (z - draws) * x
    expected = scores.square().mean()
    value = Fisher(Probe(net, (x, torch.zeros(3, 1, dtype=torch.float64)), "mse")).dense().item()
    assert abs(value - expected) < 5 * float(scores.square().std()) / 600_000**0.5


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    net = BY_NAME["gelu_mlp"]
    data = net.data()

    class Cooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net.model()

        def forward(self, x):
            return self.inner(x) / temperature

    for kind in OPERATORS:
        cooled = kind(Probe(net.model(), data, temperature=temperature)).dense()
        assert relative(cooled, kind(Probe(Cooled(), data)).dense()) < 1e-12


def test_token_labels_with_ignored_positions() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

        def forward(self, tokens):
            return self.head(torch.tanh(self.embedding(tokens)))

    torch.manual_seed(0)
    model, tokens = Tagger().double(), torch.randint(0, 5, (6, 4))
    labels = torch.randint(0, 3, (6, 4))
    labels[0, 2:] = -100
    probe = Probe(model, {"tokens": tokens, "labels": labels}, batch_size=4)
    expected = nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    assert probe.value() == pytest.approx(expected.item(), rel=1e-12)
    assert relative(Hessian(probe).dense(), dense.hessian(probe)) < 1e-9
    assert relative(Fisher(probe).dense(), dense.ggn(probe)) < 1e-9


@pytest.mark.parametrize("kind", OPERATORS, ids=lambda kind: kind.__name__)
def test_subsets_and_layers_are_diagonal_blocks(kind: type, truths: dict) -> None:
    net = BY_NAME["residual_batchnorm"]
    matrix = truth(net, kind, truths)
    whole = kind(Probe(net.model(), net.data()))
    where = whole.probe.space.slices()
    chosen = torch.cat([torch.arange(*where[name].indices(10**6)) for name in ("conv2.weight", "fc.bias")])
    part = kind(whole.probe, params=["fc.bias", "conv2"])
    assert relative(part.dense(), matrix[chosen][:, chosen]) < 1e-9
    blocks = whole.blocks()
    assert list(blocks) == ["conv1", "bn1", "conv2", "bn2", "fc"]
    for layer, block in blocks.items():
        rows = torch.cat([torch.arange(*where[n].indices(10**6)) for n in whole.probe.layers()[layer]])
        assert relative(block.dense(), matrix[rows][:, rows]) < 1e-9


def test_half_precision_weights_are_measured_in_float32() -> None:
    net = BY_NAME["gelu_mlp"]
    half, data = net.model(dtype=torch.bfloat16), net.data(dtype=torch.bfloat16)
    op = Hessian(Probe(half, data))
    truth = dense.hessian(Probe(half, data, dtype=torch.float64))
    assert op.dtype == torch.float32
    assert relative(op.dense(), truth) < 2e-5


def test_speaks_scipy() -> None:
    net = BY_NAME["relu_mlp"]
    op = Hessian(Probe(net.model(), net.data()))
    top = scipy_eigsh(op.to_scipy(), k=2, which="LA", return_eigenvectors=False)
    assert np.allclose(np.sort(top), np.linalg.eigvalsh(op.dense().numpy())[-2:], rtol=1e-9)


def test_refuses_operands_that_do_not_fit() -> None:
    op = Hessian(Probe(nn.Linear(2, 2), (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))))
    for bad, words in (
        (torch.ones(5), r"vector \(6,\)"),
        (torch.ones(6, 2, 2), "got shape"),
        (torch.ones(6, dtype=torch.long), "real numbers"),
        (np.ones(6), "to_scipy"),
    ):
        with pytest.raises(errors.OperandError, match=words):
            op @ bad
    assert (op @ torch.ones(6, 0)).shape == (6, 0)
    with pytest.raises(errors.OperandError, match="precision"):
        Hessian(op.probe, precision="bf16")
    with pytest.raises(errors.OperandError, match="compile"):
        Hessian(op.probe, compile="yes")


def test_fisher_needs_a_likelihood_and_ggn_a_tensor() -> None:
    data = (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    custom = Probe(nn.Linear(2, 2), data, Loss(lambda z, y: z.square().sum(1), reduction="per_sample"))
    with pytest.raises(errors.NotApplicableError, match="likelihood"):
        Fisher(custom)

    class Pair(nn.Linear):
        def forward(self, x):
            z = super().forward(x)
            return z, z.square().sum(1)

    pair = Probe(
        Pair(2, 2), data, lambda outputs, targets: nn.functional.cross_entropy(outputs[0], targets) + outputs[1].mean()
    )
    assert Hessian(pair).dense().shape == (6, 6)
    with pytest.raises(errors.NotApplicableError, match="one tensor"):
        GGN(pair) @ torch.ones(6)


class Forgetful(torch.autograd.Function):
    """x² whose backward pass is right, but forgets that it depends on x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0].detach() * grad


@pytest.mark.parametrize("inside", [None, torch.float32], ids=["", "float32 inside"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_backward_pass_that_forgets_its_graph_is_noticed(dtype: torch.dtype, inside: torch.dtype | None) -> None:
    class Model(nn.Sequential):
        def forward(self, x):
            rounded = self[0](x).to(inside or x.dtype).to(x.dtype)  # as norms of language models do
            return self[1](Forgetful.apply(rounded))

    torch.manual_seed(0)
    probe = Probe(Model(nn.Linear(3, 4), nn.Linear(4, 2)).to(dtype), (torch.randn(9, 3), torch.arange(9) % 2))
    with pytest.raises(errors.DifferentiationError, match="difference quotients"):
        Hessian(probe) @ probe.vector()
    GGN(probe) @ probe.vector()


def test_the_fused_weight_norm_is_replaced_old_and_new_style() -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        old = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 5), dim=1), nn.Tanh(), nn.Linear(5, 3)).double()
    probe = Probe(old, BY_NAME["weight_norm"].data())
    matrix = Hessian(probe) @ torch.eye(probe.n_params, dtype=torch.float64)
    assert relative(matrix.T, matrix) < 1e-12
    assert probe.value() == pytest.approx(
        nn.functional.cross_entropy(old(probe._held[0].raw[0]), probe._held[0].raw[1]).item()
    )


def test_a_linear_loss_has_no_curvature() -> None:
    probe = Probe(nn.Linear(2, 1), (torch.randn(4, 2), torch.zeros(4)), lambda z, y: z.mean())
    assert torch.equal(Hessian(probe).dense(), torch.zeros(3, 3))


def test_works_inside_no_grad_inference_mode_and_autocast() -> None:
    net = BY_NAME["transformer_encoder"]
    model, data = net.model(), net.data()
    outside = Hessian(Probe(model, data))
    block = torch.randn(outside.shape[0], 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            assert relative(Hessian(Probe(model, data)) @ block, outside @ block) < 1e-12


def test_a_compiled_product_is_the_same_product(truths: dict) -> None:
    net = BY_NAME["gelu_mlp"]
    op = Hessian(Probe(net.model(), net.data()), compile=True)
    v = torch.randn(op.shape[0], 1, dtype=torch.float64)[:, 0].contiguous()
    assert relative(op @ v, truth(net, Hessian, truths) @ v) < 1e-9


def test_a_product_that_does_not_compile_runs_as_it_is(monkeypatch: pytest.MonkeyPatch, truths: dict) -> None:
    def refuse(*args, **kwargs):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", refuse)
    net = BY_NAME["gelu_mlp"]
    op = Hessian(Probe(net.model(), net.data()), compile=True)
    v = torch.ones(op.shape[0], dtype=torch.float64)
    assert relative(op @ v, truth(net, Hessian, truths) @ v) < 1e-9


def test_auto_compiles_once_the_price_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    from landscope.curvature import compilation

    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f, **kw: compiled.append(f) or f)
    net = BY_NAME["relu_mlp"]
    op = Hessian(Probe(net.model(), net.data()))
    v = torch.ones(op.shape[0], dtype=torch.float64)
    op @ v
    monkeypatch.setattr(compilation, "COMPILE_SECONDS", 0.0)
    op @ v
    assert not compiled  # on a CPU there is nothing to gain
    monkeypatch.setattr(compilation, "PAYS", ("cpu",))
    op @ v
    assert len(compiled) == 1


def test_a_kink_beside_the_weights_is_no_wrong_derivative() -> None:
    """A unit whose pre-activations are all but 0 switches within any step: then difference quotients tell nothing."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).double()
    with torch.no_grad():
        net[0].weight[0] *= 1e-13
        net[0].bias[0] = 0.0
        net[2].weight[:, 0] = 1e3
    x, y = torch.randn(12, 3, dtype=torch.float64), torch.arange(12) % 3
    probe = Probe(net, (x, y))
    v = torch.randn(probe.n_params, dtype=torch.float64)
    assert relative(Hessian(probe) @ v, dense.hessian(probe) @ v) < 1e-9
