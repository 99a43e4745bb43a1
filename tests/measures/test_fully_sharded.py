"""A model sharded by FSDP2 over 2 and 4 processes gives what one process gives, and no process holds all of it."""

from __future__ import annotations

import json
import os
import signal
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_together
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from landscope import GGN, Estimate, Fisher, Hessian, Probe, eigsh, errors, frobenius, measure, spectrum, trace
from landscope.core import distributed
from landscope.spectra.eigen import start_row
from landscope.spectra.lanczos import recurrence_steps
from landscope.spectra.long_pairs import long_pairs
from landscope.spectra.protocol import as_operator

Data = dict[str, Tensor] | tuple[Tensor, ...]
ROWS = 16
CUTS = {2: (0, 11, 16), 4: (0, 2, 3, 12, 16)}
"""Unequal shares of the rows; one process has a single one."""
SETTINGS: dict[str, dict[str, object]] = {
    "loss": {},
    "accuracy": {},
    "ece": {},
    "gradient_norm": {},
    "l2_norm": {},
    "hessian_top_eigenvalue": {},
    "hessian_bottom_eigenvalue": {},
    "ggn_top_eigenvalue": {"tol": 1e-6},
    "fisher_top_eigenvalue": {"tol": 1e-6},
    "hessian_trace": {"max_matvecs": 16},
    "hessian_frobenius": {"max_matvecs": 16},
    "hessian_spectrum": {"steps": 6, "probes": 2},
}
FEW = ("loss", "accuracy", "gradient_norm", "l2_norm")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def mlp() -> tuple[nn.Module, Data, list[nn.Module]]:
    """Widths that no number of processes divides, an embedding with a padding row, and a parameter smaller than the group."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(9, 5, padding_idx=0), nn.Flatten(), nn.Linear(15, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3)
    )
    x = torch.randint(0, 9, (ROWS, 3), generator=torch.Generator().manual_seed(1))
    return net, (x, torch.arange(ROWS) % 3), [net[2]]


def gpt2() -> tuple[nn.Module, Data, list[nn.Module]]:
    """Embedding and head are tied; labels are shifted, and some ignored."""
    import transformers

    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 1}
    config = transformers.GPT2Config(vocab_size=31, n_positions=10, n_embd=12, n_layer=2, n_head=3, **ids)
    net = transformers.GPT2LMHeadModel(config).eval()
    return net, texts(), list(net.transformer.h)


def llama() -> tuple[nn.Module, Data, list[nn.Module]]:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=17,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=10,
    )
    net = transformers.LlamaForCausalLM(config).eval()
    return net, texts(), list(net.model.layers)


def texts() -> Data:
    ids = torch.randint(0, 31, (ROWS, 7), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[3, 4:] = labels[9, 2:] = -100
    return {"input_ids": ids, "labels": labels}


NETS: dict[str, Callable[[], tuple[nn.Module, Data, list[nn.Module]]]] = {"mlp": mlp, "gpt2": gpt2, "llama": llama}
SUBJECTS = [("mlp", torch.float64), ("gpt2", torch.float64), ("llama", torch.float32)]


def sharded(net: nn.Module, units: list[nn.Module]) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for unit in units:
        fully_shard(unit)
    return fully_shard(net)


def share(data: Data, rank: int, processes: int) -> Data:
    cuts = CUTS[processes]
    rows = slice(cuts[rank], cuts[rank + 1])
    return {key: t[rows] for key, t in data.items()} if isinstance(data, dict) else tuple(t[rows] for t in data)


def numbers(probe: Probe) -> dict[str, Any]:
    """What is compared: vectors, of which a process may hold a part, and numbers."""
    v = probe.vectors.normal(torch.Generator().manual_seed(5), probe.dtype, probe.device)
    hessian = Hessian(probe)
    found: dict[str, Any] = {"v": v, "theta": probe.vector(), "gradient": probe.gradient(), "hessian": hessian @ v}
    found |= {"ggn": GGN(probe) @ v, "fisher": Fisher(probe) @ torch.stack([v, v.flip(0) * 0], 1)[:, 0]}
    found["value"] = probe.value()
    found["parameters"] = probe.n_params
    found["extreme"] = eigsh(hessian, which="LM", max_matvecs=15).values
    found["trace"] = trace(hessian, max_matvecs=10).value
    found["frobenius"] = frobenius(hessian, max_matvecs=10).value
    found["nodes"] = torch.tensor(spectrum(hessian, steps=4, probes=1).nodes)
    counted = as_operator(hessian)  # in the way for vectors that are too long for a basis
    *_, pair = long_pairs(counted, torch.abs, 1e-3, 6, start_row(counted, None, 0), 1.0)
    *_, steps = recurrence_steps(as_operator(hessian), v, 4)
    found |= {"pair": pair.vectors[:, 0], "long": torch.cat((pair.values, pair.residuals, steps.diagonal[0]))}
    chosen = SETTINGS if probe.n_params < 500 else {key: SETTINGS[key] for key in FEW}
    report = measure(probe, measures={**chosen, "relative_flatness": {}})
    found["measures"] = {key: estimate.to_dict() for key, estimate in report.items()}
    return found


def work(rank: int, folder: Path) -> None:
    processes = dist.get_world_size()
    for name, dtype in SUBJECTS:
        net, data, units = NETS[name]()
        before = {key: value.clone() for key, value in net.state_dict().items()}
        net = sharded(net, units)
        kind, hooks = type(net), {key: len(m._forward_hooks) for key, m in net.named_modules()}
        probe = Probe(net, share(data, rank, processes), dtype=dtype)
        found = numbers(probe) | {"held": probe.vectors.held}
        assert type(net) is kind, "the user's model stays sharded"
        assert hooks == {key: len(m._forward_hooks) for key, m in net.named_modules()}
        assert all(torch.equal(value.full_tensor(), before[key]) for key, value in net.state_dict().items())
        torch.save(found, folder / f"{name}-{dtype}-{rank}.pt")


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("ranks")
    run_together(work, folder, request.param)
    return folder, request.param


@pytest.mark.parametrize(("name", "dtype"), SUBJECTS)
def test_shards_give_what_one_process_gives(together: tuple[Path, int], name: str, dtype: torch.dtype) -> None:
    folder, processes = together
    net, data, _ = NETS[name]()
    truth = numbers(Probe(net, data, dtype=dtype))
    ranks = [torch.load(folder / f"{name}-{dtype}-{rank}.pt", weights_only=False) for rank in range(processes)]
    assert sum(stop - start for found in ranks for start, stop in found["held"]) == truth["parameters"]
    allowed = TOLERANCE[dtype]
    for found in ranks:
        assert found["parameters"] == truth["parameters"]
        for key in ("v", "theta", "gradient", "hessian", "ggn", "fisher", "pair"):
            part = torch.cat([truth[key][start:stop] for start, stop in found["held"]])
            assert float((found[key] - part).abs().max()) <= allowed * float(truth[key].abs().max()), key
        for key in ("value", "extreme", "trace", "frobenius", "nodes", "long"):
            ours, theirs = torch.as_tensor(found[key]).double(), torch.as_tensor(truth[key]).double()
            assert float((ours - theirs).abs().max()) <= allowed * float(theirs.abs().max()), key
        for key in set(found["measures"]) - {"relative_flatness"}:
            one, two = (Estimate.from_dict(each["measures"][key]) for each in (truth, found))
            assert one.status.has_value, (key, one)
            assert two.status.has_value, (key, two)
            assert two.value == pytest.approx(one.value, rel=10 * allowed), key
            if one.data_stderr is not None and two.data_stderr is not None:
                assert two.data_stderr == pytest.approx(one.data_stderr, rel=0.05), key
        refused = Estimate.from_dict(found["measures"]["relative_flatness"])
        assert refused.status.value == "not applicable"
        assert "not sharded" in refused.reason


# Data in batches of its own on every process, budgets, and what goes wrong in one of them.


def uneven(rank: int, folder: Path) -> None:
    """Ragged batches, more of them on one process than on the other, which are read again on every pass."""
    net, _, units = mlp()
    generator = torch.Generator().manual_seed(1)
    sizes = [(3, 1, 4, 2, 1), (5,)][rank]
    everything = [(torch.randint(0, 9, (n, 3), generator=generator), torch.arange(n) % 3) for n in (3, 1, 4, 2, 1, 5)]
    batches = everything[:5] if rank == 0 else everything[5:]
    assert [len(y) for _, y in batches] == list(sizes)
    few = {key: SETTINGS[key] for key in (*FEW, "hessian_trace")}
    report = measure(sharded(net, units), batches, few, dtype=torch.float64)
    limited = measure(
        sharded(*mlp()[::2]), batches, ["hessian_top_eigenvalue", "hessian_spectrum", "loss"], passes=30.0
    )
    timed = measure(sharded(*mlp()[::2]), batches, ["hessian_trace", "hessian_spectrum", "loss"], seconds=0.5 + rank)
    watched = measure(sharded(*mlp()[::2]), batches, ["gradient_norm", "l2_norm"], watch=rank == 0)
    found = [{k: e.to_dict() for k, e in r.items()} for r in (report, limited, timed, watched)]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.save(everything, folder / "data.pt")


def test_every_process_has_batches_of_its_own(tmp_path: Path) -> None:
    run_together(uneven, tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    batches = torch.load(tmp_path / "data.pt")
    few = {key: SETTINGS[key] for key in (*FEW, "hessian_trace")}
    alone = measure(mlp()[0], batches, few, dtype=torch.float64)
    for whole, limited, timed, watched in ranks:
        for key in few:
            assert Estimate.from_dict(whole[key]).value == pytest.approx(alone[key].value, rel=1e-9), key
        assert {Estimate.from_dict(e).status.value for e in limited.values()} & {
            "budget spent",
            "skipped",
            "lower bound",
        }
        assert timed.keys() == {"hessian_trace", "hessian_spectrum", "loss"}
        assert Estimate.from_dict(watched["l2_norm"]).status.has_value
    for first, second in zip(*ranks, strict=True):
        for key in first:
            assert first[key]["value"] == second[key]["value"], key
            assert first[key]["status"] == second[key]["status"], key


def failing(rank: int, folder: Path) -> None:
    """The data of one process is refused; then one that all look at together."""
    net, data, units = mlp()
    net, (x, y), said = sharded(net, units), data, []
    for given in ((x[:0], y[:0]) if rank else data, (x, torch.where(torch.arange(ROWS) == 13, 3 * rank, y))):
        try:
            Probe(net, given)
        except errors.LandscopeError as error:
            said.append(f"{type(error).__name__}: {error}")
    (folder / f"{rank}.json").write_text(json.dumps(said))


def test_what_one_process_refuses_all_refuse(tmp_path: Path) -> None:
    run_together(failing, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert "another process" in first[0]
    assert second[0].startswith("EmptyDataError")
    assert first[1].startswith("LabelRangeError")
    assert first[1] == second[1]


def failing_within(rank: int, folder: Path) -> None:
    """A row that no check looks at fails in the middle of a pass of one process: the others wait for its next layer."""
    distributed.PATIENCE = 2.0
    net, _, units = mlp()
    x = torch.randint(0, 9, (200, 3), generator=torch.Generator().manual_seed(1))
    x[150, 1] = 9 if rank == 1 else 0
    measure(sharded(net, units), (x, torch.arange(200) % 3), ["gradient_norm", "l2_norm"])


def test_a_process_that_fails_within_a_pass_ends_the_others(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(Exception, match="lost each other"):
        run_together(failing_within, tmp_path)
    assert time.monotonic() - start < 50


def killed(rank: int, folder: Path) -> None:
    net, data, units = mlp()
    probe = Probe(sharded(net, units), data)
    (folder / f"{rank}.started").touch()
    products = 0
    while True:
        if rank == 1 and products == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            Hessian(probe) @ probe.vector()
        except errors.LostProcessError as error:
            (folder / f"{rank}.txt").write_text(str(error))
            raise
        products += 1


def test_a_process_that_is_killed_ends_the_others_with_an_error(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(Exception, match="SIGKILL|lost each other"):
        run_together(killed, tmp_path)
    assert time.monotonic() - start < 50


# What a process holds.


class Held(TorchDispatchMode):
    """The bytes of all tensors that exist at once, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()).data_ptr() not in self.known:
                at, size = storage.data_ptr(), storage.nbytes()
                self.known[at] = size
                self.now += size
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.gone, at)
        return found

    def gone(self, at: int) -> None:
        self.now -= self.known.pop(at, 0)


