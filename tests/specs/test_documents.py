"""What is wrong with a YAML file, in words, with the line that is to blame."""

from __future__ import annotations

from pathlib import Path

import pytest

from landscope.core.errors import SpecError
from landscope.specs.documents import read_document, read_spec
from landscope.studies.spec import StudySpec

MISTAKES = {
    "training:\n\tmodel: mlp": (2, "is indented with a tab; YAML takes spaces"),
    "name: a\n  training: {}": (2, "is indented by 2 spaces, which fits no line above it; expected 0"),
    "training:\n    model: mlp\n  epochs: 3": (
        3,
        "is indented by 2 spaces, which fits no line above it; expected 4 or 0",
    ),
    "a:\n  b:\n    c: 1\n\n # x\n   d: 2": (
        6,
        "is indented by 3 spaces, which fits no line above it; expected 4 or 2 or 0",
    ),
    "a: 1\nb:\n  - 1\n c: 2": (4, "is indented by 1 space, which fits no line above it; expected 2 or 0"),
    "name: a\ntraining\n  model: mlp": (2, "expected `key: value`, got 'training'; a colon and a space are missing"),
    "name:a\ntraining: {}": (1, "a space is missing after 'name:'"),
    "name: a\ntraining: {model: mlp\nseeds: 3": (2, "the bracket that opens here is not closed before line 3"),
    "a:\n  b: [loss, error\n  c: [1]": (2, "the bracket that opens here is not closed before line 3"),
    'name: a\nquestion: "what\ntraining: {}': (2, "the quotation mark that opens here is not closed"),
    "name: a\nquestion: why: because": (
        2,
        "there is a second ': ' in this line; write a value that contains one in quotes",
    ),
    "name: @a": (1, "a value that begins with @ must be in quotes"),
    "question: %x": (1, "a value that begins with % must be in quotes"),
    "a: *b": (1, "is not YAML: found undefined alias 'b'"),
    "a: 1\na: 2": (2, "the key 'a' is given twice"),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.items())
def test_a_mistake_is_said_in_words(tmp_path: Path, text: str, message: tuple[int, str]) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as error:
        read_document(file)
    assert str(error.value) == f"{file}:{message[0]}: {message[1]}"


@pytest.mark.parametrize("value", [".nan", ".inf", "[1, {a: -.inf}]"])
def test_a_number_that_no_record_can_hold_is_refused_with_its_line(tmp_path: Path, value: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(f"name: a\ntraining:\n  model: mlp\n  data:\n    name: circles\n    noise: {value}\n")
    with pytest.raises(
        SpecError, match=r"study\.yaml:6: training\.data\.noise.*: is (nan|-?inf), which no record can hold"
    ):
        read_spec(StudySpec, file)


def test_figures_in_one_format_are_asked_for_once(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("name: a\ntraining: {model: mlp}\nfigures: [png, pdf, png]\n")
    with pytest.raises(SpecError, match="figures: expected different formats, got png, pdf, png"):
        read_spec(StudySpec, file)


def test_numbers_are_decimal(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("[1:30, 010, 0x10, 1_000, -3, 0, +5, 1e3, 0b1]")
    assert read_document(file).content == ["1:30", "010", 16, 1000, -3, 0, 5, 1000.0, "0b1"]
