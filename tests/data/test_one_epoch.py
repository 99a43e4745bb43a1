"""Every data set loads, and one epoch of a matching network learns something on it.

Whole epochs, except where one takes minutes on a CPU: colour images are learned from a stratified part of 5,000 rows,
shapes from eight. MNIST and FashionMNIST are seen whole, as are all sets without images. The loss is taken in
evaluation mode on rows that were learned from.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.core.seeding import generator
from landscope.data import DATASETS, DataSplits, load
from landscope.models import build

Need = Callable[[str], None]
Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Lesson:
    """A network for a data set, and how it is trained."""

    model: str
    options: Mapping[str, object] = field(default_factory=dict)
    loading: Mapping[str, object] = field(default_factory=dict)
    criterion: Criterion = F.cross_entropy
    batch_size: int = 64
    rate: float = 1e-3
    needs: str = ""


SMALL = {"pixels": "standard", "train_size": 5_000}
SHAPES = {"n_train": 8, "n_validation": 1, "n_test": 1}
COMPLETION = Lesson("autoencoder3d", {}, SHAPES, F.binary_cross_entropy, batch_size=2)
COLOUR_10 = Lesson("resnet20", {"width": 8}, SMALL, batch_size=50, rate=3e-3)
COLOUR_100 = replace(COLOUR_10, options={"width": 8, "num_classes": 100})
MINILM = {"hidden": 32, "layers": 2, "heads": 2, "mlp_width": 64, "vocabulary": 259, "max_length": 256}

LESSONS = {
    "abalone": Lesson("mlp", {"in_features": 10, "widths": (64, 64), "num_classes": 1}, {}, F.mse_loss),
    "circles": Lesson("mlp", {"in_features": 2, "widths": (64, 64), "num_classes": 2}, batch_size=10),
    "digits": Lesson("mlp", {"in_features": 64, "widths": (64,)}),
    "functions": Lesson("mlp", {"in_features": 2, "widths": (64, 64), "num_classes": 1}, {}, F.mse_loss),
    "shells": COMPLETION,
    "cora": Lesson("gat", needs="torch_geometric", rate=1e-2),
    "skulls": COMPLETION,
    "mnist": Lesson("lenet5", loading={"pixels": "standard"}, batch_size=128),
    "fashion_mnist": Lesson("lenet5", loading={"pixels": "standard"}, batch_size=128),
    "cifar10": COLOUR_10,
    "cifar10h": COLOUR_10,
    "cifar100": COLOUR_100,
    "svhn": COLOUR_10,
    "tinyimagenet": replace(COLOUR_10, options={"width": 8, "num_classes": 200}),
    "tinyimagenet100_32": COLOUR_100,
    "rte": Lesson("minilm", MINILM, needs="transformers"),
}
WITHOUT_FILES = {"abalone", "circles", "cora", "digits", "functions", "shells"}
QUICK = {*WITHOUT_FILES, "rte", "skulls"}


class OnGraph(nn.Module):
    """A network of nodes and edges as a function of node numbers."""

    def __init__(self, inner: nn.Module, data: DataSplits) -> None:
        super().__init__()
        self.inner, self.graph = inner, (data.extra["features"], data.extra["edge_index"])

    def forward(self, nodes: Tensor) -> Tensor:
        return self.inner(*self.graph)[nodes]


class OnFeatures(nn.Module):
    """A network of node features, without the edges, as a function of node numbers."""

    def __init__(self, data: DataSplits) -> None:
        super().__init__()
        self.inner, self.features = build("mlp", in_features=1433, widths=(32,), num_classes=7), data.extra["features"]

    def forward(self, nodes: Tensor) -> Tensor:
        return self.inner(self.features[nodes])


class OnBytes(nn.Module):
    """The mean of the bytes' embeddings through an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(259, 32, padding_idx=0, dtype=torch.float32)
        nn.init.normal_(self.bag.weight, generator=generator(0, "embedding"))
        self.inner = build("mlp", in_features=32, widths=(32,), num_classes=2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(self.bag(tokens))


def one_epoch(net: nn.Module, x: Tensor, y: Tensor, lesson: Lesson) -> tuple[float, float]:
    """The loss before and after each row was seen once, in a seeded order."""

    def loss() -> float:
        net.eval()
        with torch.no_grad():
            parts = zip(x[:2_000].split(250), y[:2_000].split(250), strict=True)
            return sum(float(lesson.criterion(net(a), b)) * len(b) for a, b in parts) / len(y[:2_000])

    before = loss()
    optimizer = torch.optim.Adam(net.parameters(), lr=lesson.rate)
    net.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for rows in torch.randperm(len(y), generator=generator(0, "order")).split(lesson.batch_size):
            optimizer.zero_grad()
            lesson.criterion(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return before, loss()


def learned(before: float, after: float) -> bool:
    return math.isfinite(before) and math.isfinite(after) and after < before


def test_no_data_set_is_left_out() -> None:
    assert set(LESSONS) == set(DATASETS)


def marked(name: str) -> object:
    real, slow = name not in WITHOUT_FILES, name not in QUICK
    return pytest.param(name, marks=[pytest.mark.real_data] * real + [pytest.mark.slow] * slow)


@pytest.mark.parametrize("name", [marked(name) for name in LESSONS])
def test_one_epoch(name: str, real: Need) -> None:
    if name not in WITHOUT_FILES:
        real(name)
    lesson = LESSONS[name]
    if lesson.needs and importlib.util.find_spec(lesson.needs) is None:
        pytest.skip(f"{lesson.model} needs {lesson.needs}")
    data = load(name, **lesson.loading)
    net = build(lesson.model, **lesson.options)
    net = OnGraph(net, data) if name == "cora" else net
    before, after = one_epoch(net, *data.train, lesson)
    assert learned(before, after)
    if data.card.classes and name != "rte":  # entailment is beyond an untrained encoder's first epoch
        assert after < math.log(data.card.n_classes), "better than chance"


def test_cora_without_its_edges() -> None:
    """What can be learned of Cora where torch_geometric is not installed."""
    data = load("cora")
    assert learned(*one_epoch(OnFeatures(data), *data.train, Lesson("mlp", batch_size=20)))


@pytest.mark.real_data
def test_rte_as_bytes(real: Need) -> None:
    """What can be learned of RTE where transformers is not installed."""
    real("rte")
    assert learned(*one_epoch(OnBytes(), *load("rte").train, Lesson("mlp")))
