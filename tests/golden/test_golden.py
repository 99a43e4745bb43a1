"""What the package does is what its golden files say; `python -m tests.golden make` keeps a change that is meant."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from networks import NETS, Net

from golden import where
from golden.keys import legacy_run_keys, run_keys
from golden.numbers import STEADY, measured
from golden.parts import PARTS, compare, refusal
from golden.stored import FILES, differences, read


def agree(name: str, found: dict[str, object] | None = None) -> None:
    lines = compare(name, found)
    if lines is None:
        pytest.skip(f"{name}: made with another version of torch, or where numbers are rounded differently")
    remedy = f"if that is meant: python -m tests.golden make --only {name}"
    assert not lines, "\n".join([*lines[:20], remedy])


def needs_plotly(name: str) -> None:
    if name == "report" and importlib.util.find_spec("plotly") is None:
        pytest.skip("needs plotly (landscope[report])")


@pytest.mark.parametrize("name", ["names", "options", "registered", "specs", "old-study"])
def test_names_and_old_studies(name: str) -> None:
    agree(name)


def test_keys_of_small_studies() -> None:
    agree("keys", run_keys(["tiny"]))
    agree("legacy-keys", legacy_run_keys(["tiny"]))


def test_a_default_changes_with_the_number_of_the_schema_only() -> None:
    found = PARTS["specs"].make()
    assert not refusal("specs", found)
    changed = {**found, "training.epochs": {"default": 11}}
    assert "training.epochs" in refusal("specs", changed)
    assert compare("specs", changed)
    assert not refusal("specs", {**changed, "schema": where.SCHEMA + 1})
    assert not refusal("specs", {**found, "training.new": {"default": 1}, "study.seeds": {"default": 4}})
    assert refusal("legacy-keys", {})


@pytest.mark.parametrize("net", NETS, ids=str)
def test_some_measures_on_every_network(net: Net) -> None:
    agree("measures", measured(STEADY, [net]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["keys", "legacy-keys", "bundles", "results", "report", "measures", "drawn", "trainings", "pools", "demo"]
)
def test_everything_else(name: str) -> None:
    needs_plotly(name)
    agree(name)


def test_every_part_has_its_file_and_all_are_small() -> None:
    assert {path.stem for path in FILES.iterdir()} == set(PARTS)
    assert sum(path.stat().st_size for path in FILES.iterdir()) < 1_500_000


def test_there_are_as_many_keys_as_runs() -> None:
    now, before = (read(name)[1] for name in ("keys", "legacy-keys"))
    assert sum(map(len, now.values())) > 3_000  # type: ignore[arg-type]
    now = {place: keys for place, keys in now.items() if place in before}  # what was added later has no old key
    assert {place: len(keys) for place, keys in now.items()} == {place: len(keys) for place, keys in before.items()}  # type: ignore[arg-type]
    different = [len({key for keys in kept.values() for key in keys}) for kept in (now, before)]  # type: ignore[attr-defined]
    assert different[0] == different[1]


def test_a_difference_is_seen_and_named() -> None:
    kept = {"a": 1.0, "b": [2, {"x": "old"}], "c": 0, "d": 1}
    found = {"a": 1.125, "b": [2, {"x": "new"}], "d": 1.0, "e": (3,)}
    lines = ["a: 1.0 → 1.125 (by 0.12 of it)", 'b[1].x: "old" → "new"', "c: 0 is gone", "d: 1 → 1.0", "e: [3] is new"]
    assert differences(kept, found) == lines
    assert differences(kept, kept) == []
    assert differences({"a": 1.0}, {"a": 1.0 + 1e-9}) != []
    assert differences({"a": 1.0}, {"a": 1.0 + 1e-9}, rounding=1e-6) == []


def test_only_what_was_found_is_compared_where_it_is_some_of_a_part() -> None:
    _, kept = read("registered")
    assert compare("registered", {"loss": kept["loss"]}) == []
    assert compare("registered", {"loss": ["made_up"]}) != []
    assert compare("registered", {"made_up": []}) == ["made_up: [] is new"]


def test_only_one_module_imports_the_package() -> None:
    importing = {
        path.name
        for path in Path(__file__).parent.glob("*.py")
        if any(line.startswith(("import landscope", "from landscope")) for line in path.read_text().splitlines())
    }
    assert importing == {Path(where.__file__).name}
