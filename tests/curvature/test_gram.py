"""The Gram matrix against rows of the Jacobian made one by one, on every kind of layer, however little memory there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.core.errors import NotApplicableError
from landscope.curvature import dense
from landscope.curvature.gram import GramMatrix, gram
from landscope.curvature.gram import assembly as gram_assembly
from landscope.curvature.gram import jacobian as gram_jacobian
from landscope.curvature.gram import layers as gram_products
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe

N, CLASSES = 6, 3
EXACT = 1e-12
"""Relative to the largest entry, for float64."""


class Attention(nn.Module):
    """Embeddings, learned positions, a Transformer layer, RMSNorm; as many positions as samples, to be mistaken for them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=0)
        self.positions = nn.Embedding(N, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", batch_first=True)
        self.norm = nn.RMSNorm(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(self.encoder(h)).mean(1))


class SequenceFirst(nn.Module):
    """The samples lie along the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x.transpose(0, 1)).tanh().mean(0))


class Reordered(nn.Module):
    """The samples are sorted inside, as packed sequences are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.head(self.inner(x[order]).tanh()[order.argsort()])


class TiedDecoder(nn.Module):
    """The embedding's matrix is used once more by a linear layer, and a last time as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, 5)
        self.inner = nn.Linear(5, 5)
        self.decoder = nn.Linear(5, CLASSES)
        self.decoder.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.inner(self.tokens(x).mean(1)).tanh())


class FunctionalTie(nn.Module):
    """A layer's weight that is also used behind its back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.linear(self.inner(x).tanh(), self.inner.weight.T))


class UsedTwice(nn.Module):
    """One convolution and one norm at two resolutions, one linear layer in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.step = nn.Conv2d(2, 2, 3, padding=1), nn.GroupNorm(1, 2), nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x)).relu_()
        h = self.norm(self.conv(F.avg_pool2d(h, 2))).flatten(1)
        for _ in range(3):
            h = self.step(h).tanh()
        return self.head(h)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Custom(nn.Module):
    """A bare parameter, a reparametrised layer, an unused layer, a layer with a forward of its own, control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.inner = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
        self.unused = nn.Linear(2, 2)
        self.head = Doubled(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x * self.scale).tanh()
        return self.head(h) if float(h.detach().abs().max()) > -1 else h


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def conv_net() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        *(nn.Conv2d(4, 6, (2, 3), dilation=(1, 2), padding="same", bias=False, padding_mode="reflect"), nn.ReLU()),
        *(nn.Conv2d(6, 6, 3, groups=6), nn.GroupNorm(2, 6), nn.Flatten()),
        *(nn.Linear(24, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, CLASSES)),
    )


def line_and_volume() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv1d(2, 4, 3, padding=1, stride=2), nn.Tanh(), nn.Unflatten(2, (2, 2, 1)), nn.Conv3d(4, 3, (2, 1, 1))),
        *(nn.Flatten(), nn.LayerNorm(6), nn.Linear(6, CLASSES)),
    )


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 7, bias=False), nn.LayerNorm(7), nn.Linear(7, CLASSES)
    )


def positions_net() -> nn.Module:
    """Linear layers and a LayerNorm at several positions, fewer and more than their width."""
    return nn.Sequential(nn.Linear(4, 9), nn.LayerNorm((5, 9)), nn.Linear(9, 2), nn.Flatten(), nn.Linear(10, CLASSES))


def real(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(N, *shape, dtype=torch.float64)


def indices(high: int, length: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, high, (N, length))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (mlp, real(4)),
    "conv": (conv_net, real(2, 8, 8)),
    "conv1d and conv3d": (line_and_volume, real(2, 8)),
    "positions": (positions_net, real(5, 4)),
    "transformer": (Attention, indices(11, N)),
    "sequence first": (SequenceFirst, real(N, 4)),
    "samples reordered": (Reordered, real(4)),
    "tied weights": (TiedDecoder, indices(CLASSES, 4)),
    "functional tie": (FunctionalTie, real(4)),
    "layers used twice": (UsedTwice, real(2, 4, 4)),
    "recurrent": (Recurrent, real(5, 4)),
    "custom": (Custom, real(4)),
}
BY_RULES_ALONE = {"mlp", "conv", "conv1d and conv3d", "positions", "layers used twice"}


def probe_of(name: str) -> tuple[Probe, Batch]:
    torch.manual_seed(3)
    make, inputs = NETS[name]
    net = make().double()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)):
            nn.init.normal_(module.weight)
    probe = Probe(net, (inputs(), torch.arange(N) % CLASSES))
    return probe, next(probe.batches())


