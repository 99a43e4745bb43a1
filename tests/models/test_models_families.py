"""What single networks promise beyond the contract, against independent truths."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from landscope import models
from landscope.models.catalogue import initialise
from landscope.models.efficientnet import SameConv2d
from landscope.models.vit import VisionTransformer


@pytest.mark.parametrize("size", [5, 6, 7, 8])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding_samples_the_positions_that_tensorflow_does(size, kernel, stride):
    """Output i of TensorFlow's rule covers inputs from i·stride − ⌊p/2⌋, p the total padding."""
    layer = SameConv2d(1, 1, (1, kernel), stride=(1, stride), bias=False).double()
    x = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    count = math.ceil(size / stride)
    before = max((count - 1) * stride + kernel - size, 0) // 2
    weight = layer.weight.flatten()
    expected = [
        sum(weight[k] * x[at] for k in range(kernel) if 0 <= (at := i * stride - before + k) < size)
        for i in range(count)
    ]
    torch.testing.assert_close(layer(x.view(1, 1, 1, -1)).flatten(), torch.stack(expected))


def test_deep_linear_has_the_papers_curvature():
    """L = exp(w1 w2 w3 x): tr H = L x² (w2²w3² + w1²w3² + w1²w2²)."""
    model = models.build("deep_linear").double()
    w = torch.tensor([0.7, -1.3, 0.4], dtype=torch.float64)
    x = torch.tensor([[1.7]], dtype=torch.float64)

    def loss(v: torch.Tensor) -> torch.Tensor:
        values = {name: v[i].view(1, 1) for i, (name, _) in enumerate(model.named_parameters())}
        return torch.func.functional_call(model, values, (x,)).squeeze().exp()

    hessian = torch.func.hessian(loss)(w)
    others = (w.prod() / w).square().sum()
    torch.testing.assert_close(hessian.trace(), (w.prod() * 1.7).exp() * 1.7**2 * others)


def test_attention_equals_the_fused_kernel():
    attention = VisionTransformer(width=12, heads=3, layers=1).blocks[0].attention.double()
    x = torch.randn(2, 7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    query, key, value = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in attention.qkv(x).split(12, dim=-1))
    mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(x), attention.output(mixed))


def test_wide_resnet_without_the_added_layer_is_the_published_one():
    model = models.WideResNet(depth=10, widen_factor=1).eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    features = functional.adaptive_avg_pool2d(functional.relu(model.bn(model.blocks(model.stem(x)))), 1).flatten(1)
    torch.testing.assert_close(model(x), model.fc(features))


def test_wide_resnet_penultimate_layer_feeds_the_classifier_through_a_relu():
    model = models.build("wide_resnet28_10", widen_factor=1, penultimate=64).eval()
    seen = []
    model.penultimate.register_forward_hook(lambda layer, inputs, output: seen.append(output))
    model.fc.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    model(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert seen[0].shape == (2, 64)
    assert (seen[0] < 0).any()
    assert torch.equal(seen[1], seen[0].relu())


def test_resnet20_shortcut_takes_every_other_pixel_and_pads_channels_with_zeros():
    shortcut = models.build("resnet20").stages[1][0].shortcut
    x = torch.arange(16 * 4 * 4, dtype=torch.float32).view(1, 16, 4, 4)
    y = shortcut(x)
    assert y.shape == (1, 32, 2, 2)
    assert torch.equal(y[:, 8:24], x[..., ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()


@pytest.mark.parametrize(
    ("name", "block", "branch"),
    [
        ("resnet18", "stages.0.1", "bn2"),
        ("resnet20", "stages.1.2", "bn2"),
        ("preresnet164", "blocks.20", "conv3"),
        ("wide_resnet28_10", "blocks.5", "conv2"),
        ("efficientnet_lite0", "blocks.2", "project.1"),
    ],
)
def test_a_residual_block_whose_branch_is_silent_is_the_identity(name, block, branch):
    options = {"widen_factor": 1} if name == "wide_resnet28_10" else {}
    layer = models.build(name, **options).eval().get_submodule(block)
    last = layer.get_submodule(branch)
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    first = next(p for p in layer.parameters() if p.dim() == 4)
    # Positive numbers, since ResNet's blocks end in a ReLU.
    x = torch.rand(2, first.shape[1], 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(layer(x), x)


@pytest.mark.parametrize(("name", "convolutions"), [("vgg11", 8), ("vgg16", 13), ("vgg19", 16)])
def test_vgg_has_its_number_of_convolutions_and_leaves_one_position(name, convolutions):
    with torch.device("meta"):
        model = models.build(name)
        features = model.features(torch.zeros(1, 3, 32, 32))
    assert sum(isinstance(layer, nn.Conv2d) for layer in model.features) == convolutions
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in model.features) == 5
    assert features.shape == (1, 512, 1, 1)


def test_vgg19_head_of_the_first_paper():
    with torch.device("meta"):
        model = models.build("vgg19", dropout=0.5)
    assert [type(layer) for layer in model.hidden] == [nn.Flatten, nn.Dropout, nn.Linear, nn.BatchNorm1d, nn.ReLU]


def test_all_cnn_starts_with_positive_biases_and_gives_no_negative_logits():
    model = models.build("cnn9").eval()
    assert all((p == 0.1).all() for name, p in model.named_parameters() if name.endswith("bias"))
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (model(x) >= 0).all()
    assert (models.build("cnn9", output_relu=False).eval()(x) < 0).any()


def test_autoencoder_passes_through_a_code_of_eight_and_gives_probabilities():
    model = models.build("autoencoder3d").eval()
    codes = []
    model.encode.register_forward_hook(lambda layer, inputs, output: codes.append(output))
    x = torch.zeros(1, 1, 64, 64, 64)
    x[..., 16:48, 16:48, 16:48] = 1
    with torch.no_grad():
        shape = model(x)
    assert codes[0].shape == (1, 8)
    assert model.decode.weight.shape == (64, 8)
    assert shape.shape == x.shape
    assert ((shape > 0) & (shape < 1)).all()


def test_mlp_of_the_fifth_papers_code_activates_its_output():
    model = models.build("mlp", in_features=10, widths=(64, 64), num_classes=1, activation="elu", activate_output=True)
    x = torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    hidden = functional.elu(model.hidden[2](functional.elu(model.hidden[0](x))))
    torch.testing.assert_close(model(x), functional.elu(model.fc(hidden)))


@pytest.mark.parametrize(
    ("scheme", "layer", "variance"),
    [
        ("he", nn.Conv2d(32, 64, 3), 2 / (64 * 9)),
        ("he", nn.Linear(300, 200), 2 / 300),
        ("xavier", nn.Conv2d(32, 64, 3), 2 / (32 * 9 + 64 * 9)),
        ("xavier", nn.Linear(300, 200), 2 / 500),
        ("pytorch", nn.Linear(300, 200), 1 / (3 * 300)),
    ],
)
def test_initial_variances(scheme, layer, variance):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer.reset_parameters()
        initialise(layer, scheme)
    # The variance of n draws has a relative standard error of at most √(2/n); n is 18,432 or more.
    assert layer.weight.var().item() == pytest.approx(variance, rel=5 * math.sqrt(2 / layer.weight.numel()))


def test_build_follows_the_ambient_device_and_dtype():
    with torch.device("meta"):
        assert models.build("mlp").fc.weight.is_meta
    try:
        torch.set_default_dtype(torch.float64)
        assert models.build("mlp").fc.weight.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
