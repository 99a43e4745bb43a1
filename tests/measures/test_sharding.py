"""Two processes with uneven shards give, for every measure, what one process gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from networks import BY_NAME
from processes import run_together

from landscope import MEASURES, Estimate, Probe, measure

SETTINGS: dict[str, dict[str, object]] = {
    "hessian_spectrum": {"steps": 20, "probes": 2},
    "ggn_spectrum": {"steps": 20, "probes": 2},
    "fisher_spectrum": {"steps": 20, "probes": 2},
    "log_volume": {"k": 3},
    "igs": {"rank": 4, "batch_size": 8},
    "adaptive_sharpness": {"rho": 1e-2, "batch_size": 8, "steps": 3},
}
SHARDS = {0: slice(0, 17), 1: slice(17, 24)}
NETS = ("relu_mlp", "residual_batchnorm")


def everything(name: str, shard: slice) -> dict[str, object]:
    net = BY_NAME[name]
    x, y = net.data(24)
    report = measure(
        Probe(net.model(), (x[shard], y[shard])), measures={key: SETTINGS.get(key, {}) for key in MEASURES}
    )
    return {key: estimate.to_dict() for key, estimate in report.items()}


def work(rank: int, folder: Path) -> None:
    found = {name: everything(name, SHARDS[rank]) for name in NETS}
    (folder / f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    run_together(work, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", NETS)
def test_shards_change_nothing(sharded: list[dict], name: str) -> None:
    alone = everything(name, slice(0, 24))
    for rank in sharded:
        for key in MEASURES:
            one, two = Estimate.from_dict(alone[key]), Estimate.from_dict(rank[name][key])
            assert one.status is two.status, (key, one, two)
            if one.status.has_value:
                assert two.value == pytest.approx(one.value, rel=1e-6, abs=1e-9), key
                assert (one.data_stderr is None) == (two.data_stderr is None), key
                if one.data_stderr is not None:
                    assert two.data_stderr == pytest.approx(one.data_stderr, rel=1e-4, abs=1e-9), key
