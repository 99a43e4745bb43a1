"""Specs that explode are refused with their line, before anything is expanded; what people write is not."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from landscope.core.errors import LandscopeError, SpecError
from landscope.specs.documents import read_document
from landscope.specs.limits import DEEPEST, LARGEST_FILE
from landscope.specs.schema import check_value, parse
from landscope.studies.grid import runs_of
from landscope.studies.spec import StudySpec
from landscope.studies.study import Study

toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11")


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """What would explode ends in a MemoryError instead of ending the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if Path("/proc").is_dir() else 0
    )
    if used:
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def laughs(levels: int, each: int = 10) -> str:
    lines = ["a0: &a0 [1, 2]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * each)}]" for n in range(1, levels)]
    return "\n".join(lines)


def chain(levels: int) -> str:
    return "\n".join(["a0: &a0 [1]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, levels))])


EXPLODING = {
    "anchors": ("yaml", laughs(9), r":6: holds more than 100,000 values"),
    "anchors of mappings": (
        "yaml",
        "a0: &a0 {x: 1}\n" + "\n".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 40)),
        r":\d+: holds more than 100,000 values",
    ),
    "merged anchors": (
        "yaml",
        "a0: &a0 {x: 1}\n" + "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}]}}" for n in range(1, 30)),
        r":\d+: holds more than 100,000 values",
    ),
    "anchors that nest": ("yaml", chain(5000), r":10\d: is nested more than 100 levels deep"),
    "an anchor in itself": ("yaml", "a: 1\nb: &b [1, *b]\n", r":2: \*b refers to a value that contains it"),
    "lists in yaml": ("yaml", "a: 1\nb: " + "[" * 5000 + "]" * 5000, r":2: is nested more than 100 levels deep"),
    "unclosed lists": ("yaml", "[" * 100_000, r":1: is nested more than 100 levels deep"),
    "compact lists": ("yaml", "a: 1\nb:\n" + "- " * 5000 + "x", r":3: is nested more than 100 levels deep"),
    "blocks": ("yaml", "\n".join(" " * n + "a:" for n in range(600)), r":10\d: is nested more than 100 levels deep"),
    "keys of keys": ("yaml", "a: 1\n" + "? " * 5000 + "x", r":2: is nested more than 100 levels deep"),
    "json": ("json", '{"a": 1,\n"b": ' + "[" * 5000 + "]" * 5000 + "}", r":2: is nested more than 100 levels deep"),
    "json mappings": ("json", '{"a":\n' * 5000 + "1" + "}" * 5000, r":10\d: is nested more than 100 levels deep"),
    "many keys": ("yaml", "\n".join(f"key{n}: {n}" for n in range(60_000)), r":\d+: holds more than 100,000 values"),
    "a large file": ("yaml", "a: 1\n" * 2_400_000, r":\d+: the file is longer than 4 MiB"),
    "a large json": ("json", '{"a": "' + "x" * LARGEST_FILE + '"}', r":1: the file is longer than 4 MiB"),
}
EXPLODING_TOML = {
    "lists": ("toml", "a = 1\nb = " + "[" * 5000 + "]" * 5000, r":2: is nested more than 100 levels deep"),
    "tables": ("toml", "a = 1\nb = " + "{x = " * 5000 + "1" + "}" * 5000, r":2: is nested more than 100 levels deep"),
    "dotted keys": ("toml", "a = 1\n" + ".".join("a" * 200_000) + " = 1", r":2: is nested more than 100 levels deep"),
    "quoted keys": ("toml", "a = 1\n" + ".".join(['"a"'] * 5000) + " = 1", r":2: is nested more than 100 levels deep"),
    "headings": ("toml", "a = 1\n[" + ".".join("b" * 5000) + "]\nc = 1", r":2: is nested more than 100 levels deep"),
    "after a string": (
        "toml",
        'a = """\n\\""" [\n"""\nb = ' + "[" * 5000 + "]" * 5000,
        r":4: is nested more than 100 levels deep",
    ),
    "values": ("toml", "a = [\n" + "1,\n" * 120_000 + "]", r":100001: holds more than 100,000 values"),
    "keys": ("toml", "\n".join(f"key{n} = {n}" for n in range(120_000)), r":100001: holds more than 100,000 values"),
    "a large file": ("toml", "# a\n" * 2_400_000, r":\d+: the file is longer than 4 MiB"),
    "digits": ("toml", "a = " + "9" * 5000, "is not TOML"),
    "half a character": ("toml", 'a = "\\ud800"', "is not TOML"),
}


@pytest.mark.parametrize("name", EXPLODING)
def test_refused_with_the_line(tmp_path: Path, name: str) -> None:
    suffix, text, message = EXPLODING[name]
    refused(tmp_path / f"spec.{suffix}", text, message)


@toml
@pytest.mark.parametrize("name", EXPLODING_TOML)
def test_toml_is_refused_with_the_line(tmp_path: Path, name: str) -> None:
    suffix, text, message = EXPLODING_TOML[name]
    refused(tmp_path / f"spec.{suffix}", text, message)


def refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        read_document(file)
    assert str(caught.value).startswith(str(file))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n"b": "\\ud800"}', r"\.json:2: '\\ud800' is half a character"),
        ('{"a": 1,\n"\\udfff": 2}', r"\.json:2: '\\udfff' is half a character"),
        ('{"a": 1,\n"b": "\\ude00\\ud83d"}', r"\.json:2: .* is half a character"),
        ("a: 1\nb: 2024-13-45", r"\.json:2: month must be in 1\.\.12"),
        ("a: 1\nb: " + "9" * 5000, r"\.json:2: Exceeds the limit"),
    ],
)
def test_values_that_are_none_are_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    if "999" in text and sys.version_info < (3, 11):
        pytest.skip("such an integer is one")
    refused(tmp_path / "spec.json", text, message)


def test_what_people_write_is_read(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({"name": "\N{GRINNING FACE} é"}))  # escaped as a pair of surrogates
    assert read_document(file).content == {"name": "\N{GRINNING FACE} é"}
    file = tmp_path / "spec.yaml"
    file.write_text("base: &base {lr: 0.1, widths: [64, 64]}\nnet: {<<: *base, lr: 0.2}\nsame: *base\nagain: *base\n")
    base = {"lr": 0.1, "widths": [64, 64]}
    assert read_document(file).content == {"base": base, "net": {**base, "lr": 0.2}, "same": base, "again": base}
    assert read_document(file).place["again", "widths", 1] == f"{file}:1"
    file.write_text("a: " + "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1))
    read_document(file)
    file.write_bytes(b"a: 1\r\nb:\r\n  - 2\r\n")
    assert read_document(file).content == {"a": 1, "b": [2]}


@toml
def test_what_people_write_in_toml_is_read(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(
        "# [[[ \"\"\"\na = '[['\nb = \"]] \\\" [[\"\nc = '''[\n'''\nd.e.f = 1.5\n[g.h]\ni = [[1, 2], [3]]\n"
        + "".join(f"[[t]]\nx = {{y = [{n}.0]}}\n" for n in range(200))
    )
    content = read_document(file).content
    assert isinstance(content, dict)
    assert content["b"] == ']] " [['
    assert len(content["t"]) == 200


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"x": [value]}
    return value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"notes": deep(5000)}, "notes: is nested more than 100 levels deep"),
        ({"training": {"model": "mlp", "data": {"name": "a:b", "x": deep(5000)}}}, "training: is nested more than 100"),
        ({"name": "\ud800"}, r"name: '\\ud800' is half a character"),
        ({"question": "x" * 100 + "\ud83d\ude00"}, "question: .* is half a character"),
        ({"axes": {"\udfff": {"optimizer.lr": [0.1]}}}, r"axes: the key '\\udfff' is half a character"),
        ({"axes": {"a": {"\udfff": {}}}}, r"axes\.a: the key '\\udfff' is half a character"),
        ({"axes": {"a": {"model": ["mlp", "\udfff"]}}}, r"axes\.a\.model\[1\]: '\\udfff' is half a character"),
    ],
)
def test_values_of_a_program_are_refused_too(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Study.of({"name": "x", "training": {"model": "mlp"}, **change}, tmp_path)


def test_values_within_themselves_are_refused() -> None:
    notes: dict[str, object] = {}
    notes["again"] = notes
    with pytest.raises(SpecError, match="notes: is nested more than 100 levels deep"):
        parse(StudySpec, {"name": "x", "training": {"model": "mlp"}, "notes": notes})
    with pytest.raises(SpecError, match="name: .* is half a character"):
        StudySpec(name="\ud800", training={"model": "mlp"})
    with pytest.raises(SpecError, match=r"axes\.rate: the key .* is half a character"):
        StudySpec(name="x", training={"model": "mlp"}, axes={"rate": {"\ud800": {}}})


def test_an_integer_beyond_all_floats_is_not_a_number() -> None:
    with pytest.raises(Exception, match="must be a number"):
        check_value(10**400, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds: 1000000000000", r"study\.yaml:3: seeds: 1000000000000 seeds are more than 100,000 runs"),
        ("seeds: 1" + "0" * 400, r"study\.yaml:3: seeds: 10+ seeds are more than"),
        (
            "seeds: 100001\naxes: {r: {optimizer.lr: [1, 2]}}",
            r"study\.yaml:3: seeds: 2 of r × 100001 seeds are more than",
        ),
        (
            "axes:\n" + "\n".join(f"  a{n}: {{optimizer.k{n}: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}}" for n in range(12)),
            r"study\.yaml:3: axes: 10 of a0 × .* × 3 seeds are more than 100,000 runs",
        ),
    ],
)
def test_too_many_runs_are_refused_before_they_are_made(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(f"name: many\ntraining: {{model: mlp, data: circles}}\n{text}\n")
    document = read_document(file)
    with pytest.raises(SpecError, match=message):
        runs_of(parse(StudySpec, document.content, document.place), document.place)


def test_a_kept_study_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    for spec in ('{"a":' * 100_000 + "1" + "}" * 100_000, '{"name": "\\ud800", "training": {"model": "mlp"}}'):
        (tmp_path / "study.json").write_text(f'{{"store": ".", "versions": {{}}, "spec": {spec}}}')
        with pytest.raises(LandscopeError, match=r"study\.json"):
            Study.open(tmp_path)
