"""The command line on the real CIFAR-10. Skipped where its files are not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from landscope.core.seeding import generator
from landscope.data import load, status
from landscope.models import build

pytestmark = [pytest.mark.real_data, pytest.mark.slow]
Call = Callable[..., tuple[int, str, str]]


def test_robustness_of_a_small_network(call: Call, tmp_path: Path) -> None:
    """A network that has learned something is worse under strong noise than under weak noise."""
    if "LANDSCOPE_DATA" not in os.environ or status("cifar10", verify=False).state != "present":
        pytest.skip("the real files of cifar10 are not in $LANDSCOPE_DATA")
    x, y = load("cifar10", pixels="standard", train_size=4_000).train
    net = build("lenet5", in_channels=3, image_size=32, dropout=0.0)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        for rows in torch.randperm(len(y), generator=generator(0, "order")).split(50):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    torch.save({"model": net.state_dict()}, tmp_path / "net.pt")
    words = ["--model", "lenet5", "-o", "in_channels=3", "-o", "image_size=32", "--data", "cifar10", "--json"]
    chosen = ["--pixels", "standard", "--corruptions", "gaussian_noise,brightness,contrast", "--severities", "1,5"]
    code, out, err = call("robustness", tmp_path / "net.pt", *words, *chosen)
    assert code == 0, err
    found = json.loads(out)
    test = load("cifar10", pixels="standard", validation=0).test
    with torch.no_grad():
        clean = (net.eval()(test.x).argmax(1) == test.y).double().mean()
    assert found["samples"] == 10_000
    assert found["clean"] == pytest.approx(float(clean), abs=2e-4), (
        "normalised as data.load does; a tie may break otherwise"
    )
    assert found["clean"] > 0.4
    for name in ("gaussian_noise", "contrast"):
        assert found["accuracy"][name]["5"] < found["accuracy"][name]["1"] < found["clean"] + 0.02
