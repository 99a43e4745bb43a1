"""Networks to set values against: the file is what the records say, and a place is claimed among comparable ones only."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from torch import nn

from landscope import Estimate, models
from landscope.measures.reading.references import FILE, architecture, kinds, outputs, places
from landscope.measures.reading.words import reading

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="the records are in a checkout only")
def test_the_file_is_what_the_command_makes_of_the_records() -> None:
    spec = importlib.util.spec_from_file_location("references_script", ROOT / "docs" / "references.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script
    spec.loader.exec_module(script)
    assert script.written() == FILE.read_text(encoding="utf-8"), "run python docs/references.py --write"


def test_at_least_five_kinds_of_twenty_networks() -> None:
    assert len(kinds()) >= 5
    for kind in kinds():
        assert len(kind.losses) == len(kind.parameters) >= 20
        assert all(len(values) == len(kind.losses) for values in kind.values.values())


def test_networks_are_what_the_kinds_say() -> None:
    """Built from the catalogue: architecture, outputs and number of parameters as in the file."""
    built = {
        "MLPs on scikit-learn's digits": models.build("mlp", in_features=64, num_classes=10, widths=[32]),
        "LeNet-5 on Fashion-MNIST": models.build("lenet5", batch_norm=True, dropout=0.5),
        "ResNet-18 on CIFAR-10": models.build("resnet18"),
    }
    for title, net in built.items():
        (kind,) = (kind for kind in kinds() if kind.title == title)
        assert (architecture(net.modules()), outputs(net.modules())) == (kind.architecture, kind.outputs)
        assert sum(p.numel() for p in net.parameters()) in kind.parameters


def test_transformers_and_what_is_neither() -> None:
    assert architecture(nn.TransformerEncoderLayer(8, 2).modules()) == "transformer"
    assert architecture(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)).modules()) == ""
    assert architecture(nn.Sequential(nn.ReLU()).modules()) == ""
    assert outputs(nn.Sequential(nn.ReLU()).modules()) == 0


def test_a_place_is_the_count_of_smaller_ones_among_comparable_networks() -> None:
    (kind,) = (kind for kind in kinds() if kind.title.startswith("LeNet-5"))
    middle = sorted(value for value in kind.values["fisher_rao"] if value is not None)[20]
    estimates = {"loss": Estimate(0.26), "fisher_rao": Estimate(middle), "hessian_trace": Estimate(1e9)}
    same = {"architecture": kind.architecture, "outputs": 10, "loss": "cross_entropy"}
    found = places(estimates, parameters=175_546, **same)
    assert found is not None
    assert {(place.measure, place.smaller, place.of) for place in found[1]} == {
        ("fisher_rao", 20, 50),
        ("hessian_trace", 50, 50),
    }
    other_size = places(estimates, parameters=200_000, **same)
    assert other_size is not None
    assert [place.measure for place in other_size[1]] == ["fisher_rao"], "the trace depends on scale"


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": 2_000_000},
        {"outputs": 100},
        {"loss": "mse"},
        {"architecture": "transformer"},
        {"estimates": {"loss": Estimate(1e-4), "fisher_rao": Estimate(1.0)}},
        {"estimates": {"fisher_rao": Estimate(1.0)}},
        {"estimates": {"loss": Estimate(0.26), "fisher_rao": Estimate(1.0, settings={"root": True})}},
    ],
)
def test_what_is_not_comparable_is_not_placed(change: dict[str, object]) -> None:
    (kind,) = (kind for kind in kinds() if kind.title.startswith("LeNet-5"))
    usual: dict[str, object] = {
        "estimates": {"loss": Estimate(0.26), "fisher_rao": Estimate(1.0)},
        "architecture": kind.architecture,
        "outputs": 10,
        "loss": "cross_entropy",
        "parameters": 175_546,
    }
    assert places(**usual) is not None  # type: ignore[arg-type]
    assert places(**{**usual, **change}) is None  # type: ignore[arg-type]


def test_the_reading_says_that_none_is_comparable() -> None:
    about = {
        "architecture": "",
        "outputs": 3,
        "loss": "mse",
        "parameters": "7 parameters",
        "mode": "eval",
        "temperature": 1.0,
    }
    remark = reading({"loss": Estimate(1.0), "fisher_rao": Estimate(1.0)}, about)[-1]
    assert remark.topic == "Among others"
    assert remark.text.startswith(f"None of the {len(kinds())} kinds")
    assert reading({"loss": Estimate(1.0)}, about) == (), "nothing here that networks are ranked by"
