"""What a probe accepts, what it computes, and that it changes nothing."""

from __future__ import annotations

import random
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME, NETS, Net
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from landscope import GGN, Hessian, Loss, Probe, errors, freeze

N = 20
X, Y = torch.randn(N, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(N) % 3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(first=nn.Linear(4, 5), act=nn.Tanh(), fc=nn.Linear(5, 3))).double()


class ByName(nn.Module):
    """Takes its inputs by keyword, as Hugging Face models do, and returns an object with logits."""

    Output = namedtuple("Output", "loss logits")

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, input_values: Tensor, scale: Tensor | None = None, labels: Tensor | None = None) -> Output:
        z = self.inner(input_values if scale is None else input_values * scale[:, None])
        return self.Output(None, z)


def reference(model: nn.Module) -> tuple[float, Tensor]:
    loss = F.cross_entropy(model(X), Y)
    return loss.item(), torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


class Reiterable:
    def __iter__(self):
        return iter([(X[:11], Y[:11]), (X[11:], Y[11:])])


KINDS = {
    "tensors": lambda: (X, Y),
    "list_of_tensors": lambda: [X, Y],
    "arrays": lambda: (X.numpy(), Y.numpy()),
    "dataset": lambda: TensorDataset(X, Y),
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=7),
    "shuffled_loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True),
    "uneven_list": lambda: [(X[:9], Y[:9]), (X[9:18], Y[9:18]), (X[18:], Y[18:])],
    "lists_in_list": lambda: [[X[:9], Y[:9]], [X[9:], Y[9:]]],
    "reiterable": Reiterable,
    "int32_labels": lambda: (X, Y.int()),
    "float32_inputs": lambda: (X.float(), Y),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_gives_the_same_loss_and_gradient(kind: str) -> None:
    model = net()
    value, gradient = reference(model)
    probe = Probe(model, KINDS[kind]())
    tolerance = 1e-6 if kind == "float32_inputs" else 1e-12
    assert probe.n_samples == N
    assert probe.value() == pytest.approx(value, rel=tolerance)
    assert torch.allclose(probe.gradient(), gradient, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "batches",
    [
        [{"input_values": X, "labels": Y}],
        [UserDict(input_values=X, labels=Y)],
        [
            {"input_values": X[:7], "label": Y[:7], "idx": ["a"] * 7},
            {"input_values": X[7:], "label": Y[7:], "idx": ["b"] * 13},
        ],
        {"input_values": X, "scale": torch.ones(N, dtype=torch.float64), "targets": Y},
        DataLoader([{"input_values": x, "labels": y} for x, y in zip(X, Y, strict=True)], batch_size=6),
    ],
    ids=["dict", "mapping", "extra_strings", "whole_dict", "loader"],
)
def test_dict_batches_go_in_by_name(batches: object) -> None:
    model = ByName()
    value, gradient = reference(model.inner)
    probe = Probe(model, batches)
    assert probe.value() == pytest.approx(value, rel=1e-12)
    assert torch.allclose(probe.gradient(), gradient, atol=1e-12)


def test_a_dict_with_one_input_under_another_name() -> None:
    assert Probe(net(), {"pixels": X, "y": Y}).value() == pytest.approx(reference(net())[0])
    with pytest.raises(errors.DataError, match="pixels, more, y"):
        Probe(net(), {"pixels": X, "more": X, "y": Y})


def test_several_inputs() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.inner(a + b)

    model = Sum()
    for data in ((X / 2, X / 2, Y), [((X[:5] / 2, X[:5] / 2), Y[:5]), ((X[5:] / 2, X[5:] / 2), Y[5:])]):
        assert Probe(model, data).value() == pytest.approx(reference(model.inner)[0], rel=1e-12)


