"""A new measure is one class in one file: everything that lists, shows or tests measures finds it there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from landscope import MEASURES, Estimate, Measure
from landscope.measures.base import register
from landscope.measures.facts import Family

TESTS = Path(__file__).parent.parent
ADDED = '''
"""The added measure."""

from dataclasses import dataclass

from landscope.core.estimate import Estimate
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family


@register("l1_norm")
@dataclass(frozen=True, kw_only=True)
class L1Norm(Measure):
    """The sum of the sizes of all weights."""

    title = "ℓ₁ norm of the weights"
    family = Family.WEIGHTS
    unit = "parameter"
    better = None
    cost = "a look at the weights"
    invariant_to = frozenset({"permutation"})

    def _measure(self, probe):
        return Estimate(float(probe.vector().abs().sum()))
'''
LOOKING = """
import json, runpy, sys
import added_measure
import torch
import typer.testing
from landscope import measure
from landscope.cli import app
from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.report import write_report
from landscope.studies.record import Record, MeasuredModel

found = {}
found["table"] = str(measure(torch.nn.Linear(2, 2), (torch.eye(2), torch.tensor([0, 1])), ["l1_norm", "l2_norm"]))
docs, page = sys.argv[1:]
found["docs"] = runpy.run_path(docs)["tables"]()["measures.md"]
invoke = typer.testing.CliRunner().invoke
found["command"] = invoke(app, ["measures", "l1_norm"]).output
found["commands"] = invoke(app, ["measures", "--json"]).output
records = [
    Record(run=f"run{seed}", condition="one", axes={}, seed=seed, spec={}, subjects=(MeasuredModel(checkpoint="final", reports={
        "train": Report({"l1_norm": Estimate(1.0 + seed), "l2_norm": Estimate((seed - 3.0) ** 2)}),
        "test": Report({"error": Estimate(0.1 * seed)}),
    }),))
    for seed in range(8)
]
write_report(records, page)
found["report"] = open(page, encoding="utf-8").read()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("added")
    (folder / "added_measure.py").write_text(ADDED, encoding="utf-8")
    return folder


def run(place: Path, *words: str) -> str:
    """The output of a Python that sees the added module, and these tests' landscope."""
    ways = [str(place), *(entry for entry in sys.path if entry)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(ways), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, cwd=TESTS.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_table_docs_command_line_and_report_show_it(place: Path) -> None:
    tables = str(TESTS.parent / "docs" / "tables.py")
    found = json.loads(run(place, "-c", LOOKING, tables, str(place / "report.html")).splitlines()[-1])
    assert "l1_norm" in found["table"]
    for fact in (
        "ℓ₁ norm of the weights",
        "weights",
        "parameter",
        "a look at the weights",
        "The sum of the sizes of all weights.",
    ):
        assert fact in found["docs"]
        assert fact in found["command"]
    (entry,) = [kind for kind in json.loads(found["commands"]) if kind["name"] == "l1_norm"]
    assert (entry["family"], entry["unit"], entry["better"]) == ("weights", "parameter", None)
    assert "ℓ₁ norm of the weights" in found["report"]


def test_the_contract_suite_tests_it(place: Path) -> None:
    contract = str(TESTS / "measures" / "test_measure_contract.py")
    options = ("-p", "added_measure", "-p", "no:cacheprovider", "-n", "0", "-v", "-k", "l1_norm")
    assert " passed" in run(place, "-m", "pytest", contract, *options)


def test_one_that_does_not_say_what_it_is_is_refused() -> None:
    class Silent(Measure):
        title, family, unit = "silent", Family.FIT, ""

        def _measure(self, probe: object) -> Estimate:
            return Estimate(0.0)

    with pytest.raises(TypeError, match="Silent must state as class attributes: better, cost"):
        register("silent")(Silent)
    Silent.better, Silent.cost = "smaller", "nothing"  # type: ignore[assignment, attr-defined]
    with pytest.raises(TypeError, match="better must be 'lower', 'higher' or None, got 'smaller'"):
        register("silent")(Silent)
    assert "silent" not in MEASURES


@pytest.mark.parametrize("key", list(MEASURES))
def test_every_measure_says_what_it_is(key: str) -> None:
    kind = MEASURES[key]
    assert kind.key == key
    assert kind.title
    assert kind.cost
    assert (kind.better is not None) == kind.family.is_of_predictions
    assert kind.same_value_as == "" or kind.same_value_as in MEASURES
