"""Bad input of every kind gives its own clear error, and leaves nothing changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from landscope import Hessian, Loss, Probe, errors, freeze

X, Y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


class Noisy(Dataset):
    """A random transform, drawn from torch's, NumPy's or Python's generator."""

    def __init__(self, source: str = "torch") -> None:
        self.source = source

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        import random

        shift = {"torch": lambda: float(torch.rand(())), "numpy": np.random.rand, "python": random.random}[
            self.source
        ]()
        return X[index] + 0.1 * shift, Y[index]


@pytest.mark.parametrize("source", ["torch", "numpy", "python"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_random_transforms(source: str, shuffle: bool) -> None:
    loader = DataLoader(Noisy(source), batch_size=6, shuffle=shuffle)
    with pytest.raises(errors.ChangingDataError, match=r"landscope.freeze"):
        Probe(net(), loader)
    assert Probe(net(), freeze(loader)).n_samples == 20


def test_the_message_names_the_batch_and_the_change() -> None:
    with pytest.raises(errors.ChangingDataError, match=r"batch 0, largest change 0\.\d+"):
        Probe(net(), DataLoader(Noisy(), batch_size=6))


def test_targets_that_change() -> None:
    class NoisyLabels(Noisy):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return X[index], torch.randint(0, 3, ())

    with pytest.raises(errors.ChangingDataError):
        Probe(net(), DataLoader(NoisyLabels(), batch_size=6))


def test_shuffling_is_harmless_but_dropping_a_shuffled_rest_is_not() -> None:
    data = TensorDataset(X, Y)
    shuffled = Probe(net().double(), DataLoader(data, batch_size=6, shuffle=True))
    assert shuffled.n_samples == 20
    with pytest.raises(errors.ChangingDataError, match="drop_last"):
        Probe(net(), DataLoader(data, batch_size=6, shuffle=True, drop_last=True))


def test_shuffled_and_padded_to_the_longest_of_a_batch() -> None:
    """The same sample is padded to other lengths in other company."""
    words = [torch.arange(1, 2 + i % 5) for i in range(12)]

    def collate(items: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
        return {
            "tokens": nn.utils.rnn.pad_sequence([w for w, _ in items], batch_first=True),
            "labels": torch.tensor([y for _, y in items]),
        }

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embedding(tokens).sum(1))

    samples = [(w, i % 3) for i, w in enumerate(words)]
    model = Bag().double()
    loader = DataLoader(samples, batch_size=5, shuffle=True, collate_fn=collate)
    one = Probe(model, collate(samples))
    assert Probe(model, loader).value() == pytest.approx(one.value(), rel=1e-12)


def test_an_iterator_that_can_be_read_once() -> None:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield X, Y

    class Exhausted:
        def __init__(self) -> None:
            self.rest = batches()

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return self.rest

    for data in (batches(), zip([X], [Y], strict=True), Exhausted()):
        with pytest.raises(errors.OneShotDataError, match="once only"):
            Probe(net(), data)


@pytest.mark.parametrize(
    "data", [X, [(X,)], TensorDataset(X), {"x": X}, [{"x": X}]], ids=["tensor", "list", "set", "dict", "dicts"]
)
def test_no_targets(data: object) -> None:
    with pytest.raises(errors.MissingTargetsError, match="targets"):
        Probe(net(), data)


@pytest.mark.parametrize(
    "data", [[], (X[:0], Y[:0]), DataLoader(TensorDataset(X[:0], Y[:0]))], ids=["list", "tensors", "loader"]
)
def test_no_samples(data: object) -> None:
    with pytest.raises(errors.EmptyDataError):
        Probe(net(), data)


def test_samples_instead_of_batches() -> None:
    with pytest.raises(errors.DataError, match="list of samples"):
        Probe(net(), [(X[i], int(Y[i])) for i in range(5)])


def test_lengths_that_differ() -> None:
    with pytest.raises(errors.DataError, match=r"\[19, 20\]"):
        Probe(net(), (X, Y[:19]))
    with pytest.raises(errors.DataError, match="NoneType"):
        Probe(net(), None)


@pytest.mark.parametrize(
    ("labels", "words"),
    [(Y + 1, "1 to 3"), (Y - 1, "-1 to 1"), (Y.float(), "integers"), (torch.full_like(Y, -100), "-100")],
)
def test_labels_out_of_range(labels: Tensor, words: str) -> None:
    with pytest.raises(errors.LabelRangeError, match=words):
        Probe(net(), (X, labels))


def test_a_wrong_label_in_a_late_batch() -> None:
    bad = Y.clone()
    bad[-1] = 7
    with pytest.raises(errors.LabelRangeError, match="0 to 7"):
        Probe(net(), DataLoader(TensorDataset(X, bad), batch_size=4))


def test_one_output_asks_for_the_binary_loss() -> None:
    with pytest.raises(errors.LabelRangeError, match="binary_cross_entropy"):
        Probe(nn.Linear(4, 1), (X, Y % 2))


def test_dropout_left_on() -> None:
    class Forgot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(F.dropout(x, 0.5))

    class Stubborn(nn.Dropout):
        def train(self, mode: bool = True) -> nn.Module:
            return super().train(True)

    for model in (Forgot(), nn.Sequential(net(), nn.ReLU(), Stubborn(0.05), nn.Linear(3, 3))):
        with pytest.raises(errors.StochasticModelError, match="training=self.training"):
            Probe(model, (X, Y))
    with pytest.raises(errors.StochasticModelError, match="left on in 2"):
        Probe(nn.Sequential(net(), nn.ReLU(), Stubborn(0.5), nn.Linear(3, 3)), (X, Y))


def test_noise_that_is_not_torchs() -> None:
    class Jitter(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + float(np.random.randn())

    with pytest.raises(errors.StochasticModelError):
        Probe(Jitter(4, 3), (X, Y))


def test_dropout_in_training_mode_is_simply_switched_off() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    value = Probe(model, (X, Y)).value()
    assert model.training
    assert value == pytest.approx(F.cross_entropy(model.eval()(X), Y).item(), rel=1e-6)


def test_no_parameters() -> None:
    for model, words in ((nn.ReLU(), "no parameters at all"), (net().requires_grad_(False), "requires_grad_")):
        with pytest.raises(errors.NoParametersError, match=words):
            Probe(model, (X, Y))
    assert Probe(net().requires_grad_(False), (X, Y), params=["*"]).n_params == 43
    with pytest.raises(errors.NoParametersError, match="has no parameters"):
        Probe(net(), (X, Y), params="1")
    with pytest.raises(errors.NoParametersError, match="selects no"):
        Probe(net(), (X, Y), params=[])
    with pytest.raises(errors.UnknownNameError, match="did you mean '2.weight'"):
        Probe(net(), (X, Y), params=["2.wieght"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(bad: float) -> None:
    model = net()
    with torch.no_grad():
        model[2].weight[1, 2] = bad
    with pytest.raises(errors.NonFiniteWeightsError, match=r"2\.weight holds 1 NaN or infinite"):
        Probe(model, (X, Y))
    normalised = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    normalised[0].running_var[0] = bad
    with pytest.raises(errors.NonFiniteWeightsError, match=r"0\.running_var"):
        Probe(normalised, (X, Y))


def test_a_loss_that_is_not_finite() -> None:
    bad = X.clone()
    bad[17, 0] = float("nan")
    for data in ((bad, Y), DataLoader(TensorDataset(bad, Y), batch_size=4)):
        with pytest.raises(errors.NonFiniteLossError, match="non-finite inputs|first batch"):
            Probe(net(), data)
    with pytest.raises(errors.NonFiniteLossError):
        Probe(net(), (X, Y), lambda z, y: (z.sum(1) * 0).log())


def test_infinite_curvature_at_a_finite_loss() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    probe = Probe(model, (torch.ones(4, 1), torch.zeros(4)), lambda z, y: z.abs().sqrt().sum(1))
    with pytest.raises(errors.NonFiniteLossError):
        Hessian(probe) @ torch.ones(1)


def test_samples_that_depend_on_each_other() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(errors.ModelError, match="batch_statistics"):
        Probe(model, (X, Y))
    assert Probe(model, (X, Y), mode="batch_statistics").n_samples == 20


@dataclass
class Answer:
    """What some libraries' models return: an object that torch's trees do not look into."""

    logits: Tensor


def test_noise_and_coupled_samples_inside_a_dataclass() -> None:
    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module, noise: float = 0.0) -> None:
            super().__init__()
            self.inner, self.noise = inner, noise

        def forward(self, x: Tensor) -> Answer:
            return Answer(self.inner(x + self.noise * torch.randn_like(x)))

    with pytest.raises(errors.StochasticModelError):
        Probe(Wrapped(net(), noise=0.1), (X, Y))
    with pytest.raises(errors.ModelError, match="batch_statistics"):
        Probe(Wrapped(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))), (X, Y))
    assert Probe(Wrapped(net()), (X, Y)).n_samples == 20


def test_batch_statistics_need_fixed_batches() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    loader = DataLoader(TensorDataset(X, Y), batch_size=6, shuffle=True)
    with pytest.raises(errors.ChangingDataError, match="shuffle=False"):
        Probe(model, loader, mode="batch_statistics")
    assert Probe(model, freeze(loader), mode="batch_statistics").n_samples == 20
    with pytest.raises(errors.DataError, match="batch_size"):
        Probe(model, [(X, Y)], mode="batch_statistics", batch_size=5)


def test_losses_that_are_no_mean_over_samples() -> None:
    weighted = lambda z, y: F.cross_entropy(z, y, torch.tensor([1.0, 5.0, 10.0]))  # noqa: E731
    contrast = lambda z, y: (z @ z.T).mean()  # noqa: E731
    wrong = Loss(lambda z, y: F.cross_entropy(z, y, reduction="sum"), reduction="mean")
    for seed in range(20):
        torch.manual_seed(seed)
        for loss in (weighted, contrast, wrong):
            with pytest.raises(errors.LossReductionError, match="per_sample|neither"):
                Probe(net(), (X, Y), loss)
    with pytest.raises(errors.LossReductionError, match="shape"):
        Probe(net(), (X, Y), lambda z, y: z.sum(0))
    with pytest.raises(errors.LossError, match="reduction must be"):
        Loss(F.mse_loss, reduction="average")


MANY = torch.randn(400, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("rare", [200, 1], ids=["half", "one"])
@pytest.mark.parametrize("held", [True, False], ids=["tensors", "stream"])
def test_class_weights_show_on_data_sorted_by_class(rare: int, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = (torch.arange(400) >= 400 - rare).long()
    weighted = Loss(lambda z, y: F.nll_loss(z, y, weight=torch.tensor([1.0, 9.0])), "mean")
    ignoring = Loss(lambda z, y: F.nll_loss(z, y, ignore_index=1), "mean")
    if not held:
        monkeypatch.setattr("landscope.probe.reading.available_bytes", lambda device: 0)
    data = (MANY, labels) if held else DataLoader(TensorDataset(MANY, labels), batch_size=50)
    for loss in (weighted, ignoring):
        with pytest.raises(errors.LossReductionError, match="is not: a batch of 32 gives"):
            Probe(nn.Sequential(nn.Linear(4, 2), nn.LogSoftmax(1)), data, loss)
    assert Probe(nn.Linear(4, 2), data, lambda z, y: F.cross_entropy(z, y)).loss.reduction == "mean"


@pytest.mark.parametrize("first", [40, 399])
def test_a_mean_or_a_sum_that_is_zero_on_the_first_samples(first: int) -> None:
    late = (torch.arange(400) >= first).float()
    terms = lambda z, y: (z[:, 0] * 0 + 1) * y  # noqa: E731
    model = nn.Linear(4, 1)
    for reduction, function in (("mean", lambda z, y: terms(z, y).mean()), ("sum", lambda z, y: terms(z, y).sum())):
        probe = Probe(model, (MANY, late), function)
        assert probe.loss.reduction == reduction
        assert probe.value() == pytest.approx(float(late.mean()), rel=1e-6)
    with pytest.raises(errors.LossReductionError, match=r"0 throughout the data.*reduction='mean'"):
        Probe(model, (MANY, late * 0), lambda z, y: terms(z, y).sum())
    assert Probe(model, (MANY, late * 0), Loss(lambda z, y: terms(z, y).sum(), "sum")).value() == 0


def test_the_message_about_a_loss_that_is_neither_has_numbers_and_a_remedy() -> None:
    with pytest.raises(
        errors.LossReductionError, match=r"neither .* a batch of 20 gives [\d.]+, its parts .*per_sample"
    ):
        Probe(net(), (X, Y), lambda z, y: z.std())


def test_regression_shapes_that_would_broadcast() -> None:
    model = nn.Linear(4, 1)
    targets = torch.randn(20)
    expected = (model(X)[:, 0] - targets).square().mean().item()
    assert Probe(model, (X, targets), "mse").value() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(errors.LossError, match="one shape"):
        Probe(nn.Linear(4, 2), (X, targets), "mse")


def test_arguments_that_mean_nothing() -> None:
    data = (X, Y)
    for call, words in (
        (lambda: Probe(net, data), "nn.Module"),
        (lambda: Probe(net(), data, mode="train"), "batch_statistics"),
        (lambda: Probe(net(), data, temperature=0.0), "temperature"),
        (lambda: Probe(net(), data, dtype=torch.float16), "torch.float32, torch.float64"),
        (lambda: Probe(net(), data, batch_size=0), "batch_size"),
        (lambda: Probe(net(), data, "cross-entropy"), "did you mean 'cross_entropy'"),
        (lambda: Probe(net(), data, 3), "a name"),
        (lambda: Probe(nn.LazyLinear(3), data), "lazy"),
    ):
        with pytest.raises(errors.LandscopeError, match=words):
            call()


def test_a_distributed_sampler_that_repeats_samples() -> None:
    from torch.utils.data import DistributedSampler

    data = TensorDataset(X[:19], Y[:19])
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
    with pytest.raises(errors.DataError, match="repeats 1 samples"):
        Probe(net(), DataLoader(data, batch_size=4, sampler=sampler))


IMAGES = torch.randn(6, 1, 8, 8)


@pytest.mark.parametrize(
    ("net", "x", "message"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(63, 3)),
            IMAGES,
            "layer '1' (Linear) expects 63 features in the last dimension, got",
        ),
        (
            nn.Sequential(nn.Conv2d(3, 2, 3)),
            IMAGES,
            "layer '0' (Conv2d) expects 3 channels and 2 dimensions behind them",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Conv1d(1, 2, 3)),
            IMAGES,
            "layer '1' (Conv1d) expects 1 channels and 1 dimensions",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3)),
            IMAGES,
            "layer '1' (BatchNorm1d) expects 3 channels, got 6×64",
        ),
        (nn.Sequential(nn.LayerNorm((4, 8))), IMAGES, "layer '0' (LayerNorm) expects the last dimensions 4×8, got"),
        (nn.Sequential(nn.Embedding(5, 3)), torch.tensor([[1], [7]]), "expects whole numbers from 0 to 4, got 1 to 7"),
        (nn.LSTM(5, 3), torch.zeros(6, 2, 4), "it expects 5 features in the last dimension, got 6×2×4"),
        (nn.Sequential(nn.Conv2d(1, 2, 9)), IMAGES, "Kernel size can't be greater than actual input size"),
    ],
)
def test_the_layer_that_does_not_take_its_input_is_named(net: nn.Module, x: Tensor, message: str) -> None:
    with pytest.raises(errors.ModelError, match=re.escape(message)):
        Probe(net, (x, torch.zeros(len(x)).long()))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