def jacobian(probe: Probe, batch: Batch) -> Tensor:
    """J (nC, P), one backward pass per row, each sample evaluated alone where it can be."""
    rows = []
    with probe.measuring():
        for sample in batch.pieces(1):
            leaves = {name: p.clone().requires_grad_() for name, p in probe.params.items()}
            z = probe.outputs(leaves, sample)
            assert isinstance(z, Tensor)
            for value in z.flatten():
                grads = torch.autograd.grad(
                    value, list(leaves.values()), retain_graph=True, allow_unused=True, materialize_grads=True
                )
                rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("name", NETS)
def test_jacobian_gram_is_the_dense_one(name: str) -> None:
    probe, batch = probe_of(name)
    j = jacobian(probe, batch)
    assert distance(gram(probe, batch).jacobian_gram, j @ j.T) < EXACT


@pytest.mark.parametrize(
    ("name", "room"), [(name, 30_000) for name in NETS] + [(name, 4) for name in (*sorted(BY_RULES_ALONE), "custom")]
)
def test_little_memory_changes_nothing(name: str, room: int) -> None:
    probe, batch = probe_of(name)
    j = jacobian(probe, batch)
    assert distance(gram(probe, batch, room=room).jacobian_gram, j @ j.T) < EXACT


@pytest.mark.parametrize("name", sorted(BY_RULES_ALONE))
def test_layers_with_rules_need_no_rows_of_the_jacobian(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left_over: list[str] = []
    monkeypatch.setattr(gram_assembly, "add_jacobian", lambda *args, **_: left_over.extend(args[3]))
    probe, batch = probe_of(name)
    gram(probe, batch)
    assert left_over == []


def test_only_what_has_no_rule_goes_through_rows_of_the_jacobian(monkeypatch: pytest.MonkeyPatch) -> None:
    left_over: list[str] = []
    monkeypatch.setattr(gram_assembly, "add_jacobian", lambda *args, **_: left_over.extend(args[3]))
    probe, batch = probe_of("transformer")
    gram(probe, batch)
    attention = {name for name in probe.params if ".self_attn." in name}
    assert set(left_over) == attention | {"positions.weight"}


@pytest.mark.parametrize("name", NETS)
def test_fisher_and_gradients_are_the_dense_ones(name: str) -> None:
    probe, batch = probe_of(name)
    matrix = gram(probe, batch)
    j = jacobian(probe, batch).view(N, CLASSES, -1)
    z = probe.outputs(probe.params, batch)
    assert isinstance(z, Tensor)
    p = z.softmax(1)
    s = torch.diag_embed(p.sqrt()) - p[:, :, None] * p.sqrt()[:, None]
    g = (s.mT @ j).flatten(0, 1) / N**0.5
    r = p - torch.eye(CLASSES, dtype=p.dtype)[torch.arange(N) % CLASSES]
    assert distance(g.T @ g, dense.fisher(probe)) < EXACT
    assert distance(matrix.matrix(), g @ g.T) < EXACT
    assert distance(matrix.gradients(), g @ torch.einsum("ncp,nc->pn", j, r)) < EXACT
    values = torch.linalg.eigvalsh(dense.fisher(probe)).flip(0)
    found = matrix.eigenvalues()
    assert len(found) <= N * (CLASSES - 1)
    assert distance(found, values[: len(found)]) < 1e-11


def test_both_ways_through_a_shared_weight_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gram_products.BLOCKS, "cpu", 5)
    a = torch.randn(4, 2, 3, 5, dtype=torch.float64)
    d = torch.randn(4, 3, 2, 3, 6, dtype=torch.float64)
    rows = torch.einsum("ngtk,nqgto->nqgok", a, d).flatten(2).flatten(0, 1)
    truth = (rows @ rows.T).triu()
    for room in (1, 500, 5_000, 10**9):
        for way in (gram_products.add_position_pairs, gram_products.add_sample_gradients):
            theta = torch.zeros(12, 12, dtype=torch.float64)
            way(theta, a, d, room)
            assert distance(theta.triu(), truth) < EXACT


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """Remembers the largest storage that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("bare", [False, True])
def test_nothing_as_large_as_the_jacobian_is_held(bare: bool) -> None:
    """A wide linear layer by its rule, and a wide bare parameter in slices."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(300, 20))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T

    wide = Wide() if bare else nn.Linear(20, 300)
    probe = Probe(nn.Sequential(wide, nn.Tanh(), nn.Linear(300, 4)), (torch.randn(24, 20), torch.arange(24) % 4))
    whole = 24 * 4 * probe.n_params * 4
    with LargestTensor() as largest:
        gram(probe, next(probe.batches()), room=whole)
    assert largest.bytes < whole / 3


