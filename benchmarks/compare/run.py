"""Runs cases: every tool in a process of its own, all on the same network, taking turns.

A machine that is busy with something else slows a tool down for a while; with turns of seconds it slows all tools alike, so the
ratios of a run mean something where the times do not. A tool that fails, is not installed or takes longer than the limit is
reported as such, and the others continue.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .environment import PEERS, Environment, prepare
from .networks import Size, load
from .rows import Case, Row, find

ROOT = Path(__file__).parents[2]
ENOUGH = 60.0
"""Seconds of one round of all tools after which a case is not repeated."""
REFERENCE = 3
"""How many times as long as an answer a reference may take."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked for."""

    size: Size = "cpu"
    rows: tuple[str, ...] = ()
    against: tuple[str, ...] = tuple(PEERS)
    networks: tuple[str, ...] = ()
    rounds: int = 3
    threads: int = 2
    limit: float = 300.0
    """Seconds that one tool may take for one answer."""
    wheels: Path | None = None
    note: str = ""
    """What a reader should know about this run."""
    folder: Path = ROOT / ".bench"
    """Where the peers, the trained networks and the truths are kept."""

    @property
    def command(self) -> str:
        """What to type for the same run."""
        words = [f"landscope bench --size {self.size}"]
        words += [f"--rows {row}" for row in self.rows] + [f"--networks {name}" for name in self.networks]
        if self.against != tuple(PEERS):
            words += [f"--against {name}" for name in self.against or ["none"]]
        return " ".join([*words, f"--rounds {self.rounds} --threads {self.threads} --limit {self.limit:g}"])

    @property
    def device(self) -> str:
        """Where the work is done."""
        return "cuda" if self.size == "gpu" else "cpu"


@dataclass
class ToolResult:
    """What one tool did."""

    tool: str
    version: str = ""
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: int = 0
    set_up: float = 0.0
    value: float | None = None
    """The number, or the size of a vector of them."""
    claimed: float | None = None
    error: float | None = None
    note: str = ""
    failed: str = ""


@dataclass
class CaseResult:
    """What all tools did."""

    row: str
    title: str
    label: str
    parameters: int
    samples: int
    batch: int
    """Samples at once, of the peers; Landscope chooses by itself."""
    settings: dict[str, float]
    at: float | None
    truth: str
    """How it was found."""
    tools: list[ToolResult]


