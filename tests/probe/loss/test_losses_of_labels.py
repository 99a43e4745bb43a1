"""Losses over labels: padded sequences, ignored positions, class weights, where the classes lie, several targets.

The truth is torch's own loss of all samples at once, or the model's.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import landscope as ls
from landscope import Loss, Probe
from landscope.core import errors
from landscope.curvature import GGN, Fisher, Hessian, dense

N, T, V = 12, 5, 4


def tokens(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sequences of which some labels are ignored, and one sequence altogether."""
    g = torch.Generator().manual_seed(seed)
    ids, labels = (torch.randint(0, V, (N, T), generator=g) for _ in range(2))
    labels[torch.rand(N, T, generator=g) < 0.4] = -100
    labels[3] = -100
    return ids, labels


class Tagger(nn.Module):
    """Logits (n, T, V), or (n, V, T) with `torchs`."""

    def __init__(self, torchs: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.mix, self.head = nn.Embedding(V, 3), nn.Linear(3, 3), nn.Linear(3, V)
        self.torchs = torchs

    def forward(self, ids: Tensor) -> Tensor:
        z = self.head(torch.tanh(self.mix(self.embed(ids)).cumsum(1)))
        return z.transpose(1, 2) if self.torchs else z


LOSSES: dict[str, object] = {
    "name": "cross_entropy",
    "criterion": nn.CrossEntropyLoss(),
    "functional": F.cross_entropy,
    "function": lambda z, y: F.cross_entropy(z if z.shape[1] == V else z.transpose(1, 2), y),
    "declared": Loss(
        lambda z, y: F.cross_entropy(
            z.flatten(0, 1) if z.shape[-1] == V else z.transpose(1, 2).flatten(0, 1), y.flatten()
        ),
        "label_mean",
    ),
}


@pytest.mark.parametrize("torchs", [False, True], ids=["last", "first"])
@pytest.mark.parametrize("kind", LOSSES)
def test_one_mean_over_all_labels_as_in_torch(kind: str, torchs: bool) -> None:
    net, (ids, labels) = Tagger(torchs).double(), tokens()
    z = net(ids) if torchs else net(ids).transpose(1, 2)
    truth = F.cross_entropy(z, labels)
    grads = torch.autograd.grad(truth, list(net.parameters()))
    for data in ((ids, labels), DataLoader(TensorDataset(ids, labels), batch_size=5)):
        probe = Probe(net, data, LOSSES[kind])
        assert probe.value() == pytest.approx(truth.item(), rel=1e-12)
        assert torch.allclose(probe.gradient(), torch.cat([g.flatten() for g in grads]), atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_matrices_of_a_mean_over_all_labels(smoothing: float) -> None:
    net, (ids, labels) = Tagger().double(), tokens()
    kept = (labels != -100).nonzero(as_tuple=True)
    probe = Probe(net, (ids, labels), nn.CrossEntropyLoss(label_smoothing=smoothing))
    flat = torch.cat([p.flatten() for p in probe.params.values()])

    def loss(vector: Tensor) -> Tensor:
        z = torch.func.functional_call(net, probe.space.unflatten(vector), ids)
        return F.cross_entropy(z[kept], labels[kept], label_smoothing=smoothing)

    assert torch.allclose(Hessian(probe).dense(), torch.autograd.functional.hessian(loss, flat), atol=1e-11)
    jacobian = torch.func.jacrev(lambda v: torch.func.functional_call(net, probe.space.unflatten(v), ids)[kept])(flat)
    p = net(ids)[kept].softmax(1)
    root = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    ggn = torch.einsum("kca,kcd,kdb->ab", jacobian, root, jacobian) / len(p)
    assert torch.allclose(Fisher(probe).dense(), ggn, atol=1e-11)
    assert torch.allclose(GGN(probe).dense(), ggn, atol=1e-11)


def test_samples_without_a_label_are_left_out() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(4, 3).double(), torch.randn(20, 4).double(), torch.arange(20) % 3
    y[::4] = -100
    for loss in ("cross_entropy", nn.CrossEntropyLoss(), lambda z, y: F.cross_entropy(z, y)):
        probe = Probe(net, (x, y), loss)
        assert probe.n_samples == 15
        assert probe.value() == pytest.approx(float(F.cross_entropy(net(x), y)), rel=1e-12)
    kept = Probe(net, (x[y >= 0], y[y >= 0]))
    for key in ("relative_flatness", "fisher_trace", "ece", "accuracy", "gradient_noise"):
        assert ls.measure(Probe(net, (x, y)), measures=[key])[key].value == pytest.approx(
            ls.measure(kept, measures=[key])[key].value, rel=1e-9
        ), key


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(), (4,)], ids=["labels", "positions"])
def test_class_weights_as_in_torch(smoothing: float, reduction: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 4).double(), (torch.rand(40, *shape) ** 3 * 3).long()
    y[1] = -100
    net = nn.Sequential(nn.Linear(4, 12), nn.Unflatten(1, (3, 4)) if shape else nn.Linear(12, 3)).double()
    criterion = nn.CrossEntropyLoss(torch.tensor([0.1, 1.0, 7.0]), reduction=reduction, label_smoothing=smoothing)
    truth = criterion.double()(net(x), y)
    probe = Probe(net, DataLoader(TensorDataset(x, y), batch_size=7), criterion.float())
    samples = len(y) - 1 if not shape else len(y) - int((y == -100).flatten(1).all(1).sum()) if shape else 0
    assert probe.value() * (probe.n_samples if reduction == "sum" else 1) == pytest.approx(float(truth), rel=1e-6)
    assert probe.n_samples == samples


