"""`landscope recipe run` and `results` where something is not as it should be: folders, records, data, time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from study_runs import do_here

from landscope.core.schema import build
from landscope.recipes import RECIPES
from landscope.recipes.bundle import Bundle, save_bundle
from landscope.recipes.recipe import Part, Recipe
from landscope.studies.spec import StudySpec
from landscope.studies.study import Study

Call = Callable[..., tuple[int, str, str]]
RATES = {"first": [0.1, 0.2], "second": [0.3, 0.4]}


def study_of(part: str, **training: object) -> StudySpec:
    return build(
        StudySpec,
        {
            "name": part,
            "training": {
                "data": "circles",
                "model": {"name": "mlp", "widths": [4]},
                "epochs": 2,
                "batch_size": 20,
                **training,
            },
            "axes": {"rate": {"optimizer.lr": RATES[part]}},
            "seeds": 1,
            "measuring": {"splits": {"train": ["loss"], "test": ["error"]}, "consistency": False},
        },
    )


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> dict[str, StudySpec]:
    """A recipe of two small parts, whose studies may be changed."""
    studies = {part: study_of(part) for part in RATES}
    recipe = Recipe(
        name="rates",
        title="Rates",
        paper="nobody",
        parts=lambda size: {part: Part(study=study) for part, study in studies.items()},
        claims=lambda tables: [],
    )
    monkeypatch.setitem(RECIPES._entries, "rates", recipe)
    return studies


@pytest.fixture
def bundle(rates: dict[str, StudySpec], tmp_path: Path) -> Bundle:
    """The records of the part `first`."""
    study = do_here(Study(rates["first"], tmp_path / "made"))
    return Bundle("rates", "first", "tiny", study.spec, tuple(study.records()))


def run_of(folder: Path, *words: object) -> list[object]:
    return ["recipe", "run", "rates", "--size", "tiny", "--into", folder, "-e", "workers=1", *words]


def test_a_folder_without_records_leaves_the_page_as_it_is(call: Call, tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("as it was")
    (tmp_path / "empty").mkdir()
    code, _, err = call("recipe", "results", tmp_path / "empty", "--page", page)
    assert code == 2
    assert "empty has no records; they were expected there as RECIPE/PART.json.gz" in err
    assert page.read_text() == "as it was"


@pytest.mark.parametrize("given", ["recipes", "recipes/rates-tiny"])
def test_results_are_read_from_where_a_run_leaves_them(
    given: str, call: Call, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_bundle(bundle, Path("recipes/rates-tiny/first.json.gz"))
    code, out, err = call("recipe", "results", given, "--reports", "light")
    assert code == 0, err
    assert out.split() == ["written:", "RESULTS.md", "written:", "recipes/rates-tiny/first.html"]
    text = Path("RESULTS.md").read_text(encoding="utf-8")
    assert (
        "[first.json.gz](recipes/rates-tiny/first.json.gz), report: [first.html](recipes/rates-tiny/first.html)" in text
    )
    assert Path("recipes/rates-tiny/first.html").is_file()
    Path("pages").mkdir()
    code, _, err = call("recipe", "results", given, "--page", "pages/all.md")
    assert code == 0, err
    assert "(../recipes/rates-tiny/first.json.gz)" in Path("pages/all.md").read_text(encoding="utf-8")


def test_the_page_names_a_command_that_goes_on(
    call: Call, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_bundle(replace(bundle, records=bundle.records[:1]), Path("recipes/rates-tiny/first.json.gz"))
    code, _, err = call("recipe", "results", "recipes")
    assert code == 0, err
    text = Path("RESULTS.md").read_text(encoding="utf-8")
    command = "landscope recipe run rates --size tiny --part first --from recipes"
    assert f"`{command}` makes the others." in text
    code, _, err = call(*command.split()[1:], "--into", "elsewhere", "-e", "workers=1")
    assert code == 0, err
    assert "1 of 2 runs taken over" in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "ratse"}, "unknown recipe 'ratse'; did you mean 'rates'?"),
        ({"part": "frist"}, "unknown part of rates at size tiny 'frist'; did you mean 'first'?"),
        ({"size": "huge"}, "unknown size 'huge'"),
    ],
)
def test_records_of_what_there_is_not_are_refused_by_file(
    changes: dict[str, str], message: str, call: Call, bundle: Bundle, tmp_path: Path
) -> None:
    path = save_bundle(replace(bundle, **changes), tmp_path / "kept" / "rates" / "first.json.gz")  # type: ignore[arg-type]
    code, _, err = call("recipe", "results", tmp_path / "kept", "--page", tmp_path / "RESULTS.md")
    assert code == 2
    assert f"{path}: {message}" in err
    assert not (tmp_path / "RESULTS.md").exists()


def test_two_files_of_one_part_are_refused(call: Call, bundle: Bundle, tmp_path: Path) -> None:
    small = save_bundle(replace(bundle, size="small"), tmp_path / "recipes" / "rates-small" / "first.json.gz")
    tiny = save_bundle(bundle, tmp_path / "recipes" / "rates-tiny" / "first.json.gz")
    code, _, err = call("recipe", "results", tmp_path / "recipes", "--page", tmp_path / "RESULTS.md")
    assert code == 2
    assert f"{small} (size small) and {tiny} (size tiny) are records of the same part" in err
    code, _, err = call(*run_of(tmp_path / "new", "--part", "first", "--from", tmp_path / "recipes"))
    assert code == 0, err
    assert f"{tiny}: 2 of 2 runs taken over\n" in err
    save_bundle(bundle, tmp_path / "recipes" / "again" / "first.json.gz")
    code, _, err = call(*run_of(tmp_path / "new", "--part", "first", "--from", tmp_path / "recipes"))
    assert code == 2
    assert "name the folder of one of them" in err


def test_what_cannot_be_written_is_told_with_a_remedy(call: Call, bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "deeper" / "still"):
        code, _, err = call(*run_of(folder))
        assert code == 2
        assert f"{folder} cannot be written into: {file} is a file. Name another folder" in err
    save_bundle(bundle, tmp_path / "kept" / "rates" / "first.json.gz")
    code, _, err = call("recipe", "results", tmp_path / "kept", "--page", tmp_path / "no" / "RESULTS.md")
    assert code == 2
    assert "Make it first" in err


def test_kept_records_that_are_not_there_start_nothing(call: Call, bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = call(*run_of(tmp_path / "new", "--from", tmp_path / "empty"))
    assert code == 2
    assert "empty has no records of rates, first or second; they were expected there as RECIPE/PART.json.gz" in err
    save_bundle(bundle, tmp_path / "kept" / "rates" / "first.json.gz")
    code, _, err = call(*run_of(tmp_path / "new", "--part", "second", "--from", tmp_path / "kept"))
    assert code == 2
    assert "kept has no records of rates, second" in err
    assert not (tmp_path / "new").exists()