LOSSES = {
    "criterion": nn.CrossEntropyLoss(),
    "sum_criterion": nn.CrossEntropyLoss(reduction="sum"),
    "mean_function": lambda z, y: F.cross_entropy(z, y),
    "functional": F.cross_entropy,
    "sum_function": lambda z, y: F.cross_entropy(z, y, reduction="sum"),
    "per_sample": lambda z, y: F.cross_entropy(z, y, reduction="none"),
    "of_batch": lambda z, batch: F.cross_entropy(z, batch[1]),
    "declared_mean": Loss(F.cross_entropy, reduction="mean"),
    "declared_batch": Loss(
        lambda z, b: F.cross_entropy(z, b[1], reduction="none"), reduction="per_sample", takes="batch"
    ),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_every_kind_of_loss_is_a_mean_over_samples(kind: str) -> None:
    model = net()
    value, gradient = reference(model)
    probe = Probe(model, KINDS["uneven_list"](), LOSSES[kind])
    assert probe.value() == pytest.approx(value, rel=1e-12)
    assert torch.allclose(probe.gradient(), gradient, atol=1e-12)


def test_label_smoothing_and_soft_labels() -> None:
    model = net()
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert Probe(model, (X, Y), smooth).value() == pytest.approx(smooth(model(X), Y).item(), rel=1e-12)
    soft = torch.softmax(torch.randn(N, 3, dtype=torch.float64), 1)
    assert Probe(model, (X, soft)).value() == pytest.approx(F.cross_entropy(model(X), soft).item(), rel=1e-12)


@pytest.mark.parametrize(
    ("criterion", "function"),
    [
        (nn.MSELoss, F.mse_loss),
        (nn.BCEWithLogitsLoss, F.binary_cross_entropy_with_logits),
        (nn.CrossEntropyLoss, F.cross_entropy),
    ],
)
def test_criteria_that_add_up_add_up_over_outputs_too(criterion: type, function: Callable[..., Tensor]) -> None:
    model, soft = net(), torch.softmax(torch.randn(N, 3, dtype=torch.float64), 1)
    probe = Probe(model, (X, soft), criterion(reduction="sum"))
    expected = function(model(X), soft, reduction="sum").item() / N
    assert probe.value() == pytest.approx(expected, rel=1e-12)
    assert probe.losses(probe.params, next(probe.batches())).sum().item() / N == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ignored_positions_are_left_out(smoothing: float, reduction: str) -> None:
    class Positions(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).unflatten(1, (3, 4))

    model = Positions(4, 12).double()
    labels = torch.randint(0, 3, (N, 4), generator=torch.Generator().manual_seed(0))
    labels[::2, 1:3] = -100
    probe = Probe(model, (X, labels), nn.CrossEntropyLoss(label_smoothing=smoothing, reduction=reduction))
    expected = F.cross_entropy(model(X), labels, label_smoothing=smoothing, reduction=reduction).item()
    assert probe.value() == pytest.approx(expected / (N if reduction == "sum" else 1), rel=1e-12)


def test_frozen_batches_of_bare_tensors_read_back_as_batches() -> None:
    model = nn.Linear(4, 4).double()
    loader = DataLoader(X, batch_size=5, shuffle=True)
    loss = lambda outputs, batch: (outputs - batch).square().mean(1)  # noqa: E731
    probe = Probe(model, freeze(loader), loss)
    assert probe.n_samples == N
    assert probe.value() == pytest.approx((model(X) - X).square().mean().item(), rel=1e-12)


def test_a_loss_without_targets_takes_the_whole_batch() -> None:
    model = nn.Linear(4, 4).double()
    probe = Probe(model, X, lambda outputs, batch: (outputs - batch[0]).square().mean(1))
    assert probe.value() == pytest.approx((model(X) - X).square().mean().item(), rel=1e-12)


def test_a_graph_whose_batch_cannot_be_cut() -> None:
    class Graph:
        """The face of torch_geometric's Data: attributes, `to_dict`, `apply`."""

        def __init__(self, **fields: Tensor) -> None:
            self.__dict__.update(fields)

        def to_dict(self) -> dict[str, Tensor]:
            return dict(self.__dict__)

        def apply(self, function):
            for name, value in self.to_dict().items():
                setattr(self, name, function(value))
            return self

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, graph: Graph) -> Tensor:
            return self.inner(graph.adjacency @ graph.x)[graph.mask]

    adjacency = torch.softmax(torch.randn(N, N, dtype=torch.float64), 1)
    mask = torch.arange(N) < 7
    model = Net()
    probe = Probe(model, [Graph(x=X, adjacency=adjacency, mask=mask, y=Y[:7])])
    assert probe.n_samples == 7
    assert probe.value() == pytest.approx(F.cross_entropy(model.inner(adjacency @ X)[:7], Y[:7]).item(), rel=1e-12)
    assert torch.isfinite(Hessian(probe) @ probe.vector()).all()


