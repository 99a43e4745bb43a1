"""Values on a plane: closed forms, a plain loop over every kind of network, and what must not change them."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME, NETS, Net
from torch import Tensor, nn

from landscope.core.errors import NotApplicableError, OperandError, UnknownNameError
from landscope.measures.sharpness.pac_bayes import sample_errors
from landscope.planes import given_slice, landscape, random_slice
from landscope.planes.grid import PointValues
from landscope.planes.slices import Slice
from landscope.probe import points
from landscope.probe.loss.losses import Loss
from landscope.probe.probe import Probe

GRID = torch.cartesian_prod(torch.linspace(-0.7, 1.1, 4), torch.linspace(-0.5, 0.9, 3)).double()


def moved(model: nn.Module, cut: Slice, row: list[float]) -> nn.Module:
    """A copy of the model at a point of the slice, the plain way."""
    twin = copy.deepcopy(model)
    held = dict(twin.named_parameters())
    with torch.no_grad():
        for name, value in cut.origin.items():
            held[name].copy_(value + sum(step * d[name] for step, d in zip(row, cut.directions, strict=True)))
    return twin


def plain(model: nn.Module, x: Tensor, y: Tensor, cut: Slice, rows: Tensor) -> Tensor:
    """(n, 2): cross-entropy and accuracy by a loop over points."""
    out = []
    with torch.no_grad():
        for row in rows.tolist():
            z = moved(model, cut, row).eval()(x)
            out.append([F.cross_entropy(z, y).item(), (z.argmax(1) == y).double().mean().item()])
    return torch.tensor(out, dtype=torch.float64)


@pytest.fixture(params=[1, 8, 64], ids=["one by one", "8 at once", "all at once"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(points, "points_at_once", lambda probe, samples: request.param)
    return request.param


@pytest.mark.parametrize("include", ["weights", "all"])
def test_linear_regression_is_a_quadratic_on_the_whole_grid(at_once: int, include: str) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 2).double()
    x, y = torch.randn(23, 4).double(), torch.randn(23, 2).double()
    probe = Probe(net, (x, y), "mse", batch_size=7)
    cut = random_slice(probe, seed=3, include=include)
    zero = torch.zeros(2).double()
    errors = [x @ d["weight"].T + d.get("bias", zero) for d in cut.directions]
    base = net(x).detach() - y
    quadratic = [(base + a * errors[0] + b * errors[1]).square().mean().item() for a, b in GRID.tolist()]
    found = PointValues(probe, cut, accuracy=False)(GRID)[:, 0]
    np.testing.assert_allclose(found, quadratic, rtol=1e-13)


@pytest.mark.parametrize("net", NETS, ids=repr)
def test_every_network_gives_the_losses_of_a_plain_loop(net: Net, at_once: int) -> None:
    model, (x, y) = net.model(), net.data()
    probe = Probe(model, (x, y))
    cut = random_slice(probe, seed=1)
    truth = plain(model, x, y, cut, GRID)
    np.testing.assert_allclose(PointValues(probe, cut, True)(GRID), truth, rtol=1e-11, atol=1e-13)


def test_batch_statistics_are_those_of_every_point(at_once: int) -> None:
    net = BY_NAME["residual_batchnorm"]
    model, (x, y) = net.model(), net.data(16)
    batches = [(x[:6], y[:6]), (x[6:], y[6:])]
    probe = Probe(model, batches, mode="batch_statistics")
    cut = random_slice(probe)
    truth = [
        sum(F.cross_entropy(moved(model, cut, row).train()(a), b, reduction="sum").item() for a, b in batches) / 16
        for row in GRID.tolist()
    ]
    np.testing.assert_allclose(PointValues(probe, cut, True)(GRID)[:, 0], truth, rtol=1e-11)


def test_the_grid_is_indexed_by_b_then_a_and_its_centre_is_the_model() -> None:
    net = BY_NAME["relu_mlp"]
    probe = Probe(net.model(), net.data())
    found = landscape(probe, resolution=(7, 5), span=((-0.5, 1.0), 0.4), seed=2)
    assert found.loss.shape == found.accuracy.shape == (5, 7)
    assert (found.a[0], found.a[-1], found.b[0], found.b[-1]) == (-0.5, 1.0, -0.4, 0.4)
    at = torch.tensor([[found.a[6], found.b[1]]])
    alone = PointValues(probe, random_slice(probe, seed=2), False)(at)
    assert found.loss[1, 6] == pytest.approx(float(alone[0, 0]), rel=1e-12)
    assert found.centre_loss == pytest.approx(probe.value(), rel=1e-14)
    low = found.lowest
    assert low[2] == found.loss.min()
    assert found.loss[list(found.b).index(low[1]), list(found.a).index(low[0])] == low[2]


def test_batches_and_their_sizes_do_not_matter() -> None:
    net = BY_NAME["residual_batchnorm"]
    model, (x, y) = net.model(), net.data(14)
    whole = landscape(Probe(model, (x, y)), resolution=3)
    cut = landscape(Probe(model, [(x[:9], y[:9]), (x[9:], y[9:])]), resolution=3)
    np.testing.assert_allclose(cut.loss, whole.loss, rtol=1e-12)
    np.testing.assert_array_equal(cut.accuracy, whole.accuracy)


def test_one_seed_is_one_plane() -> None:
    net = BY_NAME["relu_mlp"]
    probe = Probe(net.model(), net.data())
    one, again, other = (landscape(probe, resolution=3, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.loss, again.loss)
    assert one.directions == again.directions
    assert np.abs(one.loss - other.loss).max() > 1e-3


def test_the_model_is_never_touched() -> None:
    net = BY_NAME["residual_batchnorm"]
    model = net.model().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(7)
    rng = torch.get_rng_state()
    landscape(Probe(model, net.data()), resolution=3, plane="eigenvectors")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(rng, torch.get_rng_state())


class Branching(nn.Module):
    """A decision on values, which `vmap` cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.layer(x)
        return z if float(self.layer.weight.sum()) > 0 else 2 * z


