"""The package as a whole: its public face, what it may depend on."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import landscope

ROOT = Path(__file__).parent.parent
CORE = {"torch", "numpy", "scipy", "pandas", "matplotlib", "rich", "typer", "jinja2", "pyyaml", "safetensors"}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_version_is_that_of_the_installed_package() -> None:
    assert landscope.__version__ == version("landscope")


def test_public_names_are_pinned() -> None:
    assert sorted(landscope.__all__) == sorted(name for name in PUBLIC.split())
    for name in landscope.__all__:
        assert hasattr(landscope, name)


PUBLIC = """
    Comparison Cost EmpiricalFisher Estimate FAM Fisher GGN Hessian Landscape Loss MEASURES Measure
    Pool Probe Registry Report SAM Status TrainingResult TrainingSpec __version__ between by_block by_layer compare diagonal
    ece eigsh enough_data errors fit_temperature freeze frobenius invariance landscape line log_det measure
    progressive reliability spectrum trace train train_pool
"""


def test_import_needs_core_packages_only() -> None:
    code = "import sys, landscope; print('\\n'.join({m.split('.')[0] for m in sys.modules}))"
    loaded = set(run(code).split())
    assert not loaded & {
        "sklearn",
        "torchvision",
        "ray",
        "transformers",
        "torch_geometric",
        "submitit",
        "plotly",
        "IPython",
    }
    assert "matplotlib" not in loaded, "plots import it when they are drawn"


def test_declared_dependencies() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert listed
    assert set(re.findall(r'"([a-z0-9-]+)', listed[1])) == CORE


def test_torchvision_is_never_imported() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "torchvision" for name in names), path