def test_another_label_to_ignore() -> None:
    net, (ids, labels) = Tagger().double(), tokens()
    other = torch.where(labels == -100, 0, labels)
    probe = Probe(net, (ids, other), nn.CrossEntropyLoss(ignore_index=0))
    assert probe.value() == pytest.approx(
        float(F.cross_entropy(net(ids).transpose(1, 2), other, ignore_index=0)), rel=1e-12
    )


class Square(nn.Module):
    """As many positions as classes."""

    def __init__(self, wrapped: bool = False) -> None:
        super().__init__()
        self.lin, self.wrapped = nn.Linear(T, T * T), wrapped

    def forward(self, x: Tensor) -> object:
        z = self.lin(x).unflatten(1, (T, T))
        return SimpleNamespace(logits=z) if self.wrapped else z


def test_as_many_positions_as_classes() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, T), torch.randint(0, T, (6, T))
    for model, loss in (
        (Square(), "cross_entropy"),
        (Square(True), "cross_entropy"),
        (Square(True), nn.CrossEntropyLoss()),
    ):
        with pytest.raises(errors.LossError, match="in two ways"):
            Probe(model, (x, y), loss)
    net = Square()
    assert Probe(net, (x, y), nn.CrossEntropyLoss()).value() == pytest.approx(
        float(F.cross_entropy(net(x), y)), rel=1e-6
    )


def test_classes_lie_in_one_dimension_for_all_batches() -> None:
    """Where the classes lie is settled once: a later batch with as many positions as classes is read the same way."""
    net = Tagger().double()
    g = torch.Generator().manual_seed(0)
    batches = [tuple(torch.randint(0, V, (3, length), generator=g) for _ in range(2)) for length in (5, V, 2)]
    truth = sum(F.cross_entropy(net(x).flatten(0, 1), y.flatten(), reduction="sum") for x, y in batches)
    count = sum(y.numel() for _, y in batches)
    assert Probe(net, batches).value() == pytest.approx(float(truth) / count, rel=1e-12)


def test_several_yes_no_labels_are_not_probabilities() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(4, 3), torch.randn(20, 4), (torch.rand(20, 3) > 0.5).float()
    with pytest.raises(errors.LossError, match="binary_cross_entropy"):
        Probe(net, (x, y))
    with pytest.raises(errors.LossError, match="binary_cross_entropy"):
        Probe(net, (x, y.long()))
    assert Probe(net, (x, y), nn.CrossEntropyLoss()).value() == pytest.approx(
        float(F.cross_entropy(net(x), y)), rel=1e-6
    )
    late = torch.cat([torch.eye(3)[torch.arange(40) % 3], y])
    with pytest.raises(errors.LossError, match="add up to"):
        Probe(net, DataLoader(TensorDataset(torch.randn(60, 4), late), batch_size=8))


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 3.0])], ids=["plain", "weighted"])
def test_smoothing_with_probabilities_of_images(weight: Tensor | None) -> None:
    torch.manual_seed(0)
    net, x = nn.Conv2d(2, 3, 1).double(), torch.randn(6, 2, 4, 4).double()
    soft = torch.randn(6, 3, 4, 4).double().softmax(1)
    criterion = nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    truth = nn.CrossEntropyLoss(None if weight is None else weight.double(), label_smoothing=0.1)(net(x), soft)
    assert Probe(net, (x, soft), criterion).value() == pytest.approx(float(truth), rel=1e-6)


