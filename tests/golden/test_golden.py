"""What the package does is what its golden files say; `python -m tests.golden make` keeps a change that is meant."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from golden import where
from golden.keys import run_keys
from golden.numbers import measured
from golden.parts import PARTS, compare
from golden.stored import FILES, read

SOME = ["fisher_rao", "hessian_top_eigenvalue", "hessian_trace", "l2_norm", "relative_flatness", "sam_sharpness"]


def agree(name: str, found: dict[str, object] | None = None) -> None:
    differences = compare(name, found)
    if differences is None:
        pytest.skip(f"{name}: made with another version of torch, or where numbers are rounded differently")
    remedy = f"if that is meant: python -m tests.golden make --only {name}"
    assert not differences, "\n".join([*differences[:20], remedy])


def needs_plotly(name: str) -> None:
    if name == "report" and importlib.util.find_spec("plotly") is None:
        pytest.skip("needs plotly (landscope[report])")


@pytest.mark.parametrize("name", ["names", "options", "registered", "specs", "old-study"])
def test_names_and_old_studies(name: str) -> None:
    agree(name)


def test_keys_of_small_studies() -> None:
    agree("keys", run_keys(["tiny"]))


def test_some_measures_on_every_network() -> None:
    agree("measures", measured(SOME))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["keys", "bundles", "results", "report", "measures", "trainings", "pools", "demo"])
def test_everything_else(name: str) -> None:
    needs_plotly(name)
    agree(name)


def test_every_part_has_its_file_and_all_are_small() -> None:
    assert {path.stem for path in FILES.iterdir()} == set(PARTS)
    assert sum(path.stat().st_size for path in FILES.iterdir()) < 1_500_000


def test_there_are_as_many_keys_as_runs() -> None:
    _, kept = read("keys")
    assert sum(map(len, kept.values())) > 3_000  # type: ignore[arg-type]


def test_a_difference_is_seen_and_named() -> None:
    _, kept = read("registered")
    changed = {**kept, "loss": [*kept["loss"], "made_up"]}  # type: ignore[misc]
    differences = compare("registered", changed)
    assert differences is not None
    assert [line.partition(":")[0] for line in differences] == ["loss"]
    assert "made_up" in differences[0]


def test_only_one_module_imports_the_package() -> None:
    importing = {
        path.name
        for path in Path(__file__).parent.glob("*.py")
        if any(line.startswith(("import landscope", "from landscope")) for line in path.read_text().splitlines())
    }
    assert importing == {Path(where.__file__).name}
