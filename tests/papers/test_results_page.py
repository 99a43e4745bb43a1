"""RESULTS.md is what the kept records give, and nothing else."""

from __future__ import annotations

import importlib.util
import math
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from landscope.analysis import Judgement, mean, not_tested
from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.papers import PAPERS, write_results
from landscope.papers.framework.answers import Answer, Unit
from landscope.papers.framework.claims import Claim, Told
from landscope.papers.framework.compare import compare, published_numbers
from landscope.papers.framework.questions import asked
from landscope.papers.framework.records import Bundle, load_bundle, save_bundle
from landscope.papers.framework.results import findings
from landscope.papers.framework.results_page import _telling
from landscope.specs.names import public_names
from landscope.specs.schema import parse, to_plain
from landscope.studies.store.identity import legacy_keys, run_key
from landscope.training.spec import TrainingSpec

ROOT = Path(__file__).parent.parent.parent
RECOMPUTED = [
    "explicit-regularisation/cifar10",
    "explicit-regularisation/cifar10-strengths",
    "fam/cifar10",
    "false-friend/softmax-regression",
    "false-friend/mlp",
    "fam/skulls",
    "fam/rte",
    "adaptive-sharpness/fcnn-notebook",
    "adaptive-sharpness/gat-seeds",
]
BUNDLES = sorted((ROOT / "results").glob("*/*.json.gz"))


@pytest.fixture(scope="module", params=BUNDLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def kept(request: pytest.FixtureRequest) -> tuple[Path, Bundle]:
    return request.param, load_bundle(request.param)


def test_every_bundle_is_whole(kept: tuple[Path, Bundle], tmp_path: Path) -> None:
    path, bundle = kept
    assert path.parent.name == bundle.recipe
    assert path.name in (f"{bundle.part}.json.gz", f"{bundle.part}-{bundle.size}.json.gz")
    assert bundle.part in PAPERS[bundle.recipe].parts(bundle.size)  # type: ignore[arg-type]
    assert len({record.run for record in bundle.records}) == len(bundle.records)
    assert all(record.seconds > 0 and record.environment["torch"] for record in bundle.records)
    again = load_bundle(save_bundle(bundle, tmp_path / "again.json.gz"))
    assert again == bundle


def test_kept_runs_have_the_keys_that_they_had(kept: tuple[Path, Bundle]) -> None:
    """Whatever fields came later, by the names that functions have now, and without the version."""
    for record in kept[1].records:
        if "training" in record.spec:
            training = public_names(to_plain(parse(TrainingSpec, record.spec["training"])))
            versions = {name: value for name, value in record.spec["versions"].items() if name != "landscope"}  # type: ignore[union-attr]
            spec = {**record.spec, "training": training, "versions": public_names(versions)}
            assert run_key(spec) == run_key(record.spec)
            measures = record.spec["measuring"]["splits"]["train"]["measures"]  # type: ignore[index, call-overload]
            if not any(name.startswith("published.") for name in measures):  # asked for in another way before
                assert record.run in (run_key(spec), *legacy_keys(spec))


def test_values_are_kept_whole_and_all_else_in_seven_digits(tmp_path: Path) -> None:
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
    assert found.details == {"curve": [0.3333333, {"at": 0.3333333}, [0.6666667]], "alone": 0.3333333, "n": [1, 2]}
    assert again.extras == {"grid": [[0.3333333]]}
    assert kept.history == ({"epoch": 1, "train_loss": 0.3333333},)


def test_bundles_are_small() -> None:
    assert sum(path.stat().st_size for path in BUNDLES) < 6_000_000


def test_the_published_numbers_are_all_there() -> None:
    table = published_numbers()
    assert len(table) == 373
    assert set(table["paper"]) <= set(PAPERS)


def test_a_published_number_stands_beside_ours() -> None:
    path = ROOT / "results" / "adaptive-sharpness" / "fcnn.json.gz"
    bundle: Bundle = load_bundle(path)
    recipe = PAPERS["adaptive-sharpness"]
    (number,) = compare(recipe, recipe.parts("small")["fcnn"], bundle.records)
    assert number.paper == "-0.311"
    assert number.n == 50
    assert number.published != number.corrected


def test_one_command_makes_the_page_its_figures_and_the_appendices(tmp_path: Path) -> None:
    for paper, part in (("adaptive-sharpness", "lenet5-notebook"), ("fam", "cifar10"), ("false-friend", "mlp")):
        (tmp_path / "kept" / paper).mkdir(parents=True)
        shutil.copy(ROOT / "results" / paper / f"{part}.json.gz", tmp_path / "kept" / paper)
    made = write_results(tmp_path / "kept", tmp_path / "RESULTS.md")
    names = {path.relative_to(tmp_path).as_posix() for path in made}
    assert {"RESULTS.md", "kept/forest.svg", "kept/fam.md", "kept/fam.svg", "kept/false-friend.md"} <= names
    page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "![Twenty claims on one scale](kept/forest.svg)" in page
    assert "MLP: L2 regularisation raises validation accuracy" in page
    assert "was not run" in page  # headline claims whose part is missing stay on the page
    for path in made:
        if path.suffix == ".svg":
            ElementTree.parse(path)
    appendix = (tmp_path / "kept" / "fam.md").read_text(encoding="utf-8")
    assert "all 3 runs of fam failed" in appendix
    assert "95.53 ± 0.0001" in appendix  # as it was published
    assert "counterexample" not in page
    assert "| 20 | 2.1e-09 | 4.9e+08 |" in (tmp_path / "kept" / "false-friend.md").read_text(encoding="utf-8")
    again = [path.read_bytes() for path in made]
    assert [path.read_bytes() for path in write_results(tmp_path / "kept", tmp_path / "RESULTS.md")] == again


@pytest.mark.slow
def test_the_page_is_made_from_the_records(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    kept = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "results").glob("*.*")}
    write_results(tmp_path / "results", tmp_path / "RESULTS.md")
    page = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert page == (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "results").glob("*.*")} == kept