def run(
    options: Options,
    say: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
    kept: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Run all chosen rows; plain data for JSON and for the page. `keep` is given each case as soon as it is done.

    Of `kept` cases, those that the same command has run at the same commit are not run again.
    """
    rows = find(options.rows)
    if unknown := [name for name in options.against if name not in PEERS]:
        raise ValueError(f"unknown tool {unknown[0]!r}; tools: {', '.join(PEERS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--size gpu needs a GPU that torch can use; --size cpu runs without one")
    options.folder.mkdir(parents=True, exist_ok=True)
    used = [name for name in options.against if any(name in row.tools for row in rows)]
    environment = prepare(used, options.folder, ROOT, options.wheels, say)
    for name, why in environment.missing.items():
        say(f"{name} is left out: {why}")
    about = _machine(options)
    same = {key: about[key] for key in ("command", "landscope", "torch", "processor", "gpu")}
    done = {(one["row"], one["label"]) for one in kept if same.items() <= one["run"].items()}
    results = []
    for row in rows:
        for case in row.cases(options.size, options.networks):
            if (case.row, case.label) in done:
                continue
            say(f"{case.row}, {case.label}")
            results.append({**asdict(_run_case(row, case, options, environment, say)), "run": about})
            keep({"size": options.size, "cases": results[-1:]})
    return {"size": options.size, "cases": results, "missing": environment.missing}


def _run_case(
    row: Row, case: Case, options: Options, environment: Environment, say: Callable[[str], None]
) -> CaseResult:
    subject = load(case.network, options.folder, options.device)
    names = [name for name in row.tools if name not in PEERS or name in options.against]
    tools = [ToolResult(name, failed=environment.missing.get(name, "")) for name in names]
    how, truth = _truth(row, case, subject.size, options, environment, say)
    answers: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        alive = {tool.tool: Worker(case, tool, options, environment, place) for tool in tools if not tool.failed}
        try:
            for worker in alive.values():
                worker.prepare()
            for _ in range(options.rounds):
                start = time.monotonic()
                for name, worker in alive.items():
                    found = worker.turn()
                    answers.update({} if found is None else {name: found})
                if time.monotonic() - start > ENOUGH:
                    break
        finally:
            for worker in alive.values():
                worker.end()
    if row.truth.best_answer and answers:
        how, truth = "the largest answer of all tools", torch.stack(list(answers.values())).amax(0)
    for tool in tools:
        if (answer := answers.get(tool.tool)) is not None:
            tool.value = float(answer) if answer.numel() == 1 else None
            tool.error = None if truth is None else row.error(answer, truth)
        said = f"failed: {tool.failed}" if tool.failed else f"{statistics.median(tool.wall):.3g} s"
        say(f"    {tool.tool}: {said}" + ("" if tool.error is None else f", off by {tool.error:.1e}"))
    return CaseResult(
        row=row.name,
        title=row.title,
        label=case.label,
        parameters=subject.size,
        samples=case.network.samples,
        batch=case.network.batch,
        settings=dict(case.settings),
        at=case.at,
        truth=how,
        tools=tools,
    )


def _truth(
    row: Row, case: Case, size: int, options: Options, environment: Environment, say: Callable[[str], None]
) -> tuple[str, Tensor | None]:
    """How the truth was found, and what it is. Kept, since it takes longer than what is timed."""
    if row.truth.is_exact(size, case.network.kind):
        found = _reference(row, case, "exact", "by hand", options, environment, say)
        return ("exact, in float64", found) if found is not None else ("not found", None)
    there = [name for name in row.truth.long if name not in PEERS or name in options.against]
    there = [name for name in there if name not in environment.missing][:2]
    found = {name: _reference(row, case, "long", name, options, environment, say) for name in there}
    values = {name: value for name, value in found.items() if value is not None}
    if not values:
        return "none", None
    first, *others = values
    if not others:
        return f"a longer run of {first} alone", values[first]
    apart = row.error(values[others[0]], values[first])
    if apart > row.truth.agree:
        return f"none: longer runs of {first} and {others[0]} differ by {apart:.1e}", None
    return f"longer runs of {first} and {others[0]}, which agree to {apart:.0e}", values[first]


def _reference(
    row: Row, case: Case, kind: str, tool: str, options: Options, environment: Environment, say: Callable[[str], None]
) -> Tensor | None:
    settings = "-".join(f"{key}{value:g}" for key, value in sorted(case.settings.items()) if key != "tol")
    name = (
        f"{row.truth.name}-{case.network.kind}-{case.network.key}-{settings}-{kind}-{tool}-{options.device}-{_source()}"
    )
    kept = options.folder / "truth" / f"{name.replace(' ', '_')}.pt"
    if kept.exists():
        return torch.load(kept, weights_only=True)
    result = ToolResult(tool)
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        worker = Worker(case, result, options, environment, place, kind)
        worker.prepare()
        answer = worker.turn(limit=REFERENCE * options.limit)
        worker.end()
    if answer is None:
        say(f"    no reference by {tool}: {result.failed}")
        return None
    kept.parent.mkdir(exist_ok=True)
    torch.save(answer, kept)
    return answer


@cache
def _source() -> str:
    """Changes with the code that finds truths, so that none is kept longer than what found it."""
    here = Path(__file__).parent
    return hashlib.sha256(b"".join((here / f"{name}.py").read_bytes() for name in ("by_hand", "truth"))).hexdigest()[:8]


class Worker:
    """A tool's process, seen from here. What goes wrong in it is written into the tool's result."""

    def __init__(
        self, case: Case, tool: ToolResult, options: Options, environment: Environment, place: str, truth: str = ""
    ) -> None:
        self._tool, self._limit = tool, options.limit
        peer = tool.tool in PEERS
        path = [str(ROOT), str(ROOT / "src"), *(environment.path if peer else ())]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": str(options.threads)}
        answers = Path(place) / tool.tool.replace(" ", "_")
        answers.mkdir()
        self._log = (answers / "log").open("w+")
        self._process = subprocess.Popen(
            [environment.python if peer else sys.executable, "-m", "benchmarks.compare.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=variables,
            cwd=ROOT,
        )
        about = {
            "row": case.row,
            "tool": tool.tool,
            "network": asdict(case.network),
            "settings": dict(case.settings),
            "truth": truth,
            "warm_up": options.size != "tiny" and not truth,
            "device": options.device,
            "threads": options.threads,
            "folder": str(options.folder),
            "answers": str(answers),
        }
        self._send(json.dumps(about))

    def prepare(self) -> None:
        """Wait until it is ready."""
        message = self._receive(self._limit)
        self._tool.set_up = message.get("ready", 0.0)
        self._tool.version = message.get("version", "")

    def turn(self, limit: float | None = None) -> Tensor | None:
        """One answer, or none if the tool failed now or before."""
        if self._tool.failed:
            return None
        self._send("go")
        message = self._receive(limit or self._limit)
        if self._tool.failed:
            return None
        self._tool.wall.append(message["wall"])
        self._tool.cpu.append(message["cpu"])
        self._tool.memory = max(self._tool.memory, message["memory"])
        self._tool.claimed, self._tool.note = message["claimed"], message["note"]
        return torch.load(message["answer"], weights_only=True)

    def end(self) -> None:
        """Stop it."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _send(self, line: str) -> None:
        with suppress(BrokenPipeError):  # it has ended; what it said last is read next
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _receive(self, limit: float) -> dict[str, Any]:
        ready, _, _ = select.select([self._process.stdout], [], [], limit)
        line = self._process.stdout.readline() if ready else ""
        message = json.loads(line) if line else {}
        if not ready:
            self._tool.failed = f"more than {limit:.0f} s"
            self._process.kill()
        elif not line:
            self._log.seek(0)
            last = (self._log.read().strip().splitlines() or ["it ended without a word"])[-1]
            self._tool.failed = last[:200]
        elif "failed" in message:
            self._tool.failed = message["failed"]
        return message


def _machine(options: Options) -> dict[str, Any]:
    """What a reader must know about a run."""
    import platform

    import numpy
    import scipy

    from landscope import __version__

    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        processor = names[0] if names else processor
    return {
        "command": options.command,
        "note": options.note,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processor": f"{processor}, {os.cpu_count()} cores",
        "gpu": torch.cuda.get_device_name() if options.device == "cuda" else "",
        "load": round(os.getloadavg()[0], 1),
        "threads": options.threads,
        "rounds": options.rounds,
        "limit": options.limit,
        "landscope": f"{__version__}, {_commit()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
    }


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return f"commit {done.stdout.strip()}" if done.returncode == 0 else "commit unknown"
