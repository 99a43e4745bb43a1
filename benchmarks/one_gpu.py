"""What one GPU takes for a language model of GPT-2's size and for ResNet-18: time, memory and error of each answer.

    python benchmarks/one_gpu.py                              # on a GPU; about four minutes
    python benchmarks/one_gpu.py --size tiny --device cpu     # does it run here?
    python benchmarks/one_gpu.py --wheels FOLDER              # PyHessian and hessian-eigenthings beside it, from wheels

The GPT-2 (random weights, then a short training on the sources of Python's standard library, words hashed into the
vocabulary) is measured on 16 sequences of 512 tokens at the loss that it computes itself; ResNet-18 as in `landscope
bench --size gpu`. The clock runs from the model and its data to the number, checks included. Memory is the peak of
torch's allocations above model and data. One run of each, in float32 without TF32 except where Landscope takes TF32 by
itself and certifies its result.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import sysconfig
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import landscope as ls

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare import ours, peers
from benchmarks.compare.networks import NETWORKS, Subject, load

Row = dict[str, Any]


class Table:
    """Rows that are printed and written as soon as they are known, so that a run that is stopped keeps what it has."""

    def __init__(self, path: Path | None, device: str, seconds: float) -> None:
        self.rows: list[Row] = []
        self._path, self._device, self._end = path, device, time.monotonic() + seconds

    def timed(self, what: str, work: Callable[[], object]) -> Any:
        """Do it; its time and peak memory make a row. Nothing is begun after the end."""
        if time.monotonic() > self._end:
            return self._add({"what": what, "note": "not begun: the time was over"})
        self._wait()
        before = self._memory(reset=True)
        start = time.perf_counter()
        try:
            found = work()
        except Exception as error:  # the next row may still work
            return self._add({"what": what, "note": f"{type(error).__name__}: {str(error)[:300]}"})
        self._wait()
        row = {"what": what, "seconds": round(time.perf_counter() - start, 3), "GiB": self._memory() - before}
        self._add({**row, "GiB": round(row["GiB"] / 2**30, 2), **_said(found)})
        return found

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(" | ".join(f"{value}" for value in row.values()), flush=True)
        if self._path is not None:
            self._path.write_text(json.dumps({"machine": machine(self._device), "rows": self.rows}, indent=1))

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def _memory(self, *, reset: bool = False) -> int:
        if self._device != "cuda":
            return 0
        if reset:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()


def machine(device: str) -> Mapping[str, str]:
    """What a reader must know about a run."""
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d", time.gmtime())}


def _said(found: object) -> Row:
    if isinstance(found, ls.Estimate):
        bar = None if found.stderr is None else float(f"{found.stderr:.3g}")
        return {
            "value": float(f"{found.value:.6g}"),
            "stderr": bar,
            "status": str(found.status),
            "reason": found.reason,
        }
    return {"note": found} if isinstance(found, str) else {}


def words(vocabulary: int, rows: int, length: int) -> torch.Tensor:
    """Rows of tokens: the words and signs of the standard library's sources, hashed into the vocabulary."""
    found: list[int] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        parts = re.findall(r"\w+|[^\w\s]|\n *", path.read_text("utf-8", errors="ignore"))
        found += [zlib.crc32(part.encode()) % vocabulary for part in parts]
        if len(found) >= rows * length:
            break
    return torch.tensor(found[: len(found) // length * length]).view(-1, length)


def language_model(size: str, device: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A GPT-2 after a short training, and 16 of its rows."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = size == "tiny"
    shape = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 500} if tiny else {}
    length, batch, steps = (32, 4, 5) if tiny else (512, 16, 300)
    torch.manual_seed(0)
    config = GPT2Config(**shape, n_positions=length, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    model = GPT2LMHeadModel(config).to(device)
    tokens = words(config.vocab_size, batch * steps, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    rng = torch.Generator().manual_seed(0)
    order = torch.randperm(len(tokens), generator=rng)
    for step in range(steps):
        rows = tokens[order[torch.arange(step * batch, (step + 1) * batch) % len(order)]].to(device)
        with torch.autocast(device, torch.bfloat16):
            loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rows = tokens[order[:16]].to(device)
    return model.eval(), {"input_ids": rows, "labels": rows}


def measure_language_model(table: Table, size: str, device: str) -> None:
    """Products, λ₁, traces, and the head's relative flatness."""
    made = table.timed("GPT-2: training", lambda: language_model(size, device))
    if made is None:
        return
    model, data = made
    _time_products(table, model, data, device)
    wanted: dict[str, dict[str, object]] = {
        "hessian_top_eigenvalue": {"tol": 1e-2},
        "hessian_trace": {"tol": 2e-2},
        "relative_flatness": {},
        "ggn_trace": {"tol": 2e-2},
        "ggn_top_eigenvalue": {"tol": 1e-2},
    }
    for name, settings in wanted.items():
        table.timed(f"GPT-2: {name} {settings}", lambda n=name, s=settings: ls.measure(model, data, {n: s})[n])
    table.timed("GPT-2: density, 64 steps × 1", lambda: _density(model, data))
    _measure_with_eigenthings(table, model, data)


def _density(model: torch.nn.Module, data: Mapping[str, torch.Tensor]) -> str:
    return repr(ls.spectrum(ls.Hessian(ls.Probe(model, data)), steps=64, probes=1))


def _measure_with_eigenthings(table: Table, model: torch.nn.Module, data: Mapping[str, torch.Tensor]) -> None:
    """The same by hessian-eigenthings, in batches of four, with attention that can be differentiated twice."""
    try:
        import hessian_eigenthings as peer
    except ModuleNotFoundError:
        return
    batches = [{name: rows[i : i + 4] for name, rows in data.items()} for i in range(0, len(data["labels"]), 4)]
    hessian = peer.HessianOperator(model, batches, peer.hf_lm_loss())
    ggn = peer.GGNOperator(model, batches, peer.hf_lm_forward(), peer.hf_lm_loss_of_output())
    vector = torch.randn(hessian.size, device=hessian.device)

    def trace(operator: Any) -> str:
        found = peer.trace(operator, num_matvecs=8, method="hutchinson", seed=0)
        return f"{float(found.estimate):.6g} ± {float(found.stderr):.2g} from 8 products"

    def top() -> str:
        found = peer.lanczos(hessian, k=1, max_iter=10, which="LA", seed=0)
        return f"{float(found.eigenvalues[0]):.6g}, residual {float(found.residuals[0]):.2g}, 10 products"

    works: dict[str, Callable[[], object]] = {
        "Hessian product, the first": lambda: hessian.matvec(vector) is None,
        "Hessian product": lambda: hessian.matvec(vector) is None,
        "GGN product": lambda: ggn.matvec(vector) is None,
        "λ₁": top,
        "trace": lambda: trace(hessian),
    }
    with sdpa_kernel(SDPBackend.MATH):
        for name, work in works.items():
            table.timed(f"GPT-2: hessian-eigenthings, {name}", work)


def _time_products(table: Table, model: torch.nn.Module, data: Mapping[str, torch.Tensor], device: str) -> None:
    probe = table.timed("GPT-2: probe and its checks", lambda: ls.Probe(model, data))
    if probe is None:
        return
    table.timed("GPT-2: gradient, the first", probe.gradient)
    table.timed("GPT-2: gradient", probe.gradient)
    hessian, ggn = ls.Hessian(probe), ls.GGN(probe)
    vector = torch.randn(hessian.shape[0], device=device, generator=torch.Generator(device).manual_seed(0))
    product = table.timed("GPT-2: Hessian product, the first", lambda: hessian @ vector)
    table.timed("GPT-2: Hessian product", lambda: hessian @ vector)
    table.timed("GPT-2: GGN product, the first", lambda: ggn @ vector)
    table.timed("GPT-2: GGN product", lambda: ggn @ vector)
    made = table.timed("GPT-2: difference quotients, made", lambda: ls.Hessian(probe, method="difference"))
    if made is None or product is None:
        return

    def difference() -> str:
        found = made @ vector
        return f"{float((found - product).norm() / product.norm()):.1e} from the exact one"

    table.timed("GPT-2: difference quotient, the first", difference)
    table.timed("GPT-2: difference quotient", difference)


def measure_residual_network(table: Table, size: str, device: str, folder: Path) -> None:
    """λ₁ and the trace beside PyHessian, and everything at once."""
    network = NETWORKS["tiny"]["mlp"] if size == "tiny" else NETWORKS["gpu"]["resnet18"]
    subject: Subject | None = table.timed("ResNet-18: training", lambda: load(network, folder, device))
    if subject is None:
        return
    data = (subject.x, subject.y)
    for name, tol in (("hessian_top_eigenvalue", 1e-3), ("hessian_trace", 2e-2)):
        settings: dict[str, object] = {"tol": tol}
        table.timed(
            f"ResNet-18: {name} {settings}", lambda n=name, s=settings: ls.measure(subject.model, data, {n: s})[n]
        )
    table.timed("ResNet-18: core set within 10 s", lambda: _counts(subject, seconds=10))
    table.timed("ResNet-18: all measures within 10 s", lambda: _counts(subject, measures="all", seconds=10))
    for name, tool in (
        ("λ₁ to 1e-3", lambda: peers.pyhessian_top_eigenvalue(subject, tol=1e-3)()),
        ("trace to 2 %", lambda: peers.pyhessian_trace(subject, tol=2e-2)()),
    ):
        table.timed(f"ResNet-18: PyHessian, {name}", lambda t=tool: f"{float(t().value):.6g}")
    table.timed("ResNet-18: λ₁ to 1e-4", lambda: f"{float(ours.top_eigenvalue(subject, tol=1e-4)().value):.6g}")
    table.timed("ResNet-18: core set to the end", lambda: _counts(subject))


def _counts(subject: Subject, **options: Any) -> str:
    report = ls.measure(subject.model, (subject.x, subject.y), **options)
    ended = [str(estimate.status) for estimate in report.values()]
    return ", ".join(f"{ended.count(status)} {status}" for status in dict.fromkeys(ended))


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "full"), default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=600, help="begin nothing after this long")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels with the other tools")
    parser.add_argument("--into", type=Path, help="a file for the rows, as JSON")
    parser.add_argument("--folder", type=Path, default=Path(".bench"), help="where trained networks are kept")
    options = parser.parse_args()
    if options.wheels is not None:
        sys.path += [str(wheel) for wheel in options.wheels.glob("*.whl")]
    torch.backends.cudnn.allow_tf32 = False
    table = Table(options.into, options.device, options.seconds)
    measure_language_model(table, options.size, options.device)
    measure_residual_network(table, options.size, options.device, options.folder)


if __name__ == "__main__":
    main()