def test_the_page_is_short_and_has_all_headlines() -> None:
    page = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert len(page.encode()) <= 25_000
    assert all(f"\n| {number} | " in page for number in range(1, 21))
    claims = [claim for name in PAPERS for claim in PAPERS[name].claims]
    assert {claim.headline for claim in claims if claim.headline} == {
        *range(1, 21)
    }  # of several parts, the first that was run
    assert len({claim.text for claim in claims}) == len(claims)


def test_what_a_screen_shows_are_claims_of_its_paper() -> None:
    for name in PAPERS:
        assert set(PAPERS[name].also) <= {claim.text for claim in PAPERS[name].claims}, name
        assert PAPERS[name].lead


def test_numbers_of_a_family_come_in_the_order_of_its_words() -> None:
    """FCNN and GAT, softmax regression and MLP: the less certain one is not put first."""
    answers = [
        Answer(name, mean(values), None, Unit())
        for name, values in (("a", [9, 10, 11]), ("b", [-1, 0, 2]), ("c", [4, 5, 9]))
    ]
    question = asked("made up", lambda tables: answers)
    told = Told(Claim(text="a, b and c", question=question, part="made up"), not_tested(""), tuple(answers))
    assert [one.label for one in _telling(told, 2)] == ["b", "c"]
    assert [one.label for one in _telling(told, 3)] == ["a", "b", "c"]
    against = Judgement("excluded", "the opposite is shown", answers[0].ours)
    assert [one.label for one in _telling(replace(told, judgement=against), 1)] == ["a"], "what excludes it comes first"


def test_headline_claims_agree_with_a_script_that_uses_nothing_of_ours(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("recompute", ROOT / "papers" / "recompute.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert "landscope" not in vars(script)
    truth = {name: compute() for name, compute in script.claims(ROOT / "results").items()}
    for path in BUNDLES:
        if f"{path.parent.name}/{path.name.removesuffix('.json.gz')}" in RECOMPUTED:
            (tmp_path / path.parent.name).mkdir(exist_ok=True)
            shutil.copy(path, tmp_path / path.parent.name)
    answers = {one.claim.headline: one.answers for one in findings(tmp_path).headlines}
    assert len({name.split()[0] for name in truth}) >= 11
    for name, (value, low, high, p) in truth.items():
        number, _, member = name.partition(" ")
        ours = answers[int(number)][1 if member in ("mlp", "gat") else 0].ours
        assert ours.value == pytest.approx(value, rel=1e-9), name
        assert ours.p_value() == pytest.approx(p, rel=1e-6 if math.isfinite(low) else 0.02), name
        if math.isfinite(low):
            assert ours.interval(0.95) == pytest.approx((low, high), rel=1e-6), name