def test_what_vmap_cannot_follow_goes_one_by_one() -> None:
    torch.manual_seed(0)
    model = Branching().double()
    x, y = torch.randn(12, 4).double(), torch.arange(12) % 3
    probe = Probe(model, (x, y), batch_size=5)
    cut = random_slice(probe)
    values = PointValues(probe, cut, True)
    np.testing.assert_allclose(values(GRID), plain(model, x, y, cut, GRID), rtol=1e-12)
    assert points._refusals(probe)


def test_two_probes_on_one_plane() -> None:
    net = BY_NAME["conv_strided_grouped"]
    model, (x, y) = net.model(), net.data(20)
    train, test = Probe(model, (x[:12], y[:12])), Probe(model, (x[12:], y[12:]))
    both = landscape(train, resolution=3, others={"test": test})
    cut = random_slice(train)
    np.testing.assert_allclose(both.others["test"].loss, landscape(test, plane=cut, resolution=3).loss, rtol=1e-12)
    np.testing.assert_allclose(both.loss, landscape(train, resolution=3).loss, rtol=1e-12)
    assert (both.values.samples, both.others["test"].samples) == (12, 8)
    with pytest.raises(OperandError, match="another model"):
        landscape(train, resolution=3, others={"test": Probe(net.model(seed=1), (x, y))})
    with pytest.raises(OperandError, match="another architecture"):
        landscape(train, resolution=3, others={"test": Probe(nn.Linear(2, 3), (x[:, 0, 0, :2].float(), y))})
    with pytest.raises(OperandError, match="another name"):
        landscape(train, resolution=3, others={"probe": test})


