"""What is kept of a comparison: numbers in `measured/SIZE.json`, tables in `README.md`, five lines in the repository's README.

A run replaces the cases that it ran and keeps the others, each with the date, hardware and versions of its own run: ratios hold
within a case, whose tools took turns.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .environment import LEFT_OUT, NEEDED, PEERS
from .peers import PATCHES
from .rows import ROWS

Data = Mapping[str, Any]

SIZES = {"gpu": "On a GPU", "cpu": "On CPU cores", "tiny": "Tiny (a test of the harness, not a measurement)"}
MARKERS = ("<!-- landscope bench: begin -->", "<!-- landscope bench: end -->")
NO_WALL = "–"

HEAD = """\
# Benchmarks

Landscope against the tools that people would use instead. This page is written by the command; do not edit it.

    make bench                                          # everything, on CPU cores; makes the peers' environment
    make bench BENCH="--size gpu"                       # on a GPU
    landscope bench --list                              # rows and tools
    landscope bench --rows trace_2e-2 --against pyhessian --networks resnet20
    landscope bench --size gpu --wheels FOLDER          # peers from wheels, where nothing can be installed
    landscope bench --into FOLDER --resume              # numbers and page elsewhere; resumes where it was stopped
    python -m benchmarks.compare.page FOLDER            # takes the numbers of such a folder into this page

How to read it:

- All tools of a table have the same weights, samples, threads and asked-for accuracy. Each runs in a process of its own,
  and they take turns in one run. Times are medians over the turns, with the range. **Ratios within a table mean something;
  seconds depend on the machine.**
- The clock runs from the model and its data to the number, checks included; of a product, from the second one on. Imports
  do not count. `CPU s` is processor time of all threads: where others share the machine it is the better measure, and
  `× ours` is taken from it (on a GPU from wall time).
- Peers are given the data in the batches named in the table; Landscope is given all of it and chooses its own pieces. Small
  batches cost a small network time, so look at that number before you believe a ratio.
- Memory is the peak above what network, data and libraries take; on a GPU the peak of torch's allocations. What fits into
  memory that the process already held shows as 0.
- **`off by` is the error of the answer**, relative to the truth named below the table. `states` is the error that the tool
  itself gives, where it gives one. A fast wrong answer is not a fast answer. Of a random method it is one
  draw: every turn has the same seed.
- Everything is in float32. TF32, torch's default for convolutions on a GPU, is off for all tools.
- `by hand` is what a script with torch alone would do.
- The truth is exact where that is affordable: computed in float64 by plain torch, without Landscope. Elsewhere two tools
  were run to a tighter accuracy and had to agree. Of a worst case, it is the largest answer of all tools.
- A run that was stopped keeps the rows that it had finished. On a busy machine use `--threads 1`: two threads that wait for
  each other's core cost several times as much.
- Networks are trained for a few epochs on data made from a seed (`benchmarks/compare/networks.py`).
"""


def write(found: Data, folder: Path, readme: Path | None = None) -> list[Path]:
    """Keep the numbers and write the pages; the files that were written."""
    store = folder / "measured" / f"{found['size']}.json"
    store.parent.mkdir(parents=True, exist_ok=True)
    kept = stored(folder, found["size"])
    fresh = {(case["row"], case["label"]): case for case in found["cases"]}
    order = [row.name for row in ROWS]
    cases = [case for case in kept if (case["row"], case["label"]) not in fresh] + list(fresh.values())
    cases.sort(key=lambda case: order.index(case["row"]) if case["row"] in order else len(order))
    store.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    written = [store, folder / "README.md"]
    sizes = {size: there for size in SIZES if (there := stored(folder, size))}
    written[1].write_text(page(sizes, folder), encoding="utf-8")
    if readme is not None and "tiny" not in found["size"]:
        text = readme.read_text(encoding="utf-8")
        readme.write_text(between_markers(text, headlines(sizes)), encoding="utf-8")
        written.append(readme)
    return written


def stored(folder: Path, size: str) -> list[Data]:
    """The cases that a folder has."""
    path = folder / "measured" / f"{size}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def between_markers(text: str, lines: Sequence[str]) -> str:
    r"""The text with what stands between the markers replaced.

    >>> between_markers(f"a\n{MARKERS[0]}\nold\n{MARKERS[1]}\nb", ["new"]).splitlines()[2]
    'new'
    """
    before, begin, rest = text.partition(MARKERS[0])
    _, end, after = rest.partition(MARKERS[1])
    if not (begin and end):
        raise ValueError(
            f"the README has no place for the benchmarks: put {MARKERS[0]} and {MARKERS[1]} on two lines of it"
        )
    return before + "\n".join([MARKERS[0], *lines, MARKERS[1]]) + after


def page(sizes: Mapping[str, Sequence[Data]], folder: Path) -> str:
    """The whole of `benchmarks/README.md`."""
    return (
        "\n".join([HEAD, *_notes(), *_scripts(folder), *(line for s, c in sizes.items() for line in _size(s, c))])
        + "\n"
    )


def _notes() -> Iterator[str]:
    yield "## The tools"
    yield ""
    yield "Installed from PyPI without their dependencies, after torch in the version that Landscope runs with: "
    yield ", ".join(f"`{requirement}`" for _, requirement in PEERS.values()) + "."
    yield f"Left out: {LEFT_OUT}."
    yield "For a machine that installs nothing, on one that does:"
    yield ""
    yield f"    pip download --no-deps --dest FOLDER {' '.join(requirement for _, requirement in PEERS.values())} \\"
    yield f"        {' '.join(NEEDED)}"
    yield ""
    for name, text in PATCHES.items():
        yield f"- {name}: {text}."
    yield "- A tool without a rule for an accuracy is given its user's loop: blocks of products until the standard error is small"
    yield "  enough, a longer Lanczos run until the tool calls it converged (`benchmarks/compare/peers.py` has every call)."
    yield ""


def _scripts(folder: Path) -> Iterator[str]:
    found = [*folder.glob("*.py"), *(path for path in folder.glob("*/run.py") if path.parent != Path(__file__).parent)]
    scripts = sorted(path for path in found if path.read_text(encoding="utf-8").startswith('"""'))
    if scripts:
        yield "## Other questions, one script each"
        yield ""
        for path in scripts:
            first = path.read_text(encoding="utf-8")[3:].partition("\n")[0].rstrip(".").removesuffix('"""')
            yield f"- `{path.relative_to(folder)}`: {first[0].lower() + first[1:]}"
        yield ""


