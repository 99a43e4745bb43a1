"""One contract for every registered measure."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import cache

import pytest
import torch
from live_tensors import left_behind
from networks import BY_NAME, Net
from torch import nn

from landscope import MEASURES, Estimate, Loss, Probe
from landscope.measures import invariance

ALL = list(MEASURES)
SMALL: dict[str, dict[str, object]] = {
    "hessian_spectrum": {"steps": 40, "probes": 2},
    "ggn_spectrum": {"steps": 40, "probes": 2},
    "fisher_spectrum": {"steps": 40, "probes": 2},
    "log_volume": {"k": 3},
    "igs": {"rank": 5, "batch_size": 8, "batches": 2},
    "adaptive_sharpness": {"rho": 1e-2, "batch_size": 8, "steps": 4, "batches": 2},
}
KINDS = ["relu_mlp", "residual_batchnorm", "transformer_encoder", "own_layers"]


def make(key: str, **changes: object):
    return MEASURES[key](**{**SMALL.get(key, {}), **changes})


def probe_of(net: Net, n: int = 24, **options: object) -> Probe:
    return Probe(net.model(), net.data(n), **options)


@cache
def _checked(name: str, **options: object) -> Probe:
    return probe_of(BY_NAME[name], **options)


def point(name: str, **options: object) -> Probe:
    """A point at which nothing was computed yet; its model and data were checked once for all measures."""
    probe = _checked(name, **options)
    return probe.at_temperature(probe.temperature)


def assert_sound(estimate: Estimate, key: str) -> None:
    if estimate.status.has_value:
        assert math.isfinite(estimate.value), key
    else:
        assert estimate.reason, key
    assert Estimate.from_json(estimate.to_json()).to_dict() == estimate.to_dict()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("key", ALL)
def test_a_value_or_a_reason_the_same_again_and_the_model_untouched(key: str, name: str) -> None:
    net = BY_NAME[name]
    model = net.model().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rng = torch.get_rng_state()
    probe = Probe(model, net.data(24))
    inner = {k: v.clone() for k, v in probe.module("").state_dict().items()}
    one = make(key)
    first = one(probe)
    assert_sound(first, key)
    again = one(point(name))
    assert again.value == first.value or (math.isnan(again.value) and math.isnan(first.value))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(v, inner[k]) for k, v in probe.module("").state_dict().items())
    assert model.training
    assert not any(m._forward_hooks for m in probe.modules.values())
    assert torch.equal(rng, torch.get_rng_state())


@pytest.mark.parametrize(
    "name", [name if name == "relu_mlp" else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_no_tensor_outlives_the_measurements(name: str) -> None:
    def everything() -> None:
        for key in ALL:
            make(key)(probe_of(BY_NAME[name]))

    assert left_behind(everything) == 0


@pytest.mark.parametrize(
    "failure", [KeyboardInterrupt(), ZeroDivisionError("in the user's loss")], ids=["Ctrl-C", "error"]
)
@pytest.mark.parametrize("key", ALL)
def test_the_model_is_untouched_when_the_loss_raises_half_way(key: str, failure: BaseException) -> None:
    net = BY_NAME["residual_batchnorm"]
    model, armed = net.model().train(), []

    def loss(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if armed:
            armed.append(1)
            if len(armed) > 3:
                raise failure
        return nn.functional.cross_entropy(z, y, reduction="none")

    probe = Probe(model, net.data(24), Loss(loss, "per_sample", likelihood="categorical"))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    inner = {k: v.clone() for k, v in probe.module("").state_dict().items()}
    rng = torch.get_rng_state()
    armed.append(1)
    with suppress(KeyboardInterrupt, ZeroDivisionError):
        make(key)(probe)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(v, inner[k]) for k, v in probe.module("").state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in probe.modules.values())
    assert torch.equal(rng, torch.get_rng_state())
    assert torch.backends.mha.get_fastpath_enabled()
    armed.clear()
    assert_sound(make(key)(probe), key)  # and the probe still works


@pytest.mark.parametrize("key", ALL)
def test_batch_size_and_order_do_not_matter(key: str) -> None:
    net = BY_NAME["relu_mlp"]
    x, y = net.data(24)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(5))
    whole = make(key)(point("relu_mlp"))
    cut = make(key)(Probe(net.model(), [(x[order][a:b], y[order][a:b]) for a, b in ((0, 10), (10, 20), (20, 24))]))
    assert whole.status is cut.status
    if whole.status.has_value:
        assert cut.value == pytest.approx(whole.value, rel=1e-6, abs=1e-9)


@pytest.fixture(scope="module")
def regression() -> Probe:
    net = BY_NAME["gelu_mlp"]
    x, _ = net.data(24)
    return Probe(net.model(), (x, torch.randn(24, 3, dtype=torch.float64)), "mse")


@pytest.mark.parametrize("key", ALL)
def test_regression_gives_a_value_or_says_why_not(key: str, regression: Probe) -> None:
    assert_sound(make(key)(regression.at_temperature(1.0)), key)


@pytest.mark.parametrize("key", ALL)
def test_float32_agrees_with_float64(key: str) -> None:
    single, double = (make(key)(point("gelu_mlp", dtype=kind)) for kind in (torch.float32, torch.float64))
    assert single.status.has_value == double.status.has_value
    if double.status.has_value:
        error = (single.stderr or 0.0) + (double.stderr or 0.0)  # a search has none, and climbs the same way in both
        assert single.value == pytest.approx(double.value, rel=2e-3, abs=3 * error + 1e-6)


class Cooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = BY_NAME["gelu_mlp"].model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) / 2.5


@pytest.fixture(scope="module")
def cooled_inside() -> Probe:
    return Probe(Cooled(), BY_NAME["gelu_mlp"].data(24))


@pytest.mark.parametrize("key", ALL)
def test_temperature_is_honoured(key: str, cooled_inside: Probe) -> None:
    cooled = make(key)(point("gelu_mlp", temperature=2.5))
    assert_sound(cooled, key)
    if key in ("relative_flatness", "relative_flatness_layerwise", "l2_norm", "fisher_rao_homogeneous"):
        return  # they look at layers, which the wrapper hides
    inside = make(key)(cooled_inside.at_temperature(1.0))
    if cooled.status.has_value:
        assert cooled.value == pytest.approx(inside.value, rel=1e-5, abs=1e-9)


SETTINGS: list[tuple[str, dict[str, object]]] = [
    *((key, {}) for key in ALL),
    ("adaptive_sharpness", {"eta": 0.1}),
    ("adaptive_sharpness", {"restarts": 2}),
    ("keskar_sharpness", {"restarts": 2}),
    ("sam_sharpness", {"restarts": 2}),
    ("average_sharpness", {"adaptive": True}),
    ("average_sharpness", {"adaptive": True, "eta": 0.1}),
    ("pac_bayes_sigma", {"adaptive": True}),
]


@pytest.mark.parametrize(("key", "settings"), SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["relu_mlp", "residual_batchnorm"])
def test_claimed_invariances_hold_and_the_others_visibly_fail(key: str, settings: dict[str, object], name: str) -> None:
    measure = make(key, **settings)
    for transformation, moved in invariance.movements(measure, point(name)).items():
        if moved is None or not moved.before.status.has_value:
            continue
        if transformation in measure.invariances:
            error = (
                moved.error if math.isfinite(moved.error) else 0.0
            )  # a maximum over draws has none: it must not move at all
            assert moved.change <= 1e-6 + 4 * error, (transformation, moved)
        elif moved.before.value != 0 and "restarts" not in settings:
            # 0, as a smallest eigenvalue beyond the rank, has no scale to change; restarts may find nothing more
            assert moved.change > 1e-6, (transformation, moved, "not declared, yet unchanged")


def test_every_transformation_has_a_place_in_the_test_networks() -> None:
    mlp = invariance.movements(make("l2_norm"), probe_of(BY_NAME["relu_mlp"]))
    residual = invariance.movements(make("l2_norm"), probe_of(BY_NAME["residual_batchnorm"]))
    assert {name for name, m in mlp.items() if m} >= {
        "layer_rescaling",
        "neuron_rescaling",
        "permutation",
        "logit_shift",
    }
    assert residual["batchnorm_scaling"] is not None
    assert invariance.movements(make("l2_norm"), probe_of(BY_NAME["gelu_mlp"]))["layer_rescaling"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "transformer"])
def test_everything_on_a_larger_network_within_its_budget(name: str) -> None:
    from landscope import Status, measure
    from landscope.models import build

    torch.manual_seed(0)
    if name == "resnet18":
        model, x = build("resnet18"), torch.randn(8, 3, 32, 32)
    else:
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        model = nn.Sequential(
            nn.Embedding(100, 64), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64 * 16, 10)
        )
        x = torch.randint(0, 100, (8, 16))
    seconds = {"resnet18": 240, "transformer": 60}[name]  # on two cores
    report = measure(model, (x, torch.arange(8) % 10), "all", seconds=seconds)
    assert len(report) == len(ALL)
    assert report["relative_flatness"].status is Status.EXACT
    assert all(
        e.reason for e in report.values() if e.status in (Status.FAILED, Status.BUDGET_SPENT, Status.NOT_APPLICABLE)
    )
    assert all(e.status.has_value or e.status is Status.NOT_APPLICABLE for e in report.values())
