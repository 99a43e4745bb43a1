"""The examples run as their own comments say."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from landscope.cli import app
from landscope.studies.study import Study

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def command(*words: str, folder: Path) -> str:
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=600, env=settings
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def landscope(*words: str) -> str:
    """What a command prints, given in this process."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.skipif(importlib.util.find_spec("plotly") is None, reason="needs plotly (landscope[report])")
def test_your_own_model_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "own"
    shutil.copytree(EXAMPLES / "own", folder, ignore=shutil.ignore_patterns("__pycache__", "studies", "*.safetensors"))
    assert "weights in spirals.safetensors" in command("bring_your_own.py", folder=folder)
    words = ["spirals.safetensors", "--model", "bring_your_own:network", "--data", "bring_your_own:spirals"]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    measured = landscope("measure", *words, "--measures", "loss,accuracy", "--json")
    assert json.loads(measured)["estimates"]["accuracy"]["value"] > 0.9
    study = folder / "study.yaml"
    study.write_text(study.read_text().replace("epochs: 60", "epochs: 2").replace("seeds: 3", "seeds: 1"))
    done = json.loads(landscope("study", "run", "study.yaml", "--json", "-e", "workers=1"))
    assert len(done["finished"]) == 4
    assert (folder / done["report"]).stat().st_size > 100_000


def test_the_study_of_the_demo_is_whole(tmp_path: Path) -> None:
    runs = Study.of(EXAMPLES / "digits.yaml", tmp_path).runs.values()
    assert len(runs) == 20
    assert len({run.condition for run in runs}) == 4


@pytest.mark.slow
def test_the_language_model_at_size_tiny(tmp_path: Path) -> None:
    folder = tmp_path / "language_model"
    shutil.copytree(EXAMPLES / "language_model", folder, ignore=shutil.ignore_patterns("__pycache__"))
    first = command("experiment.py", "run", "--size", "tiny", folder=folder)
    assert "SAM 2 measured" in first
    assert "measured" not in command("experiment.py", "run", "--size", "tiny", folder=folder)  # nothing is done twice
    command("page.py", "run/results.json", folder=folder)
    page = (folder / "README.md").read_text()
    assert "One CPU" in page
    assert "| 60 |" in page
    assert (folder / "tuning.svg").stat().st_size > 1000
