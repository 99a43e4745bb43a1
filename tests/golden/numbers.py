"""Numbers: every measure on every small network, the demo's table, the page of results, the data inside a report."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from networks import NETS, Net
from report.report_records import make_records

from golden import where
from golden.stored import Values, digest

__all__ = ["STEADY", "demo_table", "measured", "report_data", "results"]

ROOT = Path(__file__).parent.parent.parent
ROWS = 24
STEADY = ("fisher_rao", "ggn_trace", "hessian_trace", "l2_norm", "relative_flatness", "sam_sharpness")
"""Measures without differences of nearly equal numbers and without searches: other machines give them to rounding."""
LONG = 20
"""Entries of a list of numbers or words beyond which a digest stands for it."""
LINE = 400
"""Letters of a value in a golden file."""


def measured(names: Iterable[str] | None = None, nets: Iterable[Net] = NETS) -> Values:
    """Network and measure → value, error of the estimator, error over the data, status; names of details on the first network.

    In float64, with default settings. The measures of presets are taken on the first network as well.
    """
    found: Values = {}
    wanted = "all" if names is None else list(names)
    for net in nets:
        for name, estimate in where.measure(net.model(), net.data(ROWS), wanted).items():
            found[f"{net.name} {name}"] = _estimate(estimate)
            if net is NETS[0]:
                found[f"details of {name}"] = sorted(estimate.details)
    if names is None:
        first = NETS[0]
        published = where.measure(first.model(), first.data(ROWS), where.published_measures())
        found |= {f"{first.name} {name}": _estimate(estimate) for name, estimate in published.items()}
    return found


def _estimate(estimate: object) -> dict[str, object]:
    plain = estimate.to_dict()  # type: ignore[attr-defined]
    return {name: plain[name] for name in ("value", "stderr", "data_stderr", "status")}


def demo_table() -> Values:
    """Run and column → number, of the study that `make demo` runs."""
    with tempfile.TemporaryDirectory() as root:
        words = ["study", "run", str(ROOT / "examples" / "digits.yaml"), "--into", root, "--no-report"]
        done = subprocess.run(
            [sys.executable, "-m", where.MODULE, *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        table = where.Study.open(root).table()
    found: Values = {}
    for row in table.to_dict("records"):
        for column, value in row.items():
            if column not in ("condition", "seed"):
                plain = None if value != value else value
                found[f"{row['condition']} · seed {row['seed']} · {column}"] = plain
    return found


def results() -> Values:
    """Claims with their verdicts and a digest of what was found, as the kept records give them."""
    found: Values = {}
    for paper, claims in where.findings(ROOT / "results").told.items():
        for at, one in enumerate(claims):
            found[f"claim: {paper} {at + 1:03d}"] = [one.judgement.verdict, one.claim.text, digest(one.why)]
    return found


def report_data() -> Values:
    """What lies in the page of a made-up study for its script: plots, models, and the tables that can be saved."""
    records = make_records()
    with tempfile.TemporaryDirectory() as root:
        path = where.write_report(
            records,
            Path(root) / "report.html",
            where.ReportOptions(
                title="Do flatter minima generalise better?",
                question="On digits?",
                baseline="baseline",
                claims=[where.Claim("Flat is good", "supported", "because", [records[0].run])],
            ),
        )
        page = path.read_text(encoding="utf-8")
    embedded = re.search(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    assert embedded is not None, "the page has its data in the first script"
    data = json.loads(embedded[1])
    tables = {name: _columns(packed) for name, packed in data.pop("files").items()}
    sections: Values = {"sections": re.findall(r'<section[^>]* id="([^"]+)"', page)}
    return sections | dict(_leaves(data | {"file": tables}, ""))


def _columns(packed: str) -> dict[str, list[str]]:
    header, *rows = csv.reader(io.StringIO(gzip.decompress(base64.b64decode(packed)).decode()))
    return {name: [row[at] for row in rows] for at, name in enumerate(header)}


def _leaves(value: object, place: str) -> Iterator[tuple[str, object]]:
    """Values by their paths: as much in one line as is read with ease, and what is long by a digest."""
    short = _shortened(value)
    if not isinstance(value, dict | list) or not value or len(json.dumps(short)) <= LINE:
        yield place, short
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{place}.{key}" if place else key)
    else:
        for at, item in enumerate(value):
            yield from _leaves(item, f"{place}[{at}]")


def _shortened(value: object) -> object:
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        flat = not any(isinstance(item, dict | list) for item in value)
        return (
            f"{len(value)} entries, sha256 {digest(value)}" if flat and len(value) > LONG else [*map(_shortened, value)]
        )
    return f"{value[:LONG]}…, sha256 {digest(value)}" if isinstance(value, str) and len(value) > LINE else value
