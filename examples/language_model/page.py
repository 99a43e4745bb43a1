"""The figures and the numbers of README.md from results.json: `python page.py [results.json]`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from experiment import METHODS, SEEDS, Settings, rate_at
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
ROLES = ("embedding", "positions", "qkv", "o", "mlp", "norm", "final norm")
COLOURS = dict(zip(ROLES, ("#4c4c4c", "#a6a6a6", "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#8c6bb1"), strict=True))


def by_role(blocks: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The trace of each role, added up over depth."""
    found: dict[str, float] = {}
    for name, estimate in blocks.items():
        role = next(r for r in sorted(ROLES, key=len, reverse=True) if name == r or name.endswith(f" {r}"))
        found[role] = found.get(role, 0.0) + estimate["value"]
    return found


def shown(value: float, digits: int = 3) -> str:
    """A number with this many digits that count."""
    return (
        "–"
        if not math.isfinite(value)
        else f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value) or 1)))}f}"
    )


def training_figure(results: dict[str, Any], settings: Settings, path: Path) -> None:
    """λ₁ with its error over the data, and the traces by role, over training."""
    steps = [s for s in settings.checkpoints if f"step {s}" in results]
    at = np.array([max(s, settings.checkpoints[1] / 2) for s in steps])  # the first one is at 0
    top = [results[f"step {s}"]["hessian_top_eigenvalue"] for s in steps]
    traces = [by_role(results[f"step {s}"]["blocks"]) for s in steps]
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.errorbar(
        at, [t["value"] for t in top], [2 * t["data_stderr"] for t in top], fmt="o-", color="#0072b2", capsize=2
    )
    left.set_yscale("log")
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("{x:g}")
    left.set_title("λ₁, with two standard errors over the data", loc="left", fontsize=9)
    for role in (role for role in ROLES if "norm" not in role and role in traces[0]):
        right.plot(at, [t[role] for t in traces], "o-", markersize=3, color=COLOURS[role], label=role)
    right.axhline(0.0, color="#888888", linewidth=0.8)
    right.set_title("Trace of the Hessian by role", loc="left", fontsize=9)
    right.legend(fontsize=7, frameon=False)
    for axis in (left, right):
        _tidy(axis)
        axis.set(xscale="log", xlabel="training step")
    figure.savefig(path, metadata={"Date": None})


def tuning_figure(results: dict[str, Any], path: Path) -> None:
    """How many times the trace under AdamW that under SAM is, block by block, seed by seed."""
    pairs = [[results[f"{method} {seed} measured"]["blocks"] for method in METHODS] for seed in SEEDS]
    names = list(pairs[0][0])
    figure = Figure(figsize=(9.0, 3.2), layout="constrained")
    axis = figure.subplots()
    for place, name in enumerate(names):
        role = next(r for r in sorted(ROLES, key=len, reverse=True) if name == r or name.endswith(f" {r}"))
        values = [(plain[name]["value"], sam[name]["value"]) for plain, sam in pairs]
        ratios = [sam / plain if sam > 0 < plain else math.nan for plain, sam in values]  # a trace may be negative
        axis.plot([place] * len(ratios), ratios, ".", color=COLOURS[role], markersize=5, label=role)
    axis.axhline(1.0, color="#888888", linewidth=0.8, linestyle="--")
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    _tidy(axis)
    axis.legend(
        handles.values(),
        handles.keys(),
        fontsize=7,
        ncols=len(handles),
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1, 1),
    )
    axis.set(yscale="log", xticks=[], xlabel="blocks, from the embedding to the last norm")
    axis.set_yticks([0.25, 0.5, 1.0, 2.0], ["¼", "½", "1", "2"])
    axis.minorticks_off()
    axis.set_title("Trace under SAM over that under AdamW", loc="left", fontsize=9)
    figure.savefig(path, metadata={"Date": None})


def _tidy(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=7)
    axis.tick_params(which="minor", labelsize=7)
    axis.xaxis.label.set_size(8)


