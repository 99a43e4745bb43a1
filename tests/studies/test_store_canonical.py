"""Keys: the same for the same spec however it is spelt, another for anything else."""

from __future__ import annotations

import hashlib
import json
import random

import numpy as np
import pytest

from landscope.core.errors import SpecError
from landscope.specs.canonical import canonical_json, strict
from landscope.studies.store.identity import SCHEMA, run_key

SPEC = {"model": {"name": "mlp", "widths": [64, 64]}, "lr": 0.1, "seed": 3, "note": "naïve", "decay": None, "sam": True}


def shuffled(value, rng):
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: shuffled(item, rng) for key, item in items}
    return value


def test_the_key_is_the_hash_of_the_canonical_json():
    text = json.dumps(SPEC, sort_keys=True, separators=(",", ":"))
    assert canonical_json(SPEC) == text
    assert run_key(SPEC) == hashlib.sha256(f'{{"schema":{SCHEMA},"spec":{text}}}'.encode()).hexdigest()[:16]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_keys_does_not_matter(seed):
    assert run_key(shuffled(SPEC, random.Random(seed))) == run_key(SPEC)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": (1, 2)}, {"a": [1, 2]}),
        ({"a": "é"}, {"a": "e\u0301"}),
        ({"é": 1}, {"e\u0301": 1}),
        ({"a": 0.1}, {"a": 1e-1}),
        ({"a": 0.1}, {"a": np.float64(0.1)}),
    ],
)
def test_one_meaning_one_key(one, other):
    assert run_key(one) == run_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": "1"}),
        ({"a": None}, {}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": 0.1}, {"a": 0.1 + 2**-56}),
        ({"a": "ab", "b": ""}, {"a": "a", "b": "b"}),
        ({"a": {"b": 1}}, {"a": 1, "b": 1}),
    ],
)
def test_another_meaning_another_key(one, other):
    assert run_key(one) != run_key(other)


@pytest.mark.parametrize("number", [0.1, 1e-300, 2**-1074, 1 / 3, -0.0, 1e22, float(2**53)])
def test_floats_survive_to_the_last_bit(number):
    back = json.loads(canonical_json({"a": number}))["a"]
    assert np.float64(back).tobytes() == np.float64(number).tobytes()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_json_cannot_hold_is_refused_with_its_place(bad):
    with pytest.raises(SpecError, match=r"spec\.a\[1\]\.b is"):
        run_key({"a": [0, {"b": bad}]})


def test_a_key_typed_in_two_ways_is_refused():
    with pytest.raises(SpecError, match="twice"):
        run_key({"é": 1, "e\u0301": 2})


def test_objects_are_refused():
    with pytest.raises(SpecError, match="plain values"):
        run_key({"a": {1, 2}})


def test_stored_values_keep_their_order_and_spelling():
    assert list(strict({"b": 1, "a": "e\u0301"}, "record").items()) == [("b", 1), ("a", "e\u0301")]
