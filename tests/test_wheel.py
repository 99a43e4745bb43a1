"""What is built is whole: an sdist, the wheel made from it, and that wheel installed away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STUDY = """\
name: tiny
training: {data: circles, model: {name: mlp, widths: [4]}, epochs: 1}
axes: {rate: {optimizer.lr: [0.01, 0.1]}}
seeds: 2
measuring: {splits: {train: [loss, hessian_trace], test: [error]}}
"""


def done(*words: object, cwd: Path, **env: str) -> str:
    run = subprocess.run(list(map(str, words)), cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sdist of what a checkout holds."""
    folder = tmp_path_factory.mktemp("build")
    checkout, sdist = folder / "checkout", folder / "sdist"
    junk = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", checkout / "src", ignore=junk)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    build = "from setuptools import build_meta; build_meta.build_sdist({!r})"
    done(sys.executable, "-c", build.format(str(sdist)), cwd=checkout)
    (archive,) = sdist.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    done(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(built: Path) -> None:
    with zipfile.ZipFile(built) as file:
        held = {name for name in file.namelist() if name.startswith("landscope/")}
    there = {
        path for path in (ROOT / "src" / "landscope").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == {path.relative_to(ROOT / "src").as_posix() for path in there}


@pytest.mark.slow
def test_the_wheel_works_away_from_the_checkout(built: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    done(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, built, cwd=tmp_path)
    (tmp_path / "study.yaml").write_text(STUDY)

    def landscope(*words: str) -> str:
        return done(sys.executable, "-P", "-m", "landscope", *words, cwd=tmp_path, PYTHONPATH=str(site))

    where = "import landscope; print(landscope.__file__)"
    assert done(sys.executable, "-P", "-c", where, cwd=tmp_path, PYTHONPATH=str(site)).startswith(str(site))
    assert "adaptive-sharpness" in landscope("paper", "list")
    assert str(site / "landscope" / "data" / "files" / "cora") in landscope("data", "list", "--json")
    assert "4 runs to do" in landscope("study", "run", "study.yaml", "--dry-run")
    assert "answer: " in landscope("study", "run", "study.yaml", "-e", "workers=1")
    page = (tmp_path / "studies" / "tiny" / "report.html").read_text()
    assert (ROOT / "src" / "landscope" / "report" / "assets" / "page.css").read_text()[:200] in page
    reading = "from landscope.measures.reading.references import kinds; print(len(kinds()))"
    assert int(done(sys.executable, "-P", "-c", reading, cwd=tmp_path, PYTHONPATH=str(site))) > 0
