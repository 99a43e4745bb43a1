"""Directions: their norms, what leaves the losses along them unchanged, eigenvectors, trajectories."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME
from torch import Tensor, nn

from landscope.core.errors import NonFiniteWeightsError, NotApplicableError, OperandError, UnknownNameError
from landscope.curvature import dense
from landscope.measures.invariance import transformed
from landscope.planes import given_slice, landscape, line, random_slice, trajectory_slice
from landscope.planes.slices import filter_norms
from landscope.probe.probe import Probe


def probe_of(name: str, n: int = 14) -> Probe:
    net = BY_NAME[name]
    return Probe(net.model(), net.data(n))


@pytest.mark.parametrize("name", ["relu_mlp", "conv_strided_grouped", "residual_batchnorm", "transformer_encoder"])
def test_every_filter_has_the_norm_of_its_weights(name: str) -> None:
    probe = probe_of(name)
    cut = random_slice(probe, include="all")
    for direction in cut.directions:
        for key, d in direction.items():
            for row, own in zip(d, probe.params[key], strict=True):
                assert float(row.norm()) == pytest.approx(float(own.norm()), rel=1e-12)
    a, b = cut.directions
    assert all(not torch.allclose(a[key], b[key]) for key in a if a[key].dim() > 1)
    flat = [torch.cat([d[key].flatten() for key in d]) for d in cut.directions]
    assert cut.cosine == pytest.approx(float(F.cosine_similarity(*flat, dim=0)), rel=1e-10)
    assert cut.norms == pytest.approx([float(f.norm()) for f in flat])


def test_layer_norms_and_directions_as_drawn() -> None:
    probe = probe_of("conv_strided_grouped")
    by_layer = random_slice(probe, normalisation="layer").directions[0]
    drawn = random_slice(probe, normalisation="none").directions[0]
    for name, d in by_layer.items():
        assert float(d.norm()) == pytest.approx(float(probe.params[name].norm()), rel=1e-12)
        torch.testing.assert_close(d / d.norm(), drawn[name] / drawn[name].norm())
    assert 0.5 < float(torch.cat([d.flatten() for d in drawn.values()]).std()) < 1.5


def test_biases_and_norm_layers_stay_by_default() -> None:
    moving = set(random_slice(probe_of("residual_batchnorm")).origin)
    assert moving == {"conv1.weight", "conv2.weight", "fc.weight"}
    assert set(random_slice(probe_of("residual_batchnorm"), include=("fc",)).origin) == {"fc.weight", "fc.bias"}
    with pytest.raises(NotApplicableError, match="nothing to perturb"):
        random_slice(Probe(nn.LayerNorm(4), (torch.randn(4, 4), torch.arange(4))))


def test_filters_that_are_zero_stay_zero() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight[1].zero_()
    probe = Probe(net, (torch.randn(8, 3), torch.arange(8) % 2))
    d = random_slice(probe).directions[0]["0.weight"]
    assert not d[1].any()
    assert all(d[row].any() for row in (0, 2, 3))
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    with pytest.raises(OperandError, match="length zero"):
        random_slice(Probe(net, (torch.randn(8, 3), torch.arange(8) % 2)))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_filter_of_a_transposed_convolution_is_what_feeds_one_output_channel(groups: int) -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(4, 6, (3, 2), groups=groups)
    found = filter_norms(layer.weight, layer).expand_as(layer.weight)
    for channel in range(6):
        y = torch.zeros(6)
        y[channel] = 1.0
        x = torch.randn(1, 4, 5, 5)
        (slope,) = torch.autograd.grad((layer(x)[0].sum((1, 2)) * y).sum(), layer.weight)
        feeds = slope != 0
        assert feeds.sum() == layer.weight.numel() / 6
        torch.testing.assert_close(found[feeds], layer.weight[feeds].norm().expand(int(feeds.sum())))


def losses(probe: Probe, **options: object) -> np.ndarray:
    return landscape(probe, resolution=5, span=0.8, **options).loss


@pytest.mark.parametrize("normalisation", ["filter", "layer"])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("relu_mlp", "layer_rescaling"),
        ("residual_batchnorm", "batchnorm_scaling"),
    ],
)
def test_rescaled_layers_give_the_same_picture(name: str, change: str, normalisation: str) -> None:
    probe = probe_of(name)
    other = transformed(probe, change)
    assert probe.vector().sub(other.vector()).norm() > 0.5
    np.testing.assert_allclose(
        losses(other, normalisation=normalisation), losses(probe, normalisation=normalisation), rtol=1e-9
    )
    assert np.abs(losses(other, normalisation="none") - losses(probe, normalisation="none")).max() > 1e-2


def test_filters_before_a_batchnorm_may_have_factors_of_their_own() -> None:
    probe = probe_of("residual_batchnorm")
    factors = torch.tensor([0.2, 3.0, 1.7]).double()

    def edit(model: nn.Module) -> None:
        model.conv1.weight.mul_(factors[:, None, None, None])
        model.bn1.running_mean.mul_(factors)
        model.bn1.running_var.add_(model.bn1.eps).mul_(factors**2).sub_(model.bn1.eps)

    other = probe.with_model(edit)
    np.testing.assert_allclose(losses(other), losses(probe), rtol=1e-10)
    assert np.abs(losses(other, normalisation="layer") - losses(probe, normalisation="layer")).max() > 1e-2


def test_rescaled_neurons_change_the_picture_unless_the_next_layer_stays() -> None:
    probe = probe_of("relu_mlp")
    other = transformed(probe, "neuron_rescaling")
    assert np.abs(losses(other) - losses(probe)).max() > 1e-2
    np.testing.assert_allclose(losses(other, include="0"), losses(probe, include="0"), rtol=1e-9)


@pytest.mark.parametrize("name", ["gelu_mlp", "groupnorm"])
def test_along_eigenvectors_the_curvatures_are_eigenvalues(name: str) -> None:
    probe = probe_of(name)
    truth = torch.linalg.eigvalsh(dense.hessian(probe)).flip(0)[:2]
    h = 1e-3
    found = landscape(probe, plane="eigenvectors", resolution=3, span=h)
    values = found.directions["eigenvalues"]
    np.testing.assert_allclose(values, truth, rtol=2e-3)
    assert found.directions["norms"] == pytest.approx([1.0, 1.0], rel=1e-10)
    assert abs(found.directions["cosine"]) < 1e-8
    along_a = (found.loss[1, 2] - 2 * found.loss[1, 1] + found.loss[1, 0]) / h**2
    along_b = (found.loss[2, 1] - 2 * found.loss[1, 1] + found.loss[0, 1]) / h**2
    assert (along_a, along_b) == pytest.approx(values, rel=2e-3)
    mixed = (found.loss[2, 2] - found.loss[2, 0] - found.loss[0, 2] + found.loss[0, 0]) / (4 * h**2)
    assert abs(mixed) < 5e-3 * values[0]
    along = line(probe, direction="eigenvector", resolution=3, span=h)
    assert (along.loss[2] - 2 * along.loss[1] + along.loss[0]) / h**2 == pytest.approx(values[0], rel=2e-3)


def test_a_line_runs_along_the_first_axis_of_the_plane() -> None:
    probe = probe_of("relu_mlp")
    plane, one = landscape(probe, resolution=5, seed=4), line(probe, resolution=5, seed=4)
    np.testing.assert_allclose(one.loss, plane.loss[2], rtol=1e-12)


def path(model: nn.Module, steps: list[Tensor]) -> list[dict[str, Tensor]]:
    """State dicts at flat displacements from the model."""
    names = [name for name, _ in model.named_parameters()]
    out = []
    for step in steps:
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for name, part in zip(names, step.split([state[n].numel() for n in names]), strict=True):
            state[name] += part.view_as(state[name])
        out.append(state)
    return out


@pytest.mark.parametrize("about", ["final", "mean"])
def test_a_trajectory_plane_is_that_of_numpy_svd(about: str) -> None:
    model = BY_NAME["relu_mlp"].model()
    probe = Probe(model, BY_NAME["relu_mlp"].data())
    rng = torch.Generator().manual_seed(0)
    steps = torch.randn(6, probe.n_params, generator=rng).double().cumsum(0).flip(0)
    steps[-1] = 0
    cut = trajectory_slice(probe, path(model, list(steps)), about=about)
    rows = steps.numpy() - (steps.numpy().mean(0) if about == "mean" else 0)
    _, s, v = np.linalg.svd(rows, full_matrices=False)
    found = np.stack([probe.space.flatten(d).numpy() for d in cut.directions])
    signs = np.sign((found * v[:2]).sum(1))
    np.testing.assert_allclose(found, signs[:, None] * v[:2], atol=1e-10)
    np.testing.assert_allclose(cut.details["explained"], s[:2] ** 2 / (s**2).sum(), rtol=1e-10)
    np.testing.assert_allclose(cut.details["checkpoints"], steps.numpy() @ found.T, atol=1e-9)
    inside = steps.numpy() @ found.T @ found
    np.testing.assert_allclose(
        cut.details["distances_from_plane"], np.linalg.norm(steps.numpy() - inside, axis=1), atol=1e-6
    )


def test_checkpoints_within_the_plane_have_their_own_losses_there() -> None:
    model, (x, y) = BY_NAME["gelu_mlp"].model(), BY_NAME["gelu_mlp"].data()
    probe = Probe(model, (x, y))
    rng = torch.Generator().manual_seed(0)
    base = torch.randn(2, probe.n_params, generator=rng).double() / 10
    states = path(model, [2 * base[0], base[0] + base[1], 0.3 * base[1], torch.zeros(probe.n_params).double()])
    found = landscape(probe, plane="trajectory", checkpoints=states, resolution=7)
    assert sum(found.directions["explained"]) == pytest.approx(1)
    assert found.centre_loss == pytest.approx(probe.value(), rel=1e-13)
    assert found.a[0] < found.path[:, 0].min() < found.path[:, 0].max() < found.a[-1]
    assert found.b[0] < found.path[:, 1].min() < found.path[:, 1].max() < found.b[-1]
    np.testing.assert_allclose(found.path[-1], 0, atol=1e-12)
    cut = trajectory_slice(probe, states)
    for state, (a, b) in zip(states, cut.details["checkpoints"], strict=True):
        twin = copy.deepcopy(model)
        twin.load_state_dict(state)
        there = landscape(probe, plane=cut, resolution=3, span=((a - 1, a + 1), (b - 1, b + 1)))
        assert there.loss[1, 1] == pytest.approx(F.cross_entropy(twin(x), y).item(), rel=1e-9)


def test_checkpoints_may_be_models_and_in_any_precision() -> None:
    model = BY_NAME["relu_mlp"].model()
    probe = Probe(model, BY_NAME["relu_mlp"].data())
    others = [BY_NAME["relu_mlp"].model(seed=seed) for seed in (1, 2)]
    by_model = trajectory_slice(probe, [*others, model])
    by_state = trajectory_slice(probe, [{k: v.float() for k, v in o.state_dict().items()} for o in [*others, model]])
    np.testing.assert_allclose(by_model.details["checkpoints"], by_state.details["checkpoints"], atol=1e-6)


def test_directions_that_make_no_plane() -> None:
    net = BY_NAME["relu_mlp"]
    probe, g = probe_of("relu_mlp"), probe_of("relu_mlp").gradient()
    states = path(net.model(), [g, 2 * g, 0 * g])
    cases: list[tuple[type[Exception], str, dict[str, object]]] = [
        (OperandError, "same line", {"plane": (g, -3 * g)}),
        (OperandError, "length zero", {"plane": (g, 0 * g)}),
        (OperandError, "2 direction", {"plane": [g]}),
        (OperandError, "vector \\(P,\\) or tensors", {"plane": ["x", "y"]}),
        (OperandError, "finite", {"plane": (g, g / 0)}),
        (OperandError, "shape", {"plane": (g, g[:5])}),
        (OperandError, "expected \\(5, 4\\)", {"plane": (g, {"0.weight": torch.ones(4, 4)})}),
        (UnknownNameError, "did you mean '0.weight'", {"plane": (g, {"0.weigth": torch.ones(5, 4)})}),
        (UnknownNameError, "did you mean 'random'", {"plane": "randm"}),
        (UnknownNameError, "did you mean 'filter'", {"normalisation": "filters"}),
        (OperandError, "leave them out", {"checkpoints": states}),
        (OperandError, "needs checkpoints", {"plane": "trajectory"}),
        (OperandError, "fewer than 2", {"plane": "trajectory", "checkpoints": states}),
        (OperandError, "length 1 only", {"plane": "trajectory", "checkpoints": states, "normalisation": "filter"}),
        (OperandError, "already", {"plane": random_slice(probe), "include": "all"}),
        (OperandError, "two|2 direction", {"plane": random_slice(probe, 1)}),
        (OperandError, "span must", {"span": (1.0, -1.0)}),
        (OperandError, "at least 3", {"resolution": 2}),
        (ValueError, "seconds", {"seconds": 0.0}),
    ]
    for error, message, options in cases:
        with pytest.raises(error, match=message):
            landscape(probe, **{"resolution": 3, **options})
    with pytest.raises(OperandError, match="another model"):
        landscape(Probe(net.model(seed=3), net.data()), plane=given_slice(probe, [g, g.flip(0)]), resolution=3)
    broken = {**states[0], "0.weight": states[0]["0.weight"] / 0}
    with pytest.raises(NonFiniteWeightsError, match="checkpoint 1"):
        trajectory_slice(probe, [states[0], broken])