def test_losses_that_overflow_are_infinite_and_survive() -> None:
    net = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
    loss = Loss(lambda z, y: torch.exp(torch.exp(z[:, 0])) - y, reduction="per_sample", name="tower")
    probe = Probe(net, (torch.ones(4, 1), torch.zeros(4)), loss)
    values = PointValues(probe, given_slice(probe, [torch.ones(1)]), False)(torch.tensor([[0.0], [9.0]]))
    assert values[0, 0] == pytest.approx(float(np.exp(np.exp(1))), rel=1e-5)
    assert torch.isinf(values[1, 0])


class Positions(nn.Module):
    """Several labels per sample: logits (n, positions, C)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "positions"])
def test_accuracy_is_one_minus_the_errors(kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 5, 3) if kind == "positions" else torch.randn(30, 3)
    if kind == "positions":
        y = torch.randint(0, 4, (30, 5))
        y[:, 4] = -100
        probe = Probe(Positions(), (x, y))
    elif kind == "bernoulli":
        probe = Probe(nn.Linear(3, 1), (x, torch.arange(30) % 2), "binary_cross_entropy")
    else:
        probe = Probe(nn.Linear(3, 4), (x, torch.arange(30) % 4))
    found = landscape(probe, resolution=3)
    batch = next(probe.batches())
    wrong = float(sample_errors(probe, probe.params, batch).double().mean())
    assert found.accuracy[1, 1] == pytest.approx(1 - wrong)
    assert 0 < found.accuracy[1, 1] < 1


def test_accuracy_only_where_it_applies() -> None:
    x = torch.randn(10, 3)
    regression = Probe(nn.Linear(3, 1), (x, torch.randn(10)), "mse")
    assert landscape(regression, resolution=3).accuracy is None
    with pytest.raises(NotApplicableError, match="no classes"):
        landscape(regression, resolution=3, metrics=("loss", "accuracy"))
    classes = Probe(nn.Linear(3, 2), (x, torch.arange(10) % 2))
    left_out = landscape(classes, resolution=3, metrics=("loss",))
    assert left_out.accuracy is None
    with pytest.raises(NotApplicableError, match="not measured"):
        left_out.plot(metric="accuracy")
    with pytest.raises(UnknownNameError, match="did you mean 'accuracy'"):
        landscape(classes, resolution=3, metrics=("loss", "acuracy"))


def test_a_temperature_divides_the_outputs() -> None:
    net = BY_NAME["relu_mlp"]
    model, (x, y) = net.model(), net.data()
    probe = Probe(model, (x, y), temperature=2.5)
    cut = random_slice(probe)
    truth = [F.cross_entropy(moved(model, cut, row)(x) / 2.5, y).item() for row in GRID.tolist()]
    np.testing.assert_allclose(PointValues(probe, cut, False)(GRID)[:, 0], truth, rtol=1e-12)


def test_tensors_by_name_and_vectors_are_the_same_direction() -> None:
    net = BY_NAME["relu_mlp"]
    probe = Probe(net.model(), net.data())
    g = probe.gradient()
    named: Mapping[str, Tensor] = {"4.weight": torch.ones(3, 5).double()}
    flat = probe.space.flatten({name: named.get(name, torch.zeros_like(p)) for name, p in probe.params.items()})
    one = landscape(probe, plane=(g, flat), resolution=3)
    two = landscape(probe, plane=[probe.space.unflatten(g), named], resolution=3)
    np.testing.assert_allclose(one.loss, two.loss, rtol=1e-12)
    assert one.directions["norms"][0] == pytest.approx(float(g.norm()), rel=1e-12)


def test_memory_bounds_the_points_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = BY_NAME["relu_mlp"]
    probe = Probe(net.model(), net.data())
    values, seen = PointValues(probe, random_slice(probe), False), []
    whole = values(torch.zeros(12, 2))
    original = points.at_each
    monkeypatch.setattr(points, "available_bytes", lambda device: 4 * 3 * probe.n_params * 8 * 5)
    monkeypatch.setattr(points, "at_each", lambda one, rows, held: seen.append(held) or original(one, rows, held))
    torch.testing.assert_close(values(torch.zeros(12, 2)), whole)
    assert seen == [5]
