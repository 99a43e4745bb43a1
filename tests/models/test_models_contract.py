"""One contract, every network of the catalogue."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from landscope import models

# Parameters under the default options, copied from the papers, from the published models, or worked out by hand: not
# from the catalogue, so that a slip there and in the code cannot agree.
DEFAULT_PARAMETERS = {
    "autoencoder3d": 1_025_801,
    "cnn9": 1_369_738,
    "deep_linear": 3,
    "efficientnet_lite0": 4_652_008,
    "gat": 11_565,
    "lenet5": 175_546,
    "minilm": 22_566_146,
    "mlp": 79_510,
    "preresnet164": 1_703_258,
    "resnet18": 11_173_962,
    "resnet20": 269_722,
    "softmax_regression": 7_850,
    "vgg11": 9_494_794,
    "vgg11_imagenet_head": 128_812_810,
    "vgg16": 14_991_946,
    "vgg16_imagenet_head": 134_309_962,
    "vgg19": 20_304_202,
    "vgg19_imagenet_head": 139_622_218,
    "vit32": 5_362_762,
    "wide_resnet28_10": 36_479_194,
}

# The same architectures, thin enough to differentiate twice in a test.
THIN: dict[str, dict[str, models.catalogue.OptionValue]] = {
    "autoencoder3d": {"channels": (2, 3, 4, 3, 2), "code_size": 3},
    "cnn9": {"width": 4},
    "minilm": {"hidden": 12, "layers": 2, "heads": 3, "mlp_width": 16, "vocabulary": 1000, "max_length": 32},
    "preresnet164": {"width": 2},
    "resnet18": {"width": 4},
    "resnet20": {"width": 4},
    "vit32": {"width": 12, "layers": 2, "mlp_width": 16},
    "wide_resnet28_10": {"widen_factor": 1},
} | {
    f"vgg{depth}{head}": {"width": 4} | ({"hidden_width": 32} if head else {})
    for depth in (11, 16, 19)
    for head in ("", "_imagenet_head")
}
TOO_LARGE_TO_RUN = {"wide_resnet28_10", "vgg11_imagenet_head", "vgg16_imagenet_head", "vgg19_imagenet_head"}
NOT_A_BATCH = frozenset({"gat"})  # nodes of one graph, not independent samples
PACKAGES = {"graphs": "torch_geometric", "text": "transformers"}

ROUNDING = 1e4 * torch.finfo(torch.float64).eps


def needs(name: str) -> pytest.MarkDecorator:
    extra = models.MODELS[name].extra
    package = PACKAGES.get(extra) if extra else None
    absent = package is not None and importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"{package} is not installed: pip install 'landscope[{extra}]'")


def every(*, without: frozenset[str] = frozenset()) -> pytest.MarkDecorator:
    cases = [pytest.param(name, marks=needs(name)) for name in models.names() if name not in without]
    return pytest.mark.parametrize("name", cases)


def thin(name: str, *, seed: int = 0, **options: models.catalogue.OptionValue) -> nn.Module:
    return models.build(name, seed=seed, **(THIN.get(name, {}) | options)).double().eval()


def inputs(name: str, batch_size: int = 2) -> tuple[Tensor, ...]:
    """The example inputs in float64; EfficientNet gets smaller images, which it takes of any size."""
    given = models.MODELS[name].example_inputs(batch_size)
    if name == "efficientnet_lite0":
        given = (given[0][..., :64, :64],)
    return tuple(x.double() if x.is_floating_point() else x for x in given)


@pytest.fixture(autouse=True)
def global_randomness_is_untouched() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state())


def test_the_table_of_this_file_covers_the_catalogue():
    assert sorted(DEFAULT_PARAMETERS) == models.names()
    assert {name: models.MODELS[name].parameters for name in models.names()} == DEFAULT_PARAMETERS


@every()
def test_parameter_counts(name):
    for count in models.MODELS[name].counts:
        with torch.device("meta"):
            model = models.build(name, **count.options)
        assert sum(p.numel() for p in model.parameters() if p.requires_grad) == count.parameters, count.source


@every()
def test_default_inputs_give_finite_logits(name):
    entry = models.MODELS[name]
    given = entry.example_inputs(2)
    with torch.device("meta" if name in TOO_LARGE_TO_RUN else "cpu") as device, torch.no_grad():
        outputs = models.build(name).eval()(*(x.to(device) for x in given))
    expected = given[0].shape if name == "autoencoder3d" else (2, entry.options["num_classes"].default)
    assert outputs.shape == expected
    assert outputs.is_meta or outputs.isfinite().all()


@every()
def test_the_named_classifier_exists_and_is_the_last_layer(name):
    with torch.device("meta"):
        model = models.build(name)
    layer = model.get_submodule(models.MODELS[name].classifier)
    if name == "cnn9":
        assert isinstance(layer, nn.Conv2d)
        assert layer.kernel_size == (1, 1)
    elif name == "gat":
        assert layer.lin.weight.shape == (7, 8)
    else:
        assert isinstance(layer, nn.Linear)
    if name != "autoencoder3d":
        assert layer is [m for m in model.children() if any(True for _ in m.parameters())][-1]


@every()
def test_gradient_reaches_every_parameter(name):
    model = thin(name)
    model(*inputs(name, 4)).square().sum().backward()
    idle = {n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    # A bias of the keys shifts all attention scores of a query alike, which the softmax ignores; what is left of its
    # gradient is rounding, zero or not.
    assert not {n for n in idle if not n.endswith("key.bias")}


@every()
def test_forward_over_reverse_equals_reverse_over_reverse(name):
    model, given = thin(name), inputs(name)
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    direction = {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in parameters.items()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        outputs: Tensor = functional_call(model, values, given)
        return outputs.flatten(1).logsumexp(1).mean()

    _, forward = jvp(grad(loss), (parameters,), (direction,))
    values = {n: p.clone().requires_grad_() for n, p in parameters.items()}
    first = torch.autograd.grad(loss(values), list(values.values()), create_graph=True)
    slope = sum((g * direction[n]).sum() for n, g in zip(values, first, strict=True))
    reverse = torch.autograd.grad(slope, list(values.values()), materialize_grads=True)
    scale = max(h.abs().max() for h in reverse)
    assert scale > 0 or name == "softmax_regression"
    for n, h in zip(values, reverse, strict=True):
        torch.testing.assert_close(forward[n], h, rtol=0, atol=float(ROUNDING * scale), msg=n)


@every(without=NOT_A_BATCH)
def test_per_sample_gradients_by_vmap(name):
    model, given = thin(name), inputs(name)
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], *sample: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, values, tuple(x.unsqueeze(0) for x in sample))
        return outputs.flatten(1).logsumexp(1).sum()

    each = vmap(grad(loss), in_dims=(None, *(0 for _ in given)))(parameters, *given)
    for i in range(2):
        alone = grad(loss)(parameters, *(x[i] for x in given))
        scale = max(g.abs().max() for g in alone.values())
        for n, g in alone.items():
            torch.testing.assert_close(each[n][i], g, rtol=0, atol=float(ROUNDING * scale), msg=n)


@every()
def test_copies_and_saved_weights_give_identical_outputs(name):
    model, given = thin(name), inputs(name)
    other = thin(name, seed=1)
    with torch.no_grad():
        outputs = model(*given)
        assert not torch.equal(other(*given), outputs)
        other.load_state_dict(load(save(model.state_dict())))
        assert torch.equal(other(*given), outputs)
        assert torch.equal(copy.deepcopy(model)(*given), outputs)


@every()
def test_a_seed_fixes_the_weights(name):
    first, again, other = (thin(name, seed=seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert any(not torch.equal(first[n], other[n]) for n in first)


@every()
def test_inputs_are_left_alone(name):
    model, given = thin(name).train(), inputs(name, 4)
    before = [x.clone() for x in given]
    with torch.random.fork_rng():
        model(*given)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))
    assert all(x._version == 0 or name == "efficientnet_lite0" for x in given)


@every(without=NOT_A_BATCH)
def test_a_sample_does_not_see_its_batch(name):
    model, given = thin(name), inputs(name, 4)
    with torch.no_grad():
        together = model(*given)
        alone = torch.cat([model(*(x[i : i + 1] for x in given)) for i in range(4)])
    torch.testing.assert_close(together, alone, rtol=ROUNDING, atol=float(ROUNDING * together.abs().max()))


@every(without=frozenset({"autoencoder3d"}))
def test_number_of_classes(name):
    with torch.no_grad():
        assert thin(name, num_classes=3)(*inputs(name)).shape == (2, 3)


def offering(option: str) -> pytest.MarkDecorator:
    cases = [pytest.param(n, marks=needs(n)) for n in models.names() if option in models.MODELS[n].options]
    return pytest.mark.parametrize("name", cases)


@offering("in_channels")
def test_number_of_channels(name):
    channels = 2
    (given,) = inputs(name)
    with torch.no_grad():
        outputs = thin(name, in_channels=channels)(given[:, :1].repeat_interleave(channels, dim=1))
    assert outputs.isfinite().all()


@offering("dropout")
def test_dropout_option(name):
    with torch.device("meta"):
        rates = {m.p for m in models.build(name, dropout=0.25).modules() if isinstance(m, nn.Dropout)}
    assert 0.25 in rates


@offering("batch_norm")
def test_batch_norm_option(name):
    for wanted in (True, False):
        with torch.device("meta"):
            model = models.build(name, batch_norm=wanted)
        assert wanted == any("BatchNorm" in type(m).__name__ for m in model.modules())


@offering("init")
def test_init_option_changes_the_weights(name):
    states = [thin(name, init=scheme).state_dict() for scheme in ("pytorch", "he", "xavier")]
    weight = next(n for n, p in states[0].items() if n.endswith("weight") and p.dim() > 1)
    drawn = [state[weight] for state in states]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
