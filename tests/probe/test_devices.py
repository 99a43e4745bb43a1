"""Layers that accelerate's `device_map` has placed: measured where they are; what is offloaded is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import landscope
from landscope import Probe, errors

accelerate = pytest.importorskip("accelerate")

DATA = (torch.randn(20, 5, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 3)
KEYS = ["loss", "gradient_norm", "hessian_top_eigenvalue", "hessian_trace", "relative_flatness"]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


@pytest.mark.parametrize("device_map", [{"": "cpu"}, {"0": "cpu", "1": "cpu", "2": "cpu"}])
def test_a_dispatched_model_is_measured_where_it_is(device_map: dict[str, str]) -> None:
    placed = accelerate.dispatch_model(net(), device_map, force_hooks=True)
    found, plain = landscope.measure(placed, DATA, KEYS), landscope.measure(net(), DATA, KEYS)
    for key in KEYS:
        assert found[key].value == pytest.approx(plain[key].value, rel=1e-6), key
    assert placed.hf_device_map == device_map
    assert hasattr(placed, "_hf_hook"), "accelerate's hooks stay on the user's model"


def test_what_is_offloaded_is_refused(tmp_path: Path) -> None:
    placed = accelerate.dispatch_model(net(), {"0": "cpu", "1": "cpu", "2": "disk"}, offload_dir=str(tmp_path))
    with pytest.raises(errors.ModelError, match=r"2\.weight is on the meta device.*device_map=None"):
        Probe(placed, DATA)


def test_a_layer_on_the_meta_device_is_refused() -> None:
    model = net()
    model[2].to("meta")
    with pytest.raises(errors.ModelError, match=r"2\.weight is on the meta device"):
        Probe(model, DATA)
