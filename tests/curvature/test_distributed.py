"""Two processes with uneven shards give what one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from networks import BY_NAME, relative
from processes import run_together

from landscope import GGN, EmpiricalFisher, Fisher, Hessian, Probe, eigsh, errors, trace

KINDS = (Hessian, GGN, Fisher, EmpiricalFisher)
SHARDS = {0: slice(0, 11), 1: slice(11, 14)}


def measure(rank: int, folder: Path) -> None:
    net = BY_NAME["residual_batchnorm"]
    x, y = net.data()
    probe = Probe(net.model(), (x[SHARDS[rank]], y[SHARDS[rank]]))
    results: dict[str, object] = {"n": probe.n_samples, "loss": probe.value(), "gradient": probe.gradient()}
    for kind in KINDS:
        results[kind.__name__] = kind(probe).dense()
    results["top"] = eigsh(Hessian(probe), k=2).values
    results["trace"] = trace(Hessian(probe), max_matvecs=40).value
    torch.save(results, folder / f"{rank}.pt")


def refuse(rank: int, folder: Path) -> None:
    x, y = BY_NAME["relu_mlp"].data()
    try:
        Probe(BY_NAME["relu_mlp"].model(), (x, y + (3 if rank == 1 else 0)))
    except errors.LandscopeError as error:
        (folder / f"{rank}.txt").write_text(f"{type(error).__name__}: {error}")


@pytest.fixture(scope="module")
def shared_results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    run_together(measure, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_products_equal_those_of_one_process(shared_results: list[dict]) -> None:
    net = BY_NAME["residual_batchnorm"]
    probe = Probe(net.model(), net.data())
    for results in shared_results:
        assert results["n"] == 14
        assert results["loss"] == pytest.approx(probe.value(), rel=1e-12)
        assert relative(results["gradient"], probe.gradient()) < 1e-12
        for kind in KINDS:
            assert relative(results[kind.__name__], kind(probe).dense()) < 1e-12
        assert torch.allclose(results["top"], eigsh(Hessian(probe), k=2).values, rtol=1e-9)


def test_every_process_gets_the_same_bits(shared_results: list[dict]) -> None:
    first, second = shared_results
    for key, value in first.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(second[key])), key


def test_one_process_that_refuses_does_not_leave_the_other_waiting(tmp_path: Path) -> None:
    run_together(refuse, tmp_path)
    assert (tmp_path / "1.txt").read_text().startswith("LabelRangeError")
    assert "another process" in (tmp_path / "0.txt").read_text()