def test_float32_loses_no_more_than_its_own_rounding() -> None:
    torch.manual_seed(0)
    net = conv_net()
    x, y = torch.randn(N, 2, 8, 8), torch.arange(N) % CLASSES
    single, double = Probe(net, (x, y)), Probe(net, (x, y), dtype=torch.float64)
    a, b = (gram(probe, next(probe.batches())) for probe in (single, double))
    assert distance(a.jacobian_gram, b.jacobian_gram) < 1e-5
    small = min(len(a.eigenvalues()), len(b.eigenvalues()))
    assert small == N * (CLASSES - 1)
    assert torch.allclose(a.eigenvalues()[:small], b.eigenvalues()[:small], rtol=1e-3, atol=0)


def test_a_part_of_the_parameters() -> None:
    probe, _ = probe_of("conv")
    for selection in ("*.bias", "0.weight", ["1", "6"]):
        part = probe.restrict(selection)
        batch = next(part.batches())
        j = jacobian(part, batch)
        assert distance(gram(part, batch).jacobian_gram, j @ j.T) < EXACT


def test_samples_that_depend_on_each_other() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(N, 2, 8, 8), torch.arange(N) % CLASSES
    probe = Probe(conv_net().double(), [(x, y)], mode="batch_statistics")
    batch = next(probe.batches())
    j = jacobian(probe, batch)
    assert len(j) == N * CLASSES
    for room in (4, 10**9):
        assert distance(gram(probe, batch, room=room).jacobian_gram, j @ j.T) < EXACT


def test_a_model_that_vmap_cannot_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Custom` branches on a value: its samples are differentiated one after the other."""
    singles: list[int] = []
    one_graph = gram_jacobian._JacobianRows._one_graph

    def counted(self: gram_jacobian._JacobianRows, piece: Batch, *rest: object):  # type: ignore[no-untyped-def]
        singles.append(piece.size)
        return one_graph(self, piece, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(gram_jacobian._JacobianRows, "_one_graph", counted)
    probe, batch = probe_of("custom")
    gram(probe, batch)
    assert singles == [1] * N


def test_yes_no_outputs() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    y = torch.randint(0, 2, (5, 2))
    probe = Probe(net, (torch.randn(5, 3), y), "binary_cross_entropy")
    batch = next(probe.batches())
    matrix = gram(probe, batch)
    j = jacobian(probe, batch)
    z = probe.outputs(probe.params, batch)
    assert isinstance(z, Tensor)
    p = z.sigmoid().flatten()
    g = (p * (1 - p) / 2 / 5).sqrt()[:, None] * j
    assert distance(matrix.matrix(), g @ g.T) < EXACT
    assert distance(matrix.residuals.flatten(), (p - y.flatten()) / 2) < EXACT


def test_hooks_are_gone_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, batch = probe_of("conv")

    def interrupt(*_: object) -> Tensor:
        raise KeyboardInterrupt

    before = {name: p.clone() for name, p in probe.params.items()}
    gram(probe, batch)
    monkeypatch.setattr(nn.Tanh, "forward", interrupt)
    monkeypatch.setattr(
        "landscope.curvature.gram._at_outputs", lambda *_: (torch.eye(1), torch.zeros(N, CLASSES), None)
    )
    monkeypatch.setattr("landscope.curvature.gram._class_outputs", lambda *a: a[0].outputs(*a[1:]))
    with pytest.raises(KeyboardInterrupt):
        gram(probe, batch)
    assert all(not module._forward_hooks for module in probe.modules.values())
    assert all(torch.equal(p, before[name]) for name, p in probe.params.items())
    assert all(not p.requires_grad for p in probe.params.values())


def test_running_out_of_memory_makes_the_pieces_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, batch = probe_of("conv")
    rooms: list[int] = []
    real_one = gram_assembly.jacobian_gram

    def scarce(*args: object) -> Tensor:
        rooms.append(args[-1])  # type: ignore[arg-type]
        if len(rooms) < 3:
            raise torch.OutOfMemoryError("out of memory")
        return real_one(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("landscope.curvature.gram.jacobian_gram", scarce)
    matrix = gram(probe, batch, room=2**30)
    assert rooms == [2**30, 2**28, 2**26]
    assert isinstance(matrix, GramMatrix)


@pytest.mark.parametrize(("loss", "outputs"), [("mse", 1), ("exponential", 1)])
def test_losses_without_classes_are_refused(loss: str, outputs: int) -> None:
    probe = Probe(nn.Linear(2, outputs), (torch.randn(4, 2), torch.ones(4, outputs)), loss)
    with pytest.raises(NotApplicableError, match="class probabilities"):
        gram(probe, next(probe.batches()))


def test_several_predictions_per_sample_are_refused() -> None:
    probe = Probe(nn.Linear(2, 3), (torch.randn(4, 5, 2), torch.zeros(4, 5, dtype=torch.long)))
    with pytest.raises(NotApplicableError, match="one prediction per sample"):
        gram(probe, next(probe.batches()))