class SelfScoring(nn.Module):
    """A language model that shifts the labels and returns its own loss, in the shape of Hugging Face's or of nanoGPT's."""

    def __init__(self, shift: bool, as_tuple: bool = False) -> None:
        super().__init__()
        self.inner, self.shift, self.as_tuple = Tagger(), shift, as_tuple

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> object:
        z, loss = self.inner(input_ids), None
        if labels is not None:
            a, b = (z[:, :-1], labels[:, 1:]) if self.shift else (z, labels)
            loss = F.cross_entropy(a.flatten(0, 1), b.flatten())
        return (z, loss) if self.as_tuple else SimpleNamespace(logits=z, loss=loss)


@pytest.mark.parametrize("as_tuple", [False, True])
@pytest.mark.parametrize("in_dict", [False, True])
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("asked", [None, "model"])
def test_a_model_that_computes_its_own_loss(asked: str | None, shift: bool, in_dict: bool, as_tuple: bool) -> None:
    net, (ids, labels) = SelfScoring(shift, as_tuple).double(), tokens()
    data = {"input_ids": ids, "labels": labels} if in_dict else (ids, labels)
    found = net(ids, labels)
    own = found[1] if as_tuple else found.loss
    probe = Probe(net, data, asked)
    assert probe.value() == pytest.approx(float(own), rel=1e-12)
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100) if shift else labels
    named = Probe(net.inner, (ids, shifted))
    for matrix in (Hessian, GGN, Fisher):
        assert torch.allclose(matrix(probe).dense(), matrix(named).dense(), atol=1e-12)


@pytest.mark.parametrize("in_dict", [False, True])
@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss()])
def test_another_loss_than_the_models_own_is_refused(loss: object, in_dict: bool) -> None:
    net, (ids, labels) = SelfScoring(True).double(), tokens()
    data = {"input_ids": ids, "labels": labels} if in_dict else (ids, labels)
    with pytest.raises(errors.LossError, match=r"computes a loss of its own.*Leave the loss out"):
        Probe(net, data, loss)
    shifted = {"input_ids": ids, "targets": F.pad(labels[:, 1:], (0, 1), value=-100)}
    assert Probe(net, shifted, loss).value() == pytest.approx(float(net(ids, labels).loss), rel=1e-12)
    tagging = SelfScoring(False).double()
    assert Probe(tagging, data, loss).value() == pytest.approx(float(tagging(ids, labels).loss), rel=1e-12)