def text(results: dict[str, Any], settings: Settings) -> str:
    """The numbers of the page."""
    corpus, losses = results["corpus"], results["pretraining"]["losses"]
    tokens = settings.steps * settings.batch * settings.length
    lines = [
        f"One {results['machine']['device']}, torch {results['machine']['torch']}. "
        f"{corpus['sources: files']:,} source files, {corpus['sources: tokens']:,} tokens of a vocabulary of "
        f"{corpus['vocabulary']:,}; {settings.steps:,} steps of {settings.batch} × {settings.length} tokens "
        f"({tokens:,} in all) in {results['pretraining']['seconds']:.0f} s; the last training loss is {losses[-1][1]:.2f}. "
        f"Sharpness is that of {settings.measured} training rows of {settings.length} tokens, in float32; losses are of "
        f"{8 * settings.measured} rows each.",
        "",
        "| step | loss | held out | λ₁ | ± data | 2/λ₁ | rate used | trace | seconds for λ₁ |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for step in settings.checkpoints:
        if f"step {step}" not in results:
            continue
        at = results[f"step {step}"]
        top, rate = at["hessian_top_eigenvalue"], rate_at(settings, min(step, settings.steps - 1))
        trace = sum(block["value"] for block in at["blocks"].values())
        lines.append(
            f"| {step} | {at['losses']['training']:.3f} | {at['losses']['held out']:.3f} | {shown(top['value'])} | "
            f"{shown(top['data_stderr'], 2)} | {2 / top['value']:.3f} | {rate:.1e} | {shown(trace)} | {top['seconds']:.0f} |"
        )
    roles = [role for role in ROLES if role in by_role(results["before fine-tuning"]["blocks"])]
    lines += [
        "",
        "![λ₁, and traces by role, over training](training.svg)",
        "",
        f"Fine-tuned for {settings.tuning_steps} steps of {settings.tuning_batch} × {settings.length} tokens "
        f"({results['AdamW 0']['epochs']:.1f} epochs) at a rate of {settings.tuning_rate:g}, SAM with ρ = {settings.rho:g}; "
        "mean and range of three seeds:",
        "",
        f"| | loss | held out | λ₁ | trace | {' | '.join(roles)} |",
    ]
    lines.append("|---|" + "--:|" * (4 + len(roles)))
    lines.append(_row("before", [results["before fine-tuning"]], roles))
    lines += [_row(m, [results[f"{m} {seed} measured"] for seed in SEEDS], roles) for m in METHODS]
    lines += ["", "![Traces after fine-tuning, SAM over AdamW](tuning.svg)"]
    return "\n".join(lines)


def _row(name: str, runs: list[dict[str, Any]], roles: list[str]) -> str:
    columns = [[run["losses"][part] for run in runs] for part in ("training", "held out")]
    columns += [[run["hessian_top_eigenvalue"]["value"] for run in runs]]
    traces = [by_role(run["blocks"]) for run in runs]
    columns += [[sum(t.values()) for t in traces], *([t[role] for t in traces] for role in roles)]
    return f"| {name} | " + " | ".join(map(_spread, columns)) + " |"


def _spread(values: list[float]) -> str:
    mean = shown(float(np.mean(values)))
    return mean if len(values) == 1 else f"{mean} ({shown(min(values))}–{shown(max(values))})"


def main() -> None:
    """Draw the figures, and write the numbers between the marks of README.md."""
    results = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "results.json").read_text())
    kept = {k: tuple(v) if isinstance(v, list) else v for k, v in results["settings"].items()}
    settings = Settings(**kept)
    training_figure(results, settings, HERE / "training.svg")
    tuning_figure(results, HERE / "tuning.svg")
    page = (HERE / "README.md").read_text()
    head, _, rest = page.partition(BEGIN)
    (HERE / "README.md").write_text(f"{head}{BEGIN}\n{text(results, settings)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
