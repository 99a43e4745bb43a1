"""Values against types, and spec files that point at their mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

from landscope.core.errors import SpecError
from landscope.specs.documents import read_document, read_spec
from landscope.specs.schema import (
    Fraction,
    MismatchError,
    Natural,
    Range,
    check_value,
    describe,
    parse,
    to_plain,
    without_defaults,
)


@dataclass(frozen=True, kw_only=True)
class Wheel:
    SHORTHAND: ClassVar[str] = "kind"
    REST: ClassVar[str] = "options"

    kind: Literal["steel", "wood"] = "steel"
    size: Natural = 3
    options: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Cart:
    name: str
    wheels: tuple[Wheel, ...] = ()
    spare: Wheel | None = None
    load: Annotated[float, Range(0, 10)] = 1.0
    pair: tuple[float, float] = (0.0, 1.0)
    share: Fraction = 0.5
    rates: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.load > 5 and not self.wheels:
            raise SpecError("a load above 5 needs wheels")


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, float, 3.0),
        (None, int | None, None),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, 2.5], tuple[float, float], (1.0, 2.5)),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ("wood", Wheel, Wheel(kind="wood")),
        ({"kind": "wood", "colour": "red"}, Wheel, Wheel(kind="wood", options={"colour": "red"})),
        (None, Wheel | None, None),
        (True, bool, True),
        (1, Fraction, 1.0),
    ],
)
def test_fits(value: object, hint: object, expected: object) -> None:
    found = check_value(value, hint)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, int),
        (True, float),
        (1.0, int),
        (float("nan"), float),
        (float("inf"), float),
        ("3", int),
        (0, Natural),
        (0, Fraction),
        ([1], tuple[float, float]),
        ({"kind": "stone"}, Wheel),
        ("steel", dict[str, float]),
        ([["a"]], tuple[tuple[int, ...], ...]),
    ],
)
def test_does_not_fit(value: object, hint: object) -> None:
    with pytest.raises(MismatchError, match="must be|unknown value"):
        check_value(value, hint)


def test_every_mistake_is_reported_once_with_its_path() -> None:
    with pytest.raises(SpecError) as caught:
        parse(Cart, {"wheels": [{"kind": "wod"}, 3], "load": 11, "pair": [1], "sharr": 1})
    lines = str(caught.value).splitlines()
    assert lines[0] == "'name' is missing"
    assert any(line.startswith("wheels[0].kind: unknown value 'wod'; did you mean 'wood'") for line in lines)
    assert any(line.startswith("wheels[1].kind: must be one of 'steel', 'wood', but is 3") for line in lines)
    assert any(line.startswith("load: must be a number from 0 to 10, but is 11") for line in lines)
    assert any("did you mean 'share'" in line for line in lines)
    assert len(lines) == 6


def test_what_fields_say_together_is_checked_too() -> None:
    with pytest.raises(SpecError, match="a load above 5 needs wheels"):
        parse(Cart, {"name": "x", "load": 6})


def test_round_trip() -> None:
    cart = parse(Cart, {"name": "x", "wheels": ["wood", {"size": 2, "tread": 4}], "spare": None, "rates": {"a": 1}})
    assert parse(Cart, to_plain(cart)) == cart


def test_only_plain_values_become_plain() -> None:
    with pytest.raises(SpecError, match="plain values only"):
        to_plain({"f": print})


def test_words_for_types() -> None:
    assert describe(Wheel) == "one of 'steel', 'wood' (kind), or a mapping with the keys kind, size, options"
    assert describe(Fraction) == "a number > 0, ≤ 1"


YAML = """\
name: x          # a comment
load: 1e-1
wheels:
  - kind: steel
  - {kind: wod}
spare:
  size: 0
"""
TOML = """\
name = "x"
load = 1e-1

[spare]
size = 0
"""


def test_yaml_errors_name_the_line(tmp_path: Path) -> None:
    file = tmp_path / "cart.yaml"
    file.write_text(YAML)
    with pytest.raises(SpecError) as caught:
        read_spec(Cart, file)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{file}:5: wheels[1].kind: unknown value 'wod'")
    assert lines[1].startswith(f"{file}:7: spare.size: must be an integer ≥ 1")
    assert read_document(file).content["load"] == 0.1  # type: ignore[index]


def test_toml_errors_name_the_line(tmp_path: Path) -> None:
    pytest.importorskip("tomllib", reason="needs Python 3.11")
    file = tmp_path / "cart.toml"
    file.write_text(TOML)
    with pytest.raises(SpecError, match=r"cart\.toml:5: spare\.size: must be an integer"):
        read_spec(Cart, file)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: [1", r"a\.yaml:\d+: the bracket that opens here is not closed"),
        ("a.yaml", "a: 1\na: 2\n", "a.yaml:2: the key 'a' is given twice"),
        ("a.txt", "a: 1", "written in YAML, TOML or JSON"),
        ("a.toml", "a = ", "is not TOML"),
        ("a.yaml", "just words", "must be a mapping with the keys"),
        ("a.yaml", "", "must be a mapping with the keys"),
    ],
)
def test_files_that_are_no_spec(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(SpecError, match=message):
        read_spec(Cart, file)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        read_document(tmp_path / "none.yaml")


def test_yaml_words_stay_words(tmp_path: Path) -> None:
    file = tmp_path / "words.yaml"
    file.write_text("{a: on, b: no, c: true, d: 1e5, e: 5, f: -2.5E-3, g: 1_000}")
    assert read_document(file).content == {"a": "on", "b": "no", "c": True, "d": 1e5, "e": 5, "f": -0.0025, "g": 1000}


@dataclass(frozen=True)
class Gear:
    spokes: int = 32
    size: float = 0.0


@dataclass(frozen=True)
class Bike:
    name: str
    front: Gear = field(default_factory=Gear)
    spare: Annotated[Gear | None, "if any"] = None
    by_place: dict[str, Gear] = field(default_factory=lambda: {"back": Gear(36)})
    more: tuple[Gear, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("written", "short"),
    [
        ({}, {}),
        ({"front": Gear(20)}, {"front": {"spokes": 20}}),
        ({"spare": Gear()}, {"spare": {}}),  # there is one
        ({"by_place": {}}, {"by_place": {}}),
        ({"by_place": {"back": Gear(), "front": Gear(36)}}, {"by_place": {"back": {}, "front": {"spokes": 36}}}),
        ({"more": (Gear(), Gear(8))}, {"more": [{}, {"spokes": 8}]}),
        ({"options": {"spokes": 32}}, {"options": {"spokes": 32}}),
    ],
)
def test_fields_with_their_defaults_are_left_out(written: dict[str, Any], short: dict[str, Any]) -> None:
    assert without_defaults(to_plain(Bike("a", **written)), Bike) == {"name": "a", **short}


@pytest.mark.parametrize(
    "kept", [{"spokes": 32.0}, {"spokes": True}, {"size": 0}, {"size": -0.0}, {"size": None}, {"other": 1}]
)
def test_what_is_not_quite_the_default_is_not_left_out(kept: dict[str, Any]) -> None:
    assert repr(without_defaults({"spokes": 32, **kept}, Gear)) == repr(kept)


def test_what_an_older_version_wrote_is_left_out_alike() -> None:
    assert without_defaults({"name": "a", "front": {"spokes": 32}, "by_place": {"back": {"spokes": 36}}}, Bike) == {
        "name": "a"
    }
    assert without_defaults({"front": "a gear", "more": None}, Bike) == {"front": "a gear", "more": None}