class TwoHeads(nn.Module):
    """Returns an auxiliary output beside the main one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.main, self.aux = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.main(x), self.aux(x)


class Both(nn.Module):
    def forward(self, outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(outputs[0], y) + 0.5 * F.cross_entropy(outputs[1], y)


class MainOnly(nn.Module):
    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y)


@pytest.mark.parametrize("as_function", [False, True])
def test_a_criterion_sees_all_that_the_model_returns(as_function: bool) -> None:
    net, x, y = TwoHeads().double(), torch.randn(10, 4).double(), torch.arange(10) % 3
    for criterion, truth in ((Both(), Both()(net(x), y)), (MainOnly(), F.cross_entropy(net(x)[0], y))):
        loss = (lambda z, y, c=criterion: c(z, y)) if as_function else criterion
        assert Probe(net, (x, y), loss).value() == pytest.approx(truth.item(), rel=1e-12)


def test_several_targets_go_to_the_loss_together() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    x, y1, y2 = torch.randn(10, 4).double(), torch.arange(10) % 3, torch.randn(10).double()
    loss = lambda z, targets: F.cross_entropy(z, targets[0]) + (z[:, 0] - targets[1]).square().mean()  # noqa: E731
    probe = Probe(net, DataLoader(TensorDataset(x, y1, y2), batch_size=4), loss)
    assert probe.value() == pytest.approx(float(loss(net(x), (y1, y2))), rel=1e-12)
    with pytest.raises(errors.LossError, match="one tensor of targets, got a tuple of 2"):
        Probe(net, (x, y1, y2))


@pytest.mark.parametrize("hold", ["criterion", "function"])
def test_class_weights_in_another_precision(hold: str) -> None:
    net, x, y = nn.Linear(4, 3), torch.randn(10, 4), torch.arange(10) % 3
    criterion = nn.NLLLoss(torch.tensor([1.0, 2.0, 3.0]), reduction="sum")
    net = nn.Sequential(net, nn.LogSoftmax(1))
    if hold == "criterion":
        probe = Probe(net, (x, y), criterion, dtype=torch.float64)
        assert probe.value() == pytest.approx(float(criterion(net(x), y)) / 10, rel=1e-5)
        assert criterion.weight.dtype == torch.float32
    else:
        weight = criterion.weight
        with pytest.raises(errors.LossError, match="tensors inside the loss must follow its outputs"):
            Probe(net, (x, y), lambda z, y: F.nll_loss(z, y, weight, reduction="sum"), dtype=torch.float64)


def _half(z: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (z - y).square().sum(1)


WRONG = {
    "sum of squares": (Loss(lambda z, y: (z - y).square().sum(), "sum", likelihood="gaussian"), "3 times"),
    "half": (Loss(_half, "per_sample", likelihood="gaussian"), "1.5 times"),
    "huber": (
        Loss(lambda z, y: F.huber_loss(z, y, reduction="none").mean(1), "per_sample", likelihood="gaussian"),
        "%|times",
    ),
    "softmax": (
        Loss(lambda z, y: F.cross_entropy(z, y.softmax(1), reduction="none"), "per_sample", likelihood="bernoulli"),
        "%",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_likelihood_that_is_not_the_loss(kind: str) -> None:
    torch.manual_seed(0)
    loss, words = WRONG[kind]
    with pytest.raises(errors.LossError, match=words):
        Probe(nn.Linear(4, 3), (torch.randn(10, 4), 5 * torch.randn(10, 3)), loss)


def test_a_likelihood_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(errors.LossError, match="'categorical', 'bernoulli', 'gaussian' or None, got 'poisson'"):
        Loss(F.cross_entropy, "mean", likelihood="poisson")  # type: ignore[arg-type]
    with pytest.raises(errors.LossError, match="the two differ by 100 %. Declare another likelihood"):
        hinge = Loss(lambda z, y: F.relu(1 - z * (2 * y - 1)).mean(1), "per_sample", likelihood="bernoulli")
        Probe(nn.Linear(4, 3), (torch.randn(10, 4), torch.ones(10, 3)), hinge)


def test_a_declared_likelihood_of_positions() -> None:
    torch.manual_seed(0)
    own = Loss(
        lambda z, y: F.cross_entropy(z.transpose(1, 2), y, reduction="none").mean(1),
        "per_sample",
        likelihood="categorical",
    )
    probe = Probe(Tagger().double(), (torch.randint(0, V, (6, T)), torch.randint(0, V, (6, T))), own)
    assert torch.allclose(Fisher(probe).dense(), dense.ggn(probe), atol=1e-10)


RIGHT: dict[str, tuple[Loss, Callable[[], Tensor]]] = {
    "squares": (Loss(lambda z, y: (z - y).square().mean(), "mean", likelihood="gaussian"), lambda: torch.randn(10, 3)),
    "scaled": (
        Loss(lambda z, y: (z - y).square().mean(1) + 3, "per_sample", likelihood="gaussian"),
        lambda: torch.randn(10, 3),
    ),
    "labels": (Loss(F.cross_entropy, "mean", likelihood="categorical"), lambda: torch.arange(10) % 3),
    "smoothed": (
        Loss(partial(F.cross_entropy, label_smoothing=0.1), "mean", likelihood="categorical", name="s"),
        lambda: torch.arange(10) % 3,
    ),
    "yes_no": (Loss(F.binary_cross_entropy_with_logits, "mean", likelihood="bernoulli"), lambda: torch.rand(10, 3)),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_a_declared_likelihood_gives_the_fisher_matrix(kind: str) -> None:
    torch.manual_seed(0)
    loss, targets = RIGHT[kind]
    y = targets()
    probe = Probe(
        nn.Linear(4, 3).double(), (torch.randn(10, 4).double(), y.double() if y.is_floating_point() else y), loss
    )
    assert torch.allclose(Fisher(probe).dense(), dense.ggn(probe), atol=1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("criterion", [nn.MSELoss, nn.BCEWithLogitsLoss, nn.CrossEntropyLoss])
def test_fisher_matrices_of_criteria_and_of_their_functions(criterion: type, reduction: str) -> None:
    torch.manual_seed(0)
    function = {nn.MSELoss: F.mse_loss, nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits}.get(
        criterion, F.cross_entropy
    )
    net, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(), torch.randn(10, 4).double()
    y = torch.rand(10, 3).double()
    y = y / y.sum(1, keepdim=True)
    for loss in (criterion(reduction=reduction), partial(function, reduction=reduction)):
        probe = Probe(net, (x, y), loss)
        truth = dense.ggn(probe)
        assert torch.allclose(Fisher(probe).dense(), truth, atol=1e-10)
        report = ls.measure(probe, measures=["fisher_trace", "fisher_top_eigenvalue"])
        assert report["fisher_trace"].value == pytest.approx(float(truth.trace()), rel=1e-6)
        assert report["fisher_top_eigenvalue"].value == pytest.approx(float(torch.linalg.eigvalsh(truth)[-1]), rel=1e-3)


def test_a_model_that_needs_its_targets_to_run() -> None:
    class Decoder(nn.Linear):
        def forward(self, x: Tensor, decoder_inputs: Tensor | None = None) -> Tensor:
            if decoder_inputs is None:
                raise ValueError("You must specify decoder_inputs")
            return super().forward(x)

    with pytest.raises(errors.ModelError, match=r"Decoder could not be called with x \(6, 4\): You must specify"):
        Probe(Decoder(4, 3), {"x": torch.randn(6, 4), "labels": torch.arange(6) % 3})


def scaled(criterion: nn.Module) -> nn.Module:
    old = criterion.forward
    criterion.forward = lambda z, y: old(3 * z, y)
    return criterion


def hooked(criterion: nn.Module) -> nn.Module:
    criterion.register_forward_hook(lambda module, args, out: 2 * out)
    criterion.register_forward_pre_hook(lambda module, args: (3 * args[0], args[1]))
    return criterion


@pytest.mark.parametrize("change", [scaled, hooked])
@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.MSELoss, nn.BCEWithLogitsLoss])
def test_a_criterion_of_torch_that_was_changed_is_what_it_is_now(
    kind: type[nn.Module], change: Callable[[nn.Module], nn.Module]
) -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(3, 4).double(), torch.randn(N, 3).double(), torch.arange(N) % 4
    y = y if kind is nn.CrossEntropyLoss else F.one_hot(y, 4).double()
    criterion = change(kind())
    probe, loss = Probe(net, (x, y), criterion), criterion(net(x), y)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    assert probe.value() == pytest.approx(loss.item(), rel=1e-12)
    assert torch.allclose(probe.gradient(), expected, atol=1e-12)


NLL: dict[str, object] = {
    "criterion": nn.NLLLoss(),
    "functional": F.nll_loss,
    "weighted": nn.NLLLoss(weight=torch.tensor([1.0, 2.0, 0.5, 3.0])),
    "ignoring": partial(F.nll_loss, ignore_index=2),
    "sum": nn.NLLLoss(reduction="sum"),
}


@pytest.mark.parametrize("name", NLL)
def test_log_probabilities_with_their_own_loss(name: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(N, 3).double(), torch.arange(N) % 4
    net = nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(1)).double()
    loss = NLL[name]
    probe = Probe(net, (x, y), loss)
    torchs = loss.to(torch.float64) if isinstance(loss, nn.Module) else loss
    value = torchs(net(x), y) / (N if name == "sum" else 1)
    assert probe.value() == pytest.approx(value.item(), rel=1e-9)
    assert float((GGN(probe) @ probe.vector()).norm()) > 0.01  # linear in the outputs, it would be 0
    plain = nn.Sequential(net[0]).double()
    same = {"functional": F.cross_entropy, "ignoring": partial(F.cross_entropy, ignore_index=2)}.get(
        name, nn.CrossEntropyLoss(getattr(loss, "weight", None), reduction=getattr(loss, "reduction", "mean"))
    )
    logits = Probe(plain, (x, y), same)
    assert torch.allclose(GGN(probe) @ probe.vector(), GGN(logits) @ logits.vector(), atol=1e-10)


def test_the_same_loss_of_something_else_stays_torchs() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(3, 4).double(), torch.randn(N, 3).double(), torch.arange(N) % 4
    assert Probe(net, (x, y), nn.NLLLoss()).value() == pytest.approx(F.nll_loss(net(x), y).item(), rel=1e-12)