def state_of(model: nn.Module) -> dict[str, object]:
    return {
        "tensors": {k: (v.clone(), v.dtype, v.data_ptr()) for k, v in model.state_dict(keep_vars=False).items()},
        "grads": {k: None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()},
        "requires_grad": {k: p.requires_grad for k, p in model.named_parameters()},
        "modes": {k: m.training for k, m in model.named_modules()},
        "hooks": {
            k: (dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks))
            for k, m in model.named_modules()
        },
        "attributes": {k: set(vars(m)) for k, m in model.named_modules()},
    }


def rng_state() -> tuple[object, ...]:
    return random.getstate(), tuple(map(str, np.random.get_state())), torch.get_rng_state().tolist()


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    for key, (value, dtype, pointer) in before["tensors"].items():
        now, now_dtype, now_pointer = after["tensors"][key]
        assert torch.equal(value, now), key
        assert (dtype, pointer) == (now_dtype, now_pointer), key
    for key, grad in before["grads"].items():
        assert (grad is None and after["grads"][key] is None) or torch.equal(grad, after["grads"][key]), key
    for part in ("requires_grad", "modes", "hooks", "attributes"):
        assert before[part] == after[part], part


@pytest.mark.parametrize("mode", ["eval", "batch_statistics"])
@pytest.mark.parametrize("net", NETS, ids=str)
def test_the_model_is_bit_identical_afterwards(net: Net, mode: str) -> None:
    model, (x, y) = net.model(), net.data()
    model.train()
    next(model.parameters()).requires_grad_(False)
    F.cross_entropy(model(x), y).backward()
    model.register_forward_hook(lambda module, args, output: None)
    loader = DataLoader(TensorDataset(x, y), batch_size=5)
    before, rng = state_of(model), rng_state()
    probe = Probe(model, loader, mode=mode)
    probe.value(), probe.gradient(), Hessian(probe) @ probe.vector(), GGN(probe) @ probe.vector()
    assert_same(before, state_of(model))
    assert rng == rng_state()


def test_the_loaders_own_generator_is_put_back() -> None:
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True, generator=generator)
    before = generator.get_state()
    Probe(net(), loader).value()
    assert torch.equal(before, generator.get_state())