def _size(size: str, cases: Sequence[Data]) -> Iterator[str]:
    runs = []
    for case in cases:
        if case["run"] not in runs:
            runs.append(case["run"])
    yield f"## {SIZES[size]}"
    yield ""
    for number, run in enumerate(runs, 1):
        where = run["gpu"] or f"{run['processor']}, threads of each tool: {run['threads']}"
        yield (
            f"{number}. `{run['command']}`, {run['date']}; {where}; load {run['load']} at the start"
            f"{'' if run['load'] < 1 else ', so other work shared the machine'}; Landscope "
            f"{run['landscope']}, Python {run['python']}, torch {run['torch']}, NumPy {run['numpy']}, SciPy {run['scipy']}."
            + (f" {run['note']}" if run["note"] else "")
        )
    yield ""
    for name in dict.fromkeys(case["row"] for case in cases):
        mine = [case for case in cases if case["row"] == name]
        yield f"### {mine[0]['title']}"
        yield ""
        yield from _growth(mine, size) if mine[0]["at"] is not None else _table(mine, size)
        yield ""
        numbers = sorted({runs.index(case["run"]) + 1 for case in mine})
        truths = dict.fromkeys(f"{case['label']}: {case['truth']}" for case in mine)
        same = len({case["truth"] for case in mine}) == 1
        words = mine[0]["truth"] if same else "; ".join(truths)
        yield f"Truth: {words}. `{name}`, run {', '.join(str(number) for number in numbers)}."
        yield ""


def _table(cases: Sequence[Data], size: str) -> Iterator[str]:
    yield "| network | tool | seconds | CPU s | × ours | memory | answer | off by | states | |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|---|"
    for case in cases:
        about = f"{case['label']}, {case['parameters']:,} parameters, {case['samples']:,} samples"
        about += f" (peers: {case['batch']:,} at once)"
        for tool in case["tools"]:
            yield f"| {about} | {_cells(tool, case['tools'][0], size)} |"
            about = ""


def _cells(tool: Data, first: Data, size: str) -> str:
    name = f"{tool['tool']} {tool['version']}".strip()
    if not tool["wall"]:
        return f"{name} | {NO_WALL} | | | | | | | {tool['failed']}"
    memory = f"{tool['memory'] / 2**20:,.0f} MiB"
    spread = (
        f" ({min(tool['wall']):.2g}–{max(tool['wall']):.2g}, n = {len(tool['wall'])})" if len(tool["wall"]) > 1 else ""
    )
    note = f"{tool['note']}; then failed: {tool['failed']}" if tool["failed"] else tool["note"]
    cells = [
        name,
        f"{_number(statistics.median(tool['wall']))}{spread}",
        _number(statistics.median(tool["cpu"])),
        _number(ratio(tool, first, size)),
        memory,
        _number(tool["value"], 5),
        _share(tool["error"]),
        _share(tool["claimed"]),
        note,
    ]
    return " | ".join(cells)


def summary(tool: Data, first: Data, size: str) -> list[str]:
    """Seconds, processor seconds, ratio, MiB, error and note, for a terminal."""
    if not tool["wall"]:
        return ["", "", "", "", "", tool["failed"]]
    times = [statistics.median(tool["wall"]), statistics.median(tool["cpu"]), ratio(tool, first, size)]
    return [*(_number(time) for time in times), f"{tool['memory'] / 2**20:,.0f}", _share(tool["error"]), tool["note"]]


