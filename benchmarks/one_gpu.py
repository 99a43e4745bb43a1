"""What one GPU takes for language models of 0.1 to 7 billion parameters and for ResNet-18: time, memory and error of each answer.

    python benchmarks/one_gpu.py                              # on a GPU; about fifteen minutes
    python benchmarks/one_gpu.py --only gpt2 resnet18         # some of the subjects; --help names them all
    python benchmarks/one_gpu.py --size tiny --device cpu     # does it run here?
    python benchmarks/one_gpu.py --wheels FOLDER              # PyHessian and hessian-eigenthings beside it, from wheels
    python benchmarks/one_gpu.py --only llama-7b-bf16 --seconds 110 --row-seconds 40 --into rows.json    # 6.7 billion parameters:
                                                              # λ₁ and trace in two minutes; again, for what a first run left out

The language models (random weights, then a short training on the sources of Python's standard library, words hashed into
the vocabulary) are measured at the loss that they compute themselves, GPT-2 on 16 sequences of 512 tokens; ResNet-18 as in
`landscope bench --size gpu`, on 2,000 and (`resnet18-50k`) on 50,000 images of CIFAR's shape. The clock runs from the model and
its data to the number, checks included. Memory is the peak of torch's allocations above model and data; passes are counted in
gradients over all rows, of which a product takes three. One run of each, in float32 without TF32 except where Landscope takes
TF32 by itself and certifies its result. A row that takes longer than `--row-seconds` ends with what is known by then; a row that
fails says why, and the next one begins.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
import sysconfig
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import landscope as ls
from landscope.curvature.differences import difference_quotient

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare import ours, peers
from benchmarks.compare.networks import NETWORKS, Subject, load

Row = dict[str, Any]


class Table:
    """Rows that are printed and written as soon as they are known, so that a run that is stopped keeps what it has.

    The rows of a file of this machine stay: another run makes those that it lacks, and those that came to nothing.
    """

    def __init__(self, path: Path | None, device: str, seconds: float) -> None:
        self.rows: list[Row] = []
        self._path, self._device, self._end = path, device, time.monotonic() + seconds
        if path is not None and path.exists():
            held = json.loads(path.read_text())
            if held["machine"]["device"] == machine(device)["device"]:
                self.rows = [row for row in held["rows"] if "seconds" in row]

    def has(self, what: str) -> bool:
        """Whether a row of an earlier run has a value."""
        return any(row["what"] == what and row.get("status") not in ("failed", "skipped") for row in self.rows)

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
        self.rows = [held for held in self.rows if held["what"] != row["what"]]
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
            gc.collect()
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
        products = found.details.get("matvecs")
        return {
            "value": float(f"{found.value:.6g}"),
            "stderr": bar,
            "status": str(found.status),
            "cost": f"{found.cost.passes:.1f} passes" + (f", {products} products" if products is not None else ""),
            "reason": found.reason,
        }
    return {"note": str(found)} if isinstance(found, (str, ls.Probe)) else {}


def words(vocabulary: int, rows: int, length: int) -> torch.Tensor:
    """Rows of tokens: the words and signs of the standard library's sources, hashed into the vocabulary."""
    found: list[int] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        parts = re.findall(r"\w+|[^\w\s]|\n *", path.read_text("utf-8", errors="ignore"))
        found += [zlib.crc32(part.encode()) % vocabulary for part in parts]
        if len(found) >= rows * length:
            break
    return torch.tensor(found[: len(found) // length * length]).view(-1, length)


@dataclass(frozen=True)
class Language:
    """A language model, its training, and the rows that it is measured on."""

    kind: str
    shape: Mapping[str, float]
    rows: int = 16
    length: int = 512
    batch: int = 16
    steps: int = 300
    dtype: torch.dtype = torch.float32
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the probe."""

    def made(self, device: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
        """The model after its training, and the rows."""
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(0)
        config = AutoConfig.for_model(self.kind, **self.shape)
        with torch.device(device):  # drawn there, in the precision that it has
            model = AutoModelForCausalLM.from_config(config, dtype=self.dtype)
        tokens = words(config.vocab_size, max(self.batch * self.steps, self.rows), self.length)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=device == "cuda")
        order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))
        for step in range(self.steps):
            rows = tokens[order[torch.arange(step * self.batch, (step + 1) * self.batch) % len(order)]].to(device)
            with torch.autocast(device, torch.bfloat16):
                loss = model(input_ids=rows, labels=rows).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.zero_grad()
        rows = tokens[order[torch.arange(self.rows) % len(order)]].to(device)
        return model.eval(), {"input_ids": rows, "labels": rows}


NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
GPT2 = {"vocab_size": 50257, "n_positions": 512, **NO_DROPOUT}
LLAMA_1B = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
LLAMA_7B = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
TINY_GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 500, "n_positions": 32, **NO_DROPOUT}
TINY_LLAMA = {
    "vocab_size": 500,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BF16 = torch.bfloat16
NARROW = {"dtype": BF16}  # weights stay so, as they would by themselves where copies in float32 do not fit
LANGUAGES = {
    "full": {
        "gpt2": Language("gpt2", GPT2),
        "gpt2-long": Language("gpt2", GPT2, rows=512),
        "llama-1b": Language("llama", LLAMA_1B, rows=4, length=256, batch=32, steps=150),
        "llama-1b-bf16": Language("llama", LLAMA_1B, rows=4, length=256, batch=32, steps=150, dtype=BF16),
        "llama-7b-bf16": Language("llama", LLAMA_7B, rows=2, length=256, batch=8, steps=40, dtype=BF16, options=NARROW),
    },
    "tiny": {
        "gpt2": Language("gpt2", TINY_GPT2, length=32, batch=4, steps=5),
        "gpt2-long": Language("gpt2", TINY_GPT2, rows=64, length=32, batch=4, steps=5),
        "llama-1b": Language("llama", TINY_LLAMA, rows=4, length=16, batch=4, steps=5),
        "llama-1b-bf16": Language("llama", TINY_LLAMA, rows=4, length=16, batch=4, steps=5, dtype=BF16),
        "llama-7b-bf16": Language("llama", TINY_LLAMA, rows=2, length=16, batch=4, steps=5, dtype=BF16, options=NARROW),
    },
}
Settings = dict[str, object]
WANTED: dict[str, dict[str, Settings]] = {
    "gpt2": {
        "hessian_top_eigenvalue": {"tol": 1e-2},
        "hessian_trace": {"tol": 2e-2},
        "relative_flatness": {},
        "ggn_trace": {"tol": 2e-2},
        "ggn_top_eigenvalue": {"tol": 1e-2},
    },
    "gpt2-long": {"hessian_trace": {"tol": 1e-2}},
    "llama-1b": {"hessian_top_eigenvalue": {"tol": 1e-2}, "hessian_trace": {"tol": 5e-2}},
    "llama-1b-bf16": {"hessian_top_eigenvalue": {"tol": 1e-2}, "hessian_trace": {"tol": 5e-2}},
    "llama-7b-bf16": {"hessian_top_eigenvalue": {"tol": 5e-2}, "hessian_trace": {"tol": 1e-1}},
}
STEPS = {"gpt2": 64, "llama-1b": 32, "llama-1b-bf16": 32}
"""Of the density."""


def measure_language_model(table: Table, name: str, options: argparse.Namespace) -> None:
    """Products, λ₁, traces, density, and of GPT-2 the head's relative flatness; where memory is short λ₁ and trace come first."""
    language = LANGUAGES[options.size][name]
    wanted = {f"{name}: {key} {settings}": (key, settings) for key, settings in WANTED[name].items()}
    made = table.timed(f"{name}: training", lambda: language.made(options.device))
    if made is None:
        return
    model, data = made
    if name != "gpt2-long" and not language.options:
        _time_products(table, name, model, data)
    for what, (key, settings) in wanted.items():

        def measured(key: str = key, settings: Settings = settings) -> ls.Estimate:
            return ls.measure(model, data, {key: settings}, seconds=options.row_seconds, **language.options)[key]

        if not table.has(what):
            table.timed(what, measured)
    if language.options:
        _time_products(table, name, model, data, **language.options)
    if name in STEPS:
        table.timed(f"{name}: density, {STEPS[name]} steps × 1", lambda: _density(model, data, STEPS[name]))
    if name == "gpt2":
        _measure_with_eigenthings(table, model, data)


def _density(model: torch.nn.Module, data: Mapping[str, torch.Tensor], steps: int) -> str:
    return repr(ls.spectrum(ls.Hessian(ls.Probe(model, data)), steps=steps, probes=1))


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
            table.timed(f"gpt2: hessian-eigenthings, {name}", work)


Data = Mapping[str, torch.Tensor] | tuple[torch.Tensor, torch.Tensor]


def _time_products(table: Table, name: str, model: torch.nn.Module, data: Data, **options: Any) -> None:
    probe = table.timed(f"{name}: probe and its checks", lambda: ls.Probe(model, data, **options))
    if probe is None:
        return
    probe = table.timed(f"{name}: probe and its checks, again", lambda: ls.Probe(model, data, **options))
    table.timed(f"{name}: gradient, the first", probe.gradient)
    table.timed(f"{name}: gradient", probe.gradient)
    hessian, ggn = ls.Hessian(probe), ls.GGN(probe)
    rng = torch.Generator(probe.device).manual_seed(0)
    vector = torch.randn(hessian.shape[0], device=probe.device, dtype=hessian.dtype, generator=rng)
    product = table.timed(f"{name}: Hessian product, the first", lambda: hessian @ vector)
    table.timed(f"{name}: Hessian product", lambda: hessian @ vector)
    table.timed(f"{name}: GGN product, the first", lambda: ggn @ vector)
    table.timed(f"{name}: GGN product", lambda: ggn @ vector)
    if not isinstance(data, Mapping):  # a network with kinks has no difference quotients
        return
    made = table.timed(f"{name}: difference quotients, made", lambda: ls.Hessian(probe, method="difference"))
    if made is None or product is None:
        return

    def difference() -> str:
        found = made @ vector
        return f"{float((found - product).norm() / product.norm()):.1e} from the exact one"

    table.timed(f"{name}: difference quotient, its step and certificate", difference)
    step = made.differences.step
    table.timed(
        f"{name}: difference quotient at a known step", lambda: difference_quotient(probe, vector, step) is None
    )


def measure_residual_network(table: Table, name: str, options: argparse.Namespace) -> None:
    """λ₁ and the trace beside PyHessian, and on 2,000 rows everything at once, from its first values to its tolerances."""
    network = NETWORKS["gpu"][name.replace("-", "_")] if options.size == "full" else NETWORKS["tiny"]["mlp"]
    many = name == "resnet18-50k"
    subject: Subject | None = table.timed(f"{name}: training", lambda: load(network, options.folder, options.device))
    if subject is None:
        return
    model, data = subject.model, (subject.x, subject.y)
    _time_products(table, name, model, data)
    table.timed(f"{name}: first looks at λ₁", lambda: _first_looks(subject))
    for key, tol in (("hessian_top_eigenvalue", 1e-3), ("hessian_trace", 1e-2 if many else 2e-2)):
        settings: Settings = {"tol": tol}
        table.timed(f"{name}: {key} {settings}", lambda k=key, s=settings: ls.measure(model, data, {k: s})[k])
    if many:
        return
    for what, tool in (
        ("λ₁ to 1e-3", lambda: peers.pyhessian_top_eigenvalue(subject, tol=1e-3)()),
        ("trace to 2 %", lambda: peers.pyhessian_trace(subject, tol=2e-2)()),
    ):
        table.timed(f"{name}: PyHessian, {what}", lambda t=tool: f"{float(t().value):.6g}")
    table.timed(f"{name}: λ₁ to 1e-4", lambda: f"{float(ours.top_eigenvalue(subject, tol=1e-4)().value):.6g}")
    table.timed(f"{name}: core set within 10 s", lambda: _counts(subject, seconds=10))
    table.timed(f"{name}: all measures within 10 s", lambda: _counts(subject, measures="all", seconds=10))
    table.timed(f"{name}: all measures to their tolerances, densities of 64 × 1", lambda: _everything(subject))


def _first_looks(subject: Subject) -> str:
    """After how many seconds λ₁ has a bound, and a bracket, on the way to 1e-3."""
    seen: dict[str, str] = {}
    wanted = {"hessian_top_eigenvalue": {"tol": 1e-3}}
    start = time.perf_counter()
    for report in ls.progressive(subject.model, (subject.x, subject.y), wanted):
        found = report["hessian_top_eigenvalue"]
        kind = "" if not found.status.has_value else "bound" if found.status.is_bound else str(found.status)
        if kind:
            seen.setdefault(kind, f"{kind} after {time.perf_counter() - start:.2f} s: {found}")
    return "; ".join(seen.values())


def _everything(subject: Subject) -> str:
    """When each measure has its first value, when it ends, and how."""
    wanted = {name: {"probes": 1} if name.endswith("_spectrum") else {} for name in sorted(ls.MEASURES)}
    first: dict[str, float] = {}
    start = time.perf_counter()
    for report in ls.progressive(subject.model, (subject.x, subject.y), wanted):
        for name, found in report.items():
            if found.status.has_value:
                first.setdefault(name, time.perf_counter() - start)
    last = max(first, key=first.__getitem__)
    dearest = sorted(report, key=lambda name: report[name].cost.seconds, reverse=True)[:8]
    costs = ", ".join(f"{name} {report[name].cost.seconds:.1f} s" for name in dearest)
    return f"first values within {first[last]:.1f} s, the last of {last}; {_ended(report)}; dearest: {costs}"


def _counts(subject: Subject, **options: Any) -> str:
    return _ended(ls.measure(subject.model, (subject.x, subject.y), **options))


def _ended(report: ls.Report) -> str:
    """How many measures ended how, and which without a value."""
    ended = [str(estimate.status) for estimate in report.values()]
    without = [f"{name} ({found.reason[:80]})" for name, found in report.items() if not found.status.has_value]
    counts = ", ".join(f"{ended.count(status)} {status}" for status in dict.fromkeys(ended))
    return counts + (f"; without a value: {', '.join(without)}" if without else "")


def main() -> None:
    """Subject after subject."""
    subjects = [*LANGUAGES["full"], "resnet18", "resnet18-50k"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "full"), default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--only", nargs="+", choices=subjects, default=subjects, metavar="SUBJECT", help=", ".join(subjects)
    )
    parser.add_argument("--seconds", type=float, default=1200, help="begin nothing after this long")
    parser.add_argument("--row-seconds", type=float, default=120, help="the budget of a measure of a language model")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels with the other tools")
    parser.add_argument("--into", type=Path, help="a file for the rows, as JSON")
    parser.add_argument("--folder", type=Path, default=Path(".bench"), help="where trained networks are kept")
    options = parser.parse_args()
    if options.wheels is not None:
        sys.path += [str(wheel) for wheel in options.wheels.glob("*.whl")]
    torch.backends.cudnn.allow_tf32 = False
    table = Table(options.into, options.device, options.seconds)
    for name in options.only:
        if name.startswith("resnet18"):
            measure_residual_network(table, name, options)
        else:
            measure_language_model(table, name, options)


if __name__ == "__main__":
    main()
