"""RESULTS.md is what the kept records give, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.recipes import RECIPES, results_page, write_results
from landscope.recipes.bundle import Bundle, load_bundle, save_bundle
from landscope.recipes.comparing import compare
from landscope.recipes.numbers import published_numbers
from landscope.specs.names import public_names
from landscope.specs.schema import parse, to_plain
from landscope.studies.record import wide_table
from landscope.studies.store.identity import legacy_keys, run_key
from landscope.training.spec import TrainingSpec

ROOT = Path(__file__).parent.parent.parent
BUNDLES = sorted((ROOT / "results").glob("*/*.json.gz"))


def test_the_page_is_made_from_the_records() -> None:
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == results_page(ROOT / "results")


@pytest.mark.parametrize("path", BUNDLES, ids=[f"{path.parent.name}/{path.name}" for path in BUNDLES])
def test_every_bundle_is_whole(path: Path, tmp_path: Path) -> None:
    bundle = load_bundle(path)
    assert path.parent.name == bundle.recipe
    assert path.name in (f"{bundle.part}.json.gz", f"{bundle.part}-{bundle.size}.json.gz")
    assert bundle.part in RECIPES[bundle.recipe].parts(bundle.size)  # type: ignore[arg-type]
    assert len({record.run for record in bundle.records}) == len(bundle.records)
    assert all(record.seconds > 0 and record.environment["torch"] for record in bundle.records)
    again = load_bundle(save_bundle(bundle, tmp_path / "again.json.gz"))
    assert again == bundle


@pytest.mark.parametrize("path", BUNDLES, ids=[f"{path.parent.name}/{path.name}" for path in BUNDLES])
def test_kept_runs_have_the_keys_that_they_had(path: Path) -> None:
    """Whatever fields came later, by the names that functions have now, and without the version: an old key or one of today."""
    for record in load_bundle(path).records:
        if "training" in record.spec:
            training = public_names(to_plain(parse(TrainingSpec, record.spec["training"])))
            versions = {name: value for name, value in record.spec["versions"].items() if name != "landscope"}  # type: ignore[union-attr]
            spec = {**record.spec, "training": training, "versions": public_names(versions)}
            assert record.run in (run_key(spec), *legacy_keys(spec))
            assert run_key(spec) == run_key(record.spec)


def test_reports_are_made_with_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    kept = folder / "fam" / "cifar10.json.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes((ROOT / "results" / "fam" / "cifar10.json.gz").read_bytes())
    page, report = write_results(folder, tmp_path / "RESULTS.md", reports="light")
    assert report == kept.with_name("cifar10.html")
    assert "results/fam/cifar10.json.gz" in page.read_text(encoding="utf-8")
    text = report.read_text(encoding="utf-8")
    assert "as published" in text
    assert f"{len(load_bundle(kept).records):,} runs" in text
    assert "<script" not in text
    assert report.stat().st_size < 2_000_000


def test_values_are_kept_whole_and_curves_in_seven_digits(tmp_path: Path) -> None:
    bundle = load_bundle(ROOT / "results" / "fam" / "cifar10.json.gz")
    first = bundle.records[0]
    third = 1 / 3
    estimate = Estimate(
        third, stderr=third, details={"curve": [third, {"at": third}, [2 / 3]], "alone": third, "n": [1, 2]}
    )
    subject = replace(first.subjects[0], reports={"train": Report({"made_up": estimate})}, extras={"grid": [[third]]})
    record = replace(first, subjects=(subject,), history=({"epoch": 1, "train_loss": third},))
    kept = load_bundle(save_bundle(replace(bundle, records=(record,)), tmp_path / "b.json.gz")).records[0]
    (again,) = kept.subjects
    found = again.reports["train"]["made_up"]
    assert (found.value, found.stderr) == (third, third)
    assert found.details == {"curve": [0.3333333, {"at": third}, [0.6666667]], "alone": third, "n": [1, 2]}
    assert again.extras == {"grid": [[0.3333333]]}
    assert kept.history == ({"epoch": 1, "train_loss": 0.3333333},)


def test_bundles_are_small() -> None:
    assert sum(path.stat().st_size for path in BUNDLES) < 6_000_000


def test_claims_point_at_records() -> None:
    for name in {path.parent.name for path in BUNDLES}:
        bundles = list(map(load_bundle, (ROOT / "results" / name).glob("*.json.gz")))
        for size in {bundle.size for bundle in bundles}:
            parts = {bundle.part: bundle for bundle in bundles if bundle.size == size}
            claims = RECIPES[name].claims({part: wide_table(bundle.records) for part, bundle in parts.items()})
            assert claims, name
            for claim in claims:
                known = {record.run for bundle in parts.values() for record in bundle.records}
                assert set(claim.records) <= known, claim.text
                assert claim.why, claim.text


@pytest.mark.parametrize("size", ["small", "paper"])
def test_parts_of_different_sizes_are_not_set_against_each_other(size: str, tmp_path: Path) -> None:
    ten = load_bundle(ROOT / "results" / "explicit-regularisation" / "cifar10.json.gz")
    assert ten.size == "paper"
    save_bundle(ten, tmp_path / ten.recipe / "cifar10.json.gz")
    hundred = replace(ten, part="classes100", size=size)
    save_bundle(hundred, tmp_path / ten.recipe / "classes100.json.gz")
    page = results_page(tmp_path)
    assert page.count("classes100: augmentation generalises better") == 1
    assert page.count("cifar10: augmentation generalises better") == 1
    assert ("as sharp as with 10" in page) is (size == "paper")


def test_claims_of_two_sizes_of_a_part_point_at_their_own_records() -> None:
    claims = [line for line in results_page(ROOT / "results").splitlines() if line.startswith("| classes100: ")]
    small = [line for line in claims if "(size small) |" in line]
    assert 30 < len(small) < len(claims) - 30
    assert all(("classes100-small.json.gz" in line) is (line in small) for line in claims)


def test_the_page_says_where_a_smaller_size_is_all_that_the_paper_asks(tmp_path: Path) -> None:
    same = "Size `small` (for this part the same as `paper`)"
    for recipe, part, whole in [("adaptive-sharpness", "gat", True), ("fam", "fashion-mnist", False)]:
        bundle = load_bundle(ROOT / "results" / recipe / f"{part}.json.gz")
        assert bundle.size == "small"
        save_bundle(bundle, tmp_path / part / recipe / f"{part}.json.gz")
        assert (same in results_page(tmp_path / part)) is whole


def test_claims_of_smaller_networks_say_so(tmp_path: Path) -> None:
    for recipe, part, size in [("adaptive-sharpness", "gat", ""), ("fam", "fashion-mnist", " (size small)")]:
        bundle = load_bundle(ROOT / "results" / recipe / f"{part}.json.gz")
        save_bundle(bundle, tmp_path / part / recipe / f"{part}.json.gz")
        claims = [line.split(" | ")[0] for line in results_page(tmp_path / part).splitlines() if f"[{part}](" in line]
        assert claims
        assert all(claim.endswith(size) and "(size" not in claim.removesuffix(size) for claim in claims)


def test_measures_that_failed_are_named(tmp_path: Path) -> None:
    bundle = load_bundle(ROOT / "results" / "adaptive-sharpness" / "lenet5.json.gz")
    save_bundle(bundle, tmp_path / "adaptive-sharpness" / "lenet5.json.gz")
    line = "Measures that failed in some of the 50 models (the records say more): train gradient_norm (1): CUDA error."
    assert line in results_page(tmp_path).splitlines()


def test_every_number_of_a_table_is_on_the_page_as_it_was_published(tmp_path: Path) -> None:
    bundle = load_bundle(ROOT / "results" / "explicit-regularisation" / "cifar10.json.gz")
    save_bundle(bundle, tmp_path / bundle.recipe / "cifar10.json.gz")
    page = results_page(tmp_path)
    numbers = published_numbers(bundle.recipe)
    assert all(f"| {written} |" in page for written in numbers[numbers["data"] == "cifar10"]["written"])
    written = published_numbers().set_index(["paper", "data", "condition", "metric"])["written"]
    assert written["fam", "cifar10", "baseline", "test_accuracy_pct"] == "95.53 ± 0.0001"
    assert written["fam", "skulls set 1", "baseline", "hd"] == "7.0130"


def test_the_published_numbers_are_all_there() -> None:
    table = published_numbers()
    assert len(table) == 373
    assert set(table["paper"]) <= set(RECIPES)


def test_a_published_number_stands_beside_ours() -> None:
    path = ROOT / "results" / "adaptive-sharpness" / "fcnn.json.gz"
    bundle: Bundle = load_bundle(path)
    recipe = RECIPES["adaptive-sharpness"]
    (number,) = compare(recipe, recipe.parts("small")["fcnn"], bundle.records)
    assert number.paper == "-0.311"
    assert number.n == 50
    assert number.published != number.corrected
