"""Batches, targets and losses as people have them: bytes as labels, time first, other shapes, classes for instances."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import landscope as ls
from landscope import Probe
from landscope.core import errors

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)).double()
Y = torch.arange(64) % 3


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.uint16])
def test_labels_of_any_whole_numbers(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    model, labels = nn.Linear(4, 200).double(), torch.arange(64) + 130  # among them 156, which is −100 in bytes
    probe = Probe(model, (X, labels.to(kind)))
    assert probe.n_samples == 64
    assert probe.value() == pytest.approx(F.cross_entropy(model(X), labels).item(), rel=1e-12)


def test_masks_of_bytes() -> None:
    torch.manual_seed(0)
    model, mask = nn.Conv2d(3, 4, 1).double(), torch.randint(0, 4, (6, 5, 5))
    mask[:, 0], x = 255, torch.randn(6, 3, 5, 5).double()
    probe = Probe(model, (x, mask.to(torch.uint8)), nn.CrossEntropyLoss(ignore_index=255))
    assert probe.value() == pytest.approx(F.cross_entropy(model(x), mask, ignore_index=255).item(), rel=1e-12)


class Scoring(nn.Module):
    """Shifts its labels and returns its own loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.head(self.embed(input_ids))
        if labels is None:
            return {"logits": z}
        return {"logits": z, "loss": F.cross_entropy(z[:, :-1].flatten(0, 1), labels[:, 1:].flatten())}


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scoring()

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        return self.inner(**batch)


def patched() -> nn.Module:
    model = Scoring()
    old = model.forward
    model.forward = lambda *args, **kwargs: old(*args, **kwargs)  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("make", [Scoring, Wrapped, patched])
@pytest.mark.parametrize("key", ["labels", "label"])
def test_a_loss_of_its_own_behind_any_signature(make: Callable[[], nn.Module], key: str) -> None:
    ids, model = torch.randint(0, 5, (8, 6)), make()
    data = {"input_ids": ids, key: ids}
    assert Probe(model, data).value() == pytest.approx(model(input_ids=ids, labels=ids)["loss"].item(), rel=1e-6)
    with pytest.raises(errors.LossError, match="computes a loss of its own"):
        Probe(model, data, "cross_entropy")


def test_time_in_the_place_of_samples() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.RNN(3, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0])

    batches = [(torch.randn(6, 8, 3), torch.randint(0, 3, (6, 8))) for _ in range(3)]
    with pytest.raises(errors.ModelError, match="where the first dimension is time"):
        Probe(Recurrent(), batches)


@pytest.mark.parametrize("loss", ["mse", nn.MSELoss(), "binary_cross_entropy"])
def test_targets_of_another_order(loss: object) -> None:
    images = torch.rand(6, 3, 5, 4)
    with pytest.raises(errors.LossError, match="one shape"):
        Probe(nn.Conv2d(3, 3, 1), (images, images.permute(0, 2, 3, 1).contiguous()), loss)


def test_targets_that_differ_in_ones_or_are_flat() -> None:
    images = torch.rand(6, 1, 5, 4).double()
    model = nn.Conv2d(1, 1, 1).double()
    truth = F.mse_loss(model(images), images).item()
    for targets in (images[:, 0], images.flatten(1), images[:, :, :, None]):
        assert Probe(model, (images, targets), "mse").value() == pytest.approx(truth, rel=1e-12)


def test_values_of_positions_that_are_ignored() -> None:
    class Focal(nn.Module):
        reduction = "none"

        def forward(self, z: Tensor, labels: Tensor) -> Tensor:
            costs = F.cross_entropy(z.transpose(1, 2), labels, reduction="none")
            return (1 - (-costs).exp()) ** 2 * costs

    torch.manual_seed(0)
    model, x, labels = nn.Linear(3, 5).double(), torch.randn(40, 6, 3).double(), torch.randint(0, 5, (40, 6))
    labels[20:, 2:] = -100
    truth = Focal()(model(x), labels)[labels != -100].mean().item()
    assert Probe(model, (x, labels), Focal()).value() == pytest.approx(truth, rel=1e-12)


def test_parts_of_a_batch_that_go_nowhere_are_named() -> None:
    class Plain(nn.Linear):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x)

    probe = Probe(Plain(4, 3).double(), {"x": X, "attention_mask": torch.ones(64), "y": Y})
    assert probe.notices == ("not arguments of the model, and left out of the batches: attention_mask",)
    assert not Probe(net(), (X, Y)).notices


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 3).double()

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return adjacency @ self.lin(x)


def test_batches_that_cannot_be_cut() -> None:
    adjacency = torch.rand(64, 64).double()
    with pytest.raises(errors.ModelError, match="batch_statistics"):
        Probe(Graph(), [(X, adjacency, Y)])
    model = Graph()
    truth = F.cross_entropy(model(X, adjacency), Y).item()
    for given in (adjacency, adjacency.to_sparse()):
        probe = Probe(model, [(X, given, Y)], mode="batch_statistics")
        assert probe.value() == pytest.approx(truth, rel=1e-9)


