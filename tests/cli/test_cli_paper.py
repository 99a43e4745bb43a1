"""`landscope paper run` and `results` where something is not as it should be: folders, records, data, time."""

from __future__ import annotations

import io
import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from papers_made import lend
from study_runs import do_here

from landscope.cli.failures import StoppedError
from landscope.cli.sources import parsed_options
from landscope.cli.study.running import HowToRun, StudyOutcome
from landscope.papers.framework.records import Bundle, load_bundle, save_bundle
from landscope.specs.schema import parse
from landscope.studies.executors.base import Job, Resources, Summary
from landscope.studies.record import Failure
from landscope.studies.spec import StudySpec
from landscope.studies.study import Study

pytestmark = pytest.mark.usefixtures("without_workers")
Call = Callable[..., tuple[int, str, str]]
RATES = {"first": [0.1, 0.2], "second": [0.3, 0.4]}


def study_of(part: str, **training: object) -> StudySpec:
    return parse(
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
    """A paper of two small parts, whose studies may be changed."""
    studies = {part: study_of(part) for part in RATES}
    lend(monkeypatch, "rates", studies)
    return studies


@pytest.fixture
def bundle(rates: dict[str, StudySpec], tmp_path: Path) -> Bundle:
    """The records of the part `first`."""
    study = do_here(Study(rates["first"], tmp_path / "made"))
    return Bundle("rates", "first", "tiny", study.spec, tuple(study.records()))


def do_quietly(study: Study) -> StudyOutcome:
    """Every run of a study, as an executor does them: what they print is not on standard output."""
    with redirect_stdout(io.StringIO()):
        do_here(study)
    return StudyOutcome(Summary(), study.statuses())


def run_of(folder: Path, *words: object) -> list[object]:
    return ["paper", "run", "rates", "--size", "tiny", "--into", folder, "-e", "workers=1", *words]


def test_a_folder_without_records_leaves_the_page_as_it_is(call: Call, tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("as it was")
    (tmp_path / "empty").mkdir()
    code, _, err = call("paper", "results", tmp_path / "empty", "--page", page)
    assert code == 2
    assert "empty has no records; they were expected there as PAPER/PART.json.gz" in err
    assert page.read_text() == "as it was"


@pytest.mark.parametrize("given", ["papers", "papers/rates-tiny"])
def test_results_are_read_from_where_a_run_leaves_them(
    given: str, call: Call, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_bundle(bundle, Path("papers/rates-tiny/first.json.gz"))
    code, out, err = call("paper", "results", given, "--reports", "light")
    assert code == 0, err
    made = ["RESULTS.md", f"{given}/forest.svg", f"{given}/rates.md", "papers/rates-tiny/first.html"]
    assert out.split()[1::2] == made
    inside = "rates-tiny/" if given == "papers" else ""
    assert f"[first.json.gz]({inside}first.json.gz)" in Path(given, "rates.md").read_text(encoding="utf-8")
    assert f"({given}/rates.md)" in Path("RESULTS.md").read_text(encoding="utf-8")
    assert Path("papers/rates-tiny/first.html").is_file()
    Path("pages").mkdir()
    code, _, err = call("paper", "results", given, "--page", "pages/all.md")
    assert code == 0, err
    assert f"(../{given}/rates.md)" in Path("pages/all.md").read_text(encoding="utf-8")


def test_the_page_names_a_command_that_goes_on(
    call: Call, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_bundle(replace(bundle, records=bundle.records[:1]), Path("papers/rates-tiny/first.json.gz"))
    code, _, err = call("paper", "results", "papers")
    assert code == 0, err
    text = Path("papers/rates.md").read_text(encoding="utf-8")
    command = "landscope paper run rates --size tiny --part first --from papers"
    assert f"`{command}` makes the others." in text
    code, _, err = call(*command.split()[1:], "--into", "elsewhere", "-e", "workers=1")
    assert code == 0, err
    assert "1 of 2 runs taken over" in err


def test_a_run_that_failed_among_kept_records_is_not_tried_again_by_itself(
    call: Call, bundle: Bundle, tmp_path: Path
) -> None:
    one, other = bundle.records
    failure = Failure(other.condition, other.seed, "NonFiniteTrainingError: the loss became nan at step 3")
    kept = save_bundle(replace(bundle, records=(one,), failed=(failure,)), tmp_path / "kept" / "first.json.gz")
    words = run_of(tmp_path / "new", "--part", "first", "--from", tmp_path / "kept")
    _, _, err = call(*words)
    assert f"{kept}: 1 of 2 runs taken over, and 1 that failed (--retry-failed tries them again)" in err
    again = load_bundle(tmp_path / "new" / "first.json.gz")
    assert again.failed == (failure,)
    assert len(again.records) == 1
    code, _, err = call(*words, "--retry-failed")
    assert code == 0, err
    again = load_bundle(tmp_path / "new" / "first.json.gz")
    assert (again.failed, len(again.records)) == ((), 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "ratse"}, "unknown paper 'ratse'; did you mean 'rates'?"),
        ({"part": "frist"}, "unknown part of rates at size tiny 'frist'; did you mean 'first'?"),
        ({"size": "huge"}, "unknown size 'huge'"),
    ],
)
def test_records_of_what_there_is_not_are_refused_by_file(
    changes: dict[str, str], message: str, call: Call, bundle: Bundle, tmp_path: Path
) -> None:
    path = save_bundle(replace(bundle, **changes), tmp_path / "kept" / "rates" / "first.json.gz")  # type: ignore[arg-type]
    code, _, err = call("paper", "results", tmp_path / "kept", "--page", tmp_path / "RESULTS.md")
    assert code == 2
    assert f"{path}: {message}" in err
    assert not (tmp_path / "RESULTS.md").exists()


@pytest.mark.parametrize("file", ["rates-tiny/first", "rates/first-tiny"])
def test_two_sizes_of_a_part_are_both_shown(call: Call, bundle: Bundle, tmp_path: Path, file: str) -> None:
    folder, page = tmp_path / "papers", tmp_path / "RESULTS.md"
    save_bundle(replace(bundle, size="small"), folder / "rates" / "first.json.gz")
    tiny = save_bundle(bundle, folder / f"{file}.json.gz")
    code, _, err = call("paper", "results", folder, "--page", page, "--reports", "light")
    assert code == 0, err
    text = (folder / "rates.md").read_text(encoding="utf-8")
    large, small = text[text.index("## first\n") :].split("## first-tiny\n")
    assert "Size `small`" in large
    assert "[first.json.gz](rates/first.json.gz)" in large
    assert "Size `tiny`" in small
    assert f"({file}.json.gz)" in small
    assert (folder / "rates" / "first.html").exists()
    assert (folder / f"{file}.html").exists()
    code, _, err = call(*run_of(tmp_path / "new", "--part", "first", "--from", folder))
    assert code == 0, err
    assert f"{tiny}: 2 of 2 runs taken over\n" in err


def test_two_files_of_one_part_are_refused(call: Call, bundle: Bundle, tmp_path: Path) -> None:
    again = save_bundle(bundle, tmp_path / "papers" / "again" / "first.json.gz")
    tiny = save_bundle(bundle, tmp_path / "papers" / "rates-tiny" / "first.json.gz")
    code, _, err = call("paper", "results", tmp_path / "papers", "--page", tmp_path / "RESULTS.md")
    assert code == 2
    assert f"{again} (size tiny) and {tiny} (size tiny) are records of the same part" in err
    code, _, err = call(*run_of(tmp_path / "new", "--part", "first", "--from", tmp_path / "papers"))
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
    code, _, err = call("paper", "results", tmp_path / "kept", "--page", tmp_path / "no" / "RESULTS.md")
    assert code == 2
    assert "Make it first" in err


def test_kept_records_that_are_not_there_start_nothing(call: Call, bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = call(*run_of(tmp_path / "new", "--from", tmp_path / "empty"))
    assert code == 2
    assert "empty has no records of rates, first or second; they were expected there as PAPER/PART.json.gz" in err
    save_bundle(bundle, tmp_path / "kept" / "rates" / "first.json.gz")
    code, _, err = call(*run_of(tmp_path / "new", "--part", "second", "--from", tmp_path / "kept"))
    assert code == 2
    assert "kept has no records of rates, second" in err
    assert not (tmp_path / "new").exists()


ROWS_OF_FILES = """\
import pathlib

import torch

from landscope.data import load


def rows():
    print("reading")
    with pathlib.Path("calls.txt").open("a") as calls:
        calls.write("called\\n")
    load("mnist", root="data", verify=False)
    x = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    return {"train": (x, (x[:, 0] > 0.5).long()), "test": (x, (x[:, 0] > 0.5).long())}
"""


def test_data_that_a_function_misses_stop_its_part_before_anything_starts(
    call: Call,
    rates: dict[str, StudySpec],
    sample_mnist: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "rows_of_files.py").write_text(ROWS_OF_FILES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    rates["second"] = study_of("second", data="rows_of_files:rows")
    code, out, err = call(*run_of(Path("new"), "--part", "second"))
    assert code == 3
    assert "the part second cannot be run: the data set 'mnist' is not there" in err
    assert "started" not in err
    assert out == ""
    assert Path("calls.txt").read_text() == "called\n"  # for both runs
    code, out, err = call(*run_of(Path("new")))  # those that can be run are, and the rest is reported before and after
    assert code == 3
    assert out.split()[1::2] == ["new/first.json.gz", "new/first.html"]
    assert err.count("the part second cannot be run: the data set 'mnist' is not there") == 2
    Path("data").symlink_to(sample_mnist)
    code, _, err = call(*run_of(Path("new"), "--part", "second"))
    assert code == 0, err
    assert "2 runs finished" in err


@pytest.mark.parametrize(
    ("stop", "code"), [(StoppedError("the time limit was reached"), 4), (KeyboardInterrupt(), 130)]
)
def test_what_is_done_is_written_when_it_is_stopped(
    stop: BaseException,
    code: int,
    call: Call,
    rates: dict[str, StudySpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one_run_of_the_second(study: Study, *_: object) -> StudyOutcome:
        if study.spec.name == "first":
            return do_quietly(study)
        study.runs = dict(list(study.runs.items())[:1])
        do_quietly(study)
        raise stop

    monkeypatch.setattr("landscope.cli.paper.run_study", one_run_of_the_second)
    found, out, _ = call(*run_of(tmp_path / "new", "--json"))
    assert found == code
    names = ["first.json.gz", "first.html", "second.json.gz", "second.html"]
    assert json.loads(out) == [str(tmp_path / "new" / name) for name in names]
    assert len(load_bundle(tmp_path / "new" / "second.json.gz").records) == 1
    assert all((tmp_path / "new" / name).is_file() for name in names)


def test_a_time_limit_that_no_executor_hears_ends_in_order(
    call: Call, rates: dict[str, StudySpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_no_hurry(study: Study, needs: Resources) -> list[Job]:
        threading.Event().wait(60)
        return []

    monkeypatch.setattr(Study, "jobs", in_no_hurry)
    before = signal.getsignal(signal.SIGTERM)
    code, _, err = call(*run_of(tmp_path / "new", "--part", "first", "--time-limit", 0.2))
    assert code == 4
    assert "0 of 2 runs are done" in err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_time_limit_between_two_parts_does_not_hide_the_first(
    call: Call, rates: dict[str, StudySpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(study: Study, *_: object) -> StudyOutcome:
        time.sleep(0.1)
        return do_quietly(study)

    monkeypatch.setattr("landscope.cli.paper.run_study", slowly)
    code, out, err = call(*run_of(tmp_path / "new", "--time-limit", 0.05))
    assert code == 4
    assert "run the same command to resume" in err
    assert out.split()[1::2] == [str(tmp_path / "new" / "first.json.gz"), str(tmp_path / "new" / "first.html")]


@pytest.mark.parametrize(("given", "workers"), [((), 1), (("-e", "workers=2"), 2)])
def test_runs_that_are_timed_are_made_alone_unless_told_otherwise(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], workers: int
) -> None:
    found: list[object] = []

    def note(study: Study, folder: Path, how: HowToRun, *_: object) -> StudyOutcome:
        found.append(parsed_options(how.executor_options))
        return StudyOutcome(Summary(), {})

    monkeypatch.setattr("landscope.cli.paper.run_study", note)
    words = ["paper", "run", "fam", "--size", "tiny", "--into", tmp_path / "new", "--part", "hessian-timing", *given]
    assert call(*words)[0] == 0
    assert found == [{"workers": workers}]


def test_without_plotly_reports_have_no_script(
    call: Call, rates: dict[str, StudySpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("landscope.cli.study.showing.find_spec", lambda name: None)
    monkeypatch.setattr("landscope.report.page.html.util.find_spec", lambda name: None)
    monkeypatch.setattr("landscope.cli.paper.run_study", lambda study, *_: do_quietly(study))
    code, out, err = call(*run_of(tmp_path / "new", "--part", "first"))
    assert code == 0, err
    assert "plotly is not installed: reports are written without script" in err
    assert "first.html" in out
    assert "<script" not in (tmp_path / "new" / "first.html").read_text(encoding="utf-8")


def test_a_part_that_is_whole_among_kept_records_needs_no_data(
    call: Call, rates: dict[str, StudySpec], sample_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"name": "mnist", "root": str(tmp_path / "data"), "verify": False}
    (tmp_path / "data").symlink_to(sample_mnist)
    rates["first"] = study_of("first", data=data)
    study = do_here(Study(rates["first"], tmp_path / "made"))
    bundle = Bundle("rates", "first", "tiny", study.spec, tuple(study.records()))
    kept = save_bundle(bundle, tmp_path / "kept" / "rates" / "first.json.gz")
    (tmp_path / "data").unlink()
    words = ["--part", "first", "--from", tmp_path / "kept"]
    code, _, err = call(*run_of(tmp_path / "new", *words))
    assert code == 0, err
    assert (tmp_path / "new" / "first.json.gz").read_bytes() == kept.read_bytes()
    save_bundle(replace(bundle, records=bundle.records[:1]), kept)
    code, _, err = call(*run_of(tmp_path / "other", *words))
    assert code == 3
    assert "the part first cannot be run: MNIST is missing" in err


def test_parts_without_the_runs_that_are_asked_for_are_left_out(
    call: Call, rates: dict[str, StudySpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("landscope.cli.paper.run_study", lambda study, *_: do_quietly(study))
    code, out, err = call(*run_of(tmp_path / "new", "--only", "rate=3e-1"))
    assert code == 0, err
    assert 'the part first cannot be run: no run has rate=3e-1. Choices: "0.1", "0.2"; the other parts are run' in err
    assert out.split()[1::2] == [str(tmp_path / "new" / "second.json.gz"), str(tmp_path / "new" / "second.html")]
    code, _, err = call(*run_of(tmp_path / "new", "--only", "rate=5"))
    assert code == 2
    assert "the part first cannot be run" in err


def test_a_time_limit_writes_what_kept_records_made_whole(call: Call, bundle: Bundle, tmp_path: Path) -> None:
    save_bundle(bundle, tmp_path / "kept" / "rates" / "first.json.gz")
    words = ["--part", "first", "--from", tmp_path / "kept", "--time-limit", 1e-9]
    code, out, _ = call(*run_of(tmp_path / "new", *words))
    assert code == 4
    assert str(tmp_path / "new" / "first.json.gz") in out


def test_cifar100_is_looked_for_where_it_is_asked_for(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANDSCOPE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["paper", "run", "explicit-regularisation", "--size", "small", "--into", tmp_path / "new", "--cifar100"]
    code, _, err = call(*words)
    assert code == 3
    assert "the part classes100 cannot be run: CIFAR-100 is missing" in err
    code, _, err = call(*words, "--part", "cifar10")
    assert code == 2
    assert "--cifar100: explicit-regularisation has no such part with a hundred classes at size small" in err
