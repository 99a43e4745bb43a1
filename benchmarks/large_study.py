"""What it costs to look at a large study in which everything is done, and to resume it with nothing to do.

    python benchmarks/large_study.py [--runs 2000] [--rounds 3] [--keep FOLDER] [--profile FOLDER]

One run is trained and measured; its record, with another seed and other numbers, is then written for every run of the study
through the store, as a worker writes it. Timed are, each in a process of its own as a user starts it,

- `import landscope` with all that a study needs, which every command pays first,
- `study status`, also as JSON,
- `study run --dry-run`, which lists the runs,
- `study run --no-report` with nothing left to do,
- `report`, which reads every record and writes the page,
- `study run` with nothing left to do and that page, which it leaves as it is,

by processor time (user and system, children included), wall time and the largest resident memory; the median of some rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from landscope.studies.study import Study
from landscope.studies.work.run import run_in_folder


def written(runs: int) -> dict[str, object]:
    """A study of about this many runs: 20 rates, 10 decays, the rest seeds."""
    return {
        "name": "large",
        "training": {"data": "circles", "model": {"name": "mlp", "widths": [4]}, "epochs": 2, "batch_size": 20},
        "axes": {
            "rate": {"optimizer.lr": [round(0.01 * (step + 1), 2) for step in range(20)]},
            "decay": {"optimizer.weight_decay": [round(0.001 * step, 3) for step in range(10)]},
        },
        "seeds": max(1, runs // 200),
        "measuring": {"splits": {"train": "all", "test": ["loss", "error", "accuracy", "ece"]}, "consistency": False},
    }


def make(folder: Path, runs: int) -> tuple[Path, int, int]:
    """A study whose runs are all done; the file of its spec, how many there are, and the bytes of one record."""
    spec = folder / "study.json"
    spec.write_text(json.dumps(written(runs)))
    study = Study.of(spec, folder / "study")
    study.save(folder / "study")
    (first, example), *rest = study.runs.items()
    run = study.store.add(example.plain)
    if not run.done():
        with run.claim():
            run_in_folder(run.spec(), str(run.folder))
    record = run.record()
    for number, (key, other) in enumerate(rest):
        folder_of = study.store.add(other.plain)
        if not folder_of.done():
            with folder_of.claim():
                named = {"run": key, "condition": other.condition, "axes": dict(other.axes), "seed": other.seed}
                folder_of.finish({**record, **named, "spec": other.plain, "seconds": 1.0 + number % 7})
    return spec, len(study.runs), study.store.run(first).path("record.json").stat().st_size


def timed(words: list[str]) -> tuple[float, float, float]:
    """Seconds of processor time and of wall time, and MiB, that a command takes."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(words)}: {said.decode(errors='replace')}")
    return used.ru_utime + used.ru_stime, time.monotonic() - start, used.ru_maxrss / 1024


def main() -> None:
    """Time the commands, and print a table of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="where the study is made, or was made before")
    parser.add_argument("--profile", type=Path, help="a folder for the profile of each command")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = arguments.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        spec, count, size = make(place, arguments.runs)
        print(f"{count} runs, {size / 1024:.0f} KiB a record, made in {time.monotonic() - start:.0f} s")
        study, resume = str(place / "study"), ["study", "run", str(spec), "--into", str(place / "study")]
        commands = {
            "study status": ["study", "status", study],
            "study status --json": ["study", "status", study, "--json"],
            "study run --dry-run": [*resume, "--dry-run"],
            "study run --no-report": [*resume, "--no-report"],
            "report": ["report", study],
            "study run": resume,
        }
        print(f"{'':24}{'CPU s':>8}{'wall s':>8}{'MiB':>8}")
        alone = ["-c", "import landscope.cli, landscope.studies.study, landscope.studies.study"]
        for name, words in {"import": alone, **{name: ["-m", "landscope", *w] for name, w in commands.items()}}.items():
            if arguments.profile and name != "import":
                arguments.profile.mkdir(parents=True, exist_ok=True)
                into = arguments.profile / f"{name.replace(' ', '_')}.prof"
                timed(["-m", "cProfile", "-o", str(into), *words])
                continue
            rounds = [timed(words) for _ in range(arguments.rounds)]
            cpu, wall, memory = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(f"{name:24}{cpu:8.2f}{wall:8.2f}{memory:8.0f}")


if __name__ == "__main__":
    main()