def test_packed_sequences() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, packed: object) -> Tensor:
            return self.head(self.rnn(packed)[1][0])

    torch.manual_seed(0)
    model, x, y = Packed().double(), torch.randn(5, 7, 3).double(), torch.arange(5) % 3
    packed = pack_padded_sequence(x, torch.tensor([7, 6, 4, 2, 1]), batch_first=True)
    truth = F.cross_entropy(model(packed), y).item()
    assert Probe(model, [(packed, y)], mode="batch_statistics").value() == pytest.approx(truth, rel=1e-9)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "inputs of another width": (lambda: Probe(nn.Linear(5, 3).double(), (X, Y)), "could not be called with argument 1"),
    "a class for a loss": (lambda: Probe(net(), (X, Y), nn.CrossEntropyLoss), r"pass an instance of it"),
    "a loss of one argument": (lambda: Probe(net(), (X, Y), lambda z: z.mean()), r"called as loss\(outputs, targets\)"),
    "broadcasting": (lambda: Probe(nn.Linear(4, 1).double(), (X, X[:, 0]), nn.SoftMarginLoss()), "across samples"),
    "words": (lambda: Probe(net(), (X.numpy(), np.array(["a", "b"] * 32))), "Map words to class indices"),
    "lists": (lambda: Probe(net(), {"input": X.tolist(), "labels": Y.tolist()}), "turn lists into tensors"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_in_words(kind: str) -> None:
    call, words = REFUSED[kind]
    with pytest.raises(errors.LandscopeError, match=words):
        call()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", [nn.HuberLoss, nn.SmoothL1Loss, nn.L1Loss], ids=lambda kind: kind.__name__)
def test_criteria_that_compare_entry_by_entry_have_a_loss_per_sample(kind: type[nn.Module], reduction: str) -> None:
    y = torch.randn(64, 3, generator=torch.Generator().manual_seed(3)).double()
    criterion, model = kind(reduction=reduction), net()
    probe = Probe(model, (X, y), criterion)
    truth = criterion(model(X), y).item() / (64 if reduction == "sum" else 1)
    assert probe.value() == pytest.approx(truth, rel=1e-12)
    assert probe.loss.reduction == "per_sample"
    column = nn.Linear(4, 1).double()  # (n, 1) against (n,) is no comparison of all with all
    assert Probe(column, (X, y[:, 0]), kind()).value() == Probe(column, (X, y[:, :1]), kind()).value()


@pytest.mark.parametrize("integer", [False, True])
def test_weights_of_positive_answers(integer: bool) -> None:
    torch.manual_seed(0)
    y = torch.randint(0, 2, (64, 3))
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 5.0]))
    truth = nn.BCEWithLogitsLoss(pos_weight=criterion.pos_weight.double())(net()(X), y.double()).item()
    assert Probe(net(), (X, y if integer else y.double()), criterion).value() == pytest.approx(truth, rel=1e-6)
    one = Probe(nn.Linear(4, 1).double(), (X, y[:, 0]), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0)))
    assert ls.measure(one, measures=["hessian_trace"])["hessian_trace"].value > 0


def test_which_of_several_outputs_the_loss_takes_is_said() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.inner[0](x)
            return self.inner[1:](hidden), hidden

    model = Hidden()
    assert Probe(model, (X, Y)).notices == ("the model returns 2 tensors; the loss takes the first, of shape (4, 3)",)
    assert Probe(model, (X, Y), lambda z, y: F.cross_entropy(z[0], y)).notices == ()


def squares(outputs: Tensor, batch: object) -> Tensor:
    return outputs.square().mean(1)


def test_a_list_of_inputs_is_a_list_of_batches_or_refused() -> None:
    whole = Probe(net(), X, squares)
    assert Probe(net(), [X[:32], X[32:48], X[48:]], squares).value() == pytest.approx(whole.value(), rel=1e-12)
    assert Probe(net(), [X[:40].numpy(), X[40:].numpy()], squares).value() == pytest.approx(whole.value(), rel=1e-12)
    with pytest.raises(
        errors.DataError, match=r"list of 2 tensors of one shape.*tuple \(x, y\).*\[\(first,\), \(second,\)\]"
    ):
        Probe(net(), [X[:32], X[32:]], squares)
    assert Probe(net(), [(X[:32],), (X[32:],)], squares).value() == pytest.approx(whole.value(), rel=1e-12)
    assert Probe(net(), [X, Y]).value() == Probe(net(), (X, Y)).value()
    decoder = nn.Linear(4, 4).double()
    assert Probe(decoder, [X, X], "mse").value() == Probe(decoder, (X, X), "mse").value()
    assert Probe(decoder, (X, X.flip(0)), "mse").n_samples == 64


class Extra(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z = self.inner(x) if scale is None else self.inner(x) * scale
        return z, z


def both(outputs: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(outputs[0], targets[0]) + F.mse_loss(outputs[1], targets[1])


def test_a_target_that_went_into_the_model_is_named() -> None:
    with pytest.raises(
        errors.LossError, match=r"first 2 of the 3 parts of a batch went into the model.*\(x, \(y1, y2\)\)"
    ):
        Probe(Extra(), (X, torch.ones(64, 1), X[:, :3]), both)
    batches = [(X[:32], (Y[:32], X[:32, :3])), (X[32:], (Y[32:], X[32:, :3]))]
    model = Extra()
    assert Probe(model, batches, both).value() == pytest.approx(both(model(X), (Y, X[:, :3])).item(), rel=1e-12)


def test_labels_in_a_column_are_refused_with_the_remedy() -> None:
    with pytest.raises(errors.LossError, match=r"targets\.squeeze\(1\)"):
        Probe(net(), (X, Y[:, None]))