def deep() -> tuple[nn.Module, list[nn.Module]]:
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(96, 96), nn.Tanh())), nn.Linear(96, 2))
    return net, [layer for layer in net if isinstance(layer, nn.Linear)]


def weigh(rank: int, folder: Path) -> None:
    net, units = deep()
    x = torch.randn(4, 96, generator=torch.Generator().manual_seed(rank))
    probe = Probe(sharded(net, units), (x, torch.arange(4) % 2))
    (folder / f"{rank}.json").write_text(json.dumps(weighed(probe)))


def weighed(probe: Probe) -> list[float]:
    """What a product with the Hessian and one with GGN hold at most, in vectors of all parameters."""
    most = []
    for operator in (Hessian(probe), GGN(probe)):
        operator @ probe.vector()
        with Held() as held:
            operator @ probe.vector()
        most.append(held.most / (4 * probe.n_params))
    return most


def test_what_a_process_holds_falls_with_their_number(tmp_path: Path) -> None:
    net, _ = deep()
    most = {1: weighed(Probe(net, (torch.randn(4, 96), torch.arange(4) % 2)))}
    for processes in (2, 4):
        folder = tmp_path / str(processes)
        folder.mkdir()
        run_together(weigh, folder, processes)
        found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]
        most[processes] = [max(each) for each in zip(*found, strict=True)]
    hessian, ggn = ({processes: each[i] for processes, each in most.items()} for i in (0, 1))
    assert hessian[1] > 3, most  # the leaves, the gradient, the product
    # A backward pass through a backward pass collects one vector of whole gradients, which does not fall.
    assert hessian[2] - 1 < 0.7 * (hessian[1] - 1), most
    assert hessian[4] - 1 < 0.7 * (hessian[2] - 1), most
    assert ggn[2] < 0.7 * ggn[1], most
    assert ggn[4] < 0.7 * ggn[2], most