@pytest.mark.parametrize("failure", [RuntimeError("inside the loss"), KeyboardInterrupt()])
def test_untouched_when_the_loss_raises_half_way(failure: BaseException) -> None:
    model = BY_NAME["residual_batchnorm"].model().train()
    x, y = BY_NAME["residual_batchnorm"].data()
    calls = []

    def loss(z: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 12:
            raise failure
        return F.cross_entropy(z, targets, reduction="none")

    before, rng = state_of(model), rng_state()
    with pytest.raises((type(failure), errors.DifferentiationError)):
        probe = Probe(model, [(x, y)], loss)
        for _ in range(20):
            Hessian(probe) @ probe.vector()
    assert_same(before, state_of(model))
    assert rng == rng_state()
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_frozen_point_stays_where_it_was() -> None:
    model = net()
    probe = Probe(model, (X, Y))
    before = probe.value()
    with torch.no_grad():
        model.fc.weight.mul_(3)
    assert probe.value() == before


def test_a_model_that_keeps_what_it_saw_is_not_poisoned() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = net(), None

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.inner(x)
            return self.last

    model = Keeps()
    probe = Probe(model, (X, Y))
    Hessian(probe) @ probe.vector()
    assert model.last is None


def test_buffers_that_change_on_every_call_do_not_reach_the_model() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.inner(x)

    model = Counter()
    Probe(model, (X, Y)).value()
    assert model.calls.item() == 0


def test_wrappers_are_looked_through() -> None:
    model = net()
    for wrapped in (nn.DataParallel(model), torch.compile(model)):
        probe = Probe(wrapped, (X, Y))
        assert list(probe.params) == [name for name, _ in model.named_parameters()]


def test_selection_of_parameters() -> None:
    model = net()
    assert list(Probe(model, (X, Y), params="fc").params) == ["fc.weight", "fc.bias"]
    assert list(Probe(model, (X, Y), params=["*.bias"]).params) == ["first.bias", "fc.bias"]
    assert list(Probe(model, (X, Y), params=model.first).params) == ["first.weight", "first.bias"]
    assert list(Probe(model, (X, Y), params=[model.fc.bias, "first.weight"]).params) == ["first.weight", "fc.bias"]
    model.first.weight.requires_grad_(False)
    assert list(Probe(model, (X, Y)).params) == ["first.bias", "fc.weight", "fc.bias"]
    assert list(Probe(model, (X, Y), params="first.weight").params) == ["first.weight"]


def test_vectors_follow_the_order_of_params() -> None:
    model = net()
    probe = Probe(model, (X, Y))
    assert torch.equal(probe.vector(), nn.utils.parameters_to_vector(model.parameters()))
    back = probe.space.unflatten(probe.vector())
    assert all(torch.equal(back[name], p) for name, p in model.named_parameters())


def test_precision_follows_the_model_or_the_wish() -> None:
    assert Probe(net().bfloat16(), (X, Y)).dtype == torch.float32
    assert Probe(net().half(), (X, Y)).dtype == torch.float32
    assert Probe(net(), (X, Y)).dtype == torch.float64
    assert Probe(net().float(), (X, Y), dtype=torch.float64).dtype == torch.float64


def test_temperature_changes_the_loss_only() -> None:
    model = net()
    probe = Probe(model, (X, Y), temperature=2.0)
    assert probe.value() == pytest.approx(F.cross_entropy(model(X) / 2, Y).item(), rel=1e-12)
    assert probe.at_temperature(1.0).value() == pytest.approx(reference(model)[0], rel=1e-12)


def test_streaming_gives_the_same_as_holding(monkeypatch: pytest.MonkeyPatch) -> None:
    from landscope.probe import reading

    model = net()
    loader = DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True)
    held = Probe(model, loader)
    monkeypatch.setattr(reading, "available_bytes", lambda device: 0)
    streamed = Probe(model, loader)
    assert streamed._held is None
    assert streamed.n_samples == N
    assert torch.allclose(streamed.gradient(), held.gradient(), atol=1e-14)
    assert torch.allclose(Hessian(streamed).dense(), Hessian(held).dense(), atol=1e-14)


def test_memory_that_runs_out_halves_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(net(), (X, Y))
    expected = probe.gradient()
    sizes = []
    plain = Probe.loss_sum

    def greedy(self, params, batch):
        sizes.append(batch.size)
        if batch.size > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, params, batch)

    monkeypatch.setattr(Probe, "loss_sum", greedy)
    monkeypatch.setattr(Probe, "fitting", lambda self, load: 20)
    fresh = probe.restrict(["*"])
    assert torch.allclose(fresh.gradient(), expected, atol=1e-14)
    assert sizes[:4] == [20, 10, 5, 2]
    assert max(sizes[3:]) <= 3
    monkeypatch.setattr(Probe, "loss_sum", lambda self, params, batch: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(errors.OutOfMemoryError, match="one sample"):
        probe.restrict(["*"]).gradient()


def test_pieces_are_bounded_by_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from landscope.probe import totals as module

    wide = nn.Sequential(nn.Linear(4, 4096), nn.ReLU(), nn.Linear(4096, 3))
    probe = Probe(wide, (X, Y))
    monkeypatch.setattr(module, "available_bytes", lambda device: 4 * (10 * 4096 * 4))  # a quarter holds ten samples
    small = probe.restrict(["*"])
    assert 5 <= small.fitting(1.0) <= 10
    assert small.fitting(4.0) <= small.fitting(1.0) // 2
    assert torch.allclose(small.gradient(), probe.gradient(), atol=1e-6)