def _growth(cases: Sequence[Data], size: str) -> Iterator[str]:
    """Seconds at every point, and the exponent of the growth between the last two."""
    yield "| tool | " + " | ".join(case["label"] for case in cases) + " | exponent | largest error |"
    yield "|---|" + "--:|" * (len(cases) + 2)
    for place, tool in enumerate(cases[0]["tools"]):
        mine = [case["tools"][place] for case in cases]
        times = [statistics.median(_times(one, size)) if one["wall"] else None for one in mine]
        errors = [one["error"] for one in mine if one["error"] is not None]
        points = [(case["at"], time) for case, time in zip(cases, times, strict=True) if time]
        cells = [_number(time) if time else one["failed"] for time, one in zip(times, mine, strict=True)]
        yield (
            f"| {tool['tool']} {tool['version']} | {' | '.join(cells)} | {_number(exponent(points), 2)} | "
            f"{_share(max(errors, default=None))} |"
        )
    yield ""
    yield "Wall seconds." if size == "gpu" else "CPU seconds."


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The b of time ∝ sizeᵇ, between the last two points.

    >>> exponent([(1.0, 7.0), (10.0, 2.0), (100.0, 200.0)])
    2.0
    """
    if len(points) < 2:
        return None
    (a, before), (b, after) = points[-2:]
    return math.log(after / before) / math.log(b / a)


def _times(tool: Data, size: str) -> Sequence[float]:
    return tool["wall"] if size == "gpu" else tool["cpu"]


def ratio(tool: Data, first: Data, size: str) -> float | None:
    """Median over the turns of a tool's time over the first tool's in the same turn."""
    pairs = list(zip(_times(tool, size), _times(first, size), strict=False))
    return statistics.median(a / b for a, b in pairs) if pairs and all(b > 0 for _, b in pairs) else None


def headlines(sizes: Mapping[str, Sequence[Data]]) -> list[str]:
    """Five lines for people who will not read further: ours against the fastest peer that is as accurate as asked."""
    size = next((size for size in ("gpu", "cpu") if size in sizes), None)
    if size is None:
        return ["No benchmark has been run yet: `make bench`."]
    lines = ["| | ours | fastest peer that is accurate enough | its time over ours |", "|---|---|---|--:|"]
    run: Data = {}
    for row in (row for row in ROWS if row.headline):
        cases = [case for case in sizes[size] if case["row"] == row.name and case["tools"][0]["wall"]]
        if not cases:
            continue
        case = max(cases, key=lambda case: case["parameters"])
        first, *others = case["tools"]
        run = run or case["run"]
        asked = 2 * max(case["settings"].get("tol", 0.0), first["error"] or 0.0, 1e-5)
        peers = [tool for tool in others if tool["tool"] in PEERS and tool["wall"]]
        accurate = [tool for tool in peers if tool["error"] is None or tool["error"] <= asked]
        best = min(accurate or peers, key=lambda tool: statistics.median(_times(tool, size)), default=None)
        theirs = f"{best['tool']}, {_said(best, size)}" if best else "none"
        theirs = theirs if accurate or not best else f"(none; {theirs})"
        over = _number(ratio(best, first, size)) if best else NO_WALL
        about = f"{case['label']}, {case['samples']:,} samples, peers: {case['batch']:,} at once"
        lines.append(f"| {case['title']} ({about}) | {_said(first, size)} | {theirs} | {over} |")
    where = run.get("gpu") or f"{run.get('processor')}, threads: {run.get('threads')}"
    kind = "wall time" if size == "gpu" else "processor time"
    return [
        *lines,
        "",
        f"({run.get('date', '')[:10]}, {where}; {kind}. Accurate enough: off by no more "
        "than twice what was asked for or ours is off by. [How it was run, and all of it](benchmarks/README.md).)",
        *(["", f"About this run: {run['note']}"] if run.get("note") else []),
    ]


def _said(tool: Data, size: str) -> str:
    time = f"{_number(statistics.median(_times(tool, size)))} s"
    return f"{time}, off by {_share(tool['error'])}" if tool["error"] is not None else time


def take_over(folder: Path, into: Path, readme: Path | None) -> list[Path]:
    """Write pages with the numbers of another folder, from another machine perhaps, in place of older ones of the same cases."""
    return [
        path
        for size in SIZES
        if (cases := stored(folder, size))
        for path in write({"size": size, "cases": cases}, into, readme)
    ]


def _number(value: float | None, digits: int = 3) -> str:
    """Significant digits without an exponent where people read none."""
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value) or not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}" if value else "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def _share(value: float | None) -> str:
    """A relative error: in per cent where it can be seen, else as a power of ten."""
    if value is None:
        return ""
    return f"{100 * value:.2g} %" if value >= 1e-3 else f"{value:.0e}" if value else "0"


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    for name in sys.argv[1:]:
        print(*take_over(Path(name), root / "benchmarks", root / "README.md"), sep="\n")
