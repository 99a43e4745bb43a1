"""Estimates: what they say of themselves, and what they refuse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from landscope import Cost, Estimate, Status
from landscope.core.estimate import format_with_error

finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(
    value=finite,
    stderr=st.none() | st.floats(0, 1e300),
    data=st.none() | st.floats(0, 1e300),
    status=st.sampled_from(Status),
)
def test_json_round_trip(value: float, stderr: float | None, data: float | None, status: Status) -> None:
    estimate = Estimate(
        value if status.has_value else math.nan,
        stderr,
        data,
        status,
        "because",
        Cost(1.5, 2.0, 3),
        {"k": 1, "layer": None},
        {"curve": [1.0, 2.0]},
    )
    back = Estimate.from_json(estimate.to_json())
    assert back.to_dict() == estimate.to_dict()
    assert back.status is status
    assert status.has_value or math.isnan(back.value)


@settings(deadline=None)
@given(value=finite.filter(lambda v: abs(v) < 1e200), error=st.floats(1e-200, 1e200))
def test_what_is_printed_is_within_half_a_digit_of_the_error(value: float, error: float) -> None:
    shown, bar = format_with_error(value, error).split(" ± ")
    assert abs(float(bar) - error) <= 0.5 * error
    last_digit = 5e-7 * abs(value) if error < 1e-7 * abs(value) else 0.51 * 10 ** math.floor(math.log10(float(bar)))
    assert abs(float(shown) - value) <= last_digit + 1e-12 * abs(value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"value": math.nan}, "finite value"),
        ({"value": math.inf}, "finite value"),
        ({"value": 1.0, "stderr": -1.0}, "stderr"),
        ({"value": 1.0, "stderr": math.nan}, "stderr"),
        ({"value": 1.0, "data_stderr": math.inf}, "data_stderr"),
        ({"value": math.nan, "status": Status.FAILED}, "reason"),
    ],
)
def test_no_silent_nan(fields: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Estimate(**fields)


@pytest.mark.parametrize(("status", "words"), [("lower bound", "at least 0.2124"), ("upper bound", "at most 0.2124")])
def test_a_bound_says_so_and_has_no_standard_error(status: str, words: str) -> None:
    for stderr in (0.0, 0.1, None):
        bound = Estimate(0.2124, stderr, status=Status(status))
        assert bound.stderr is None
        assert bound.status.has_value
        assert bound.status.is_bound
        assert str(bound) == words
        assert bound.to_dict()["stderr"] is None
    assert repr(Estimate(0.2124, status=Status(status))) == f"Estimate({words}, {status})"


def test_an_unknown_error_is_not_zero() -> None:
    unknown = Estimate(1.5, None, status=Status.CONVERGED)
    assert str(unknown) == "1.5"
    assert Estimate.from_json(unknown.to_json()).stderr is None


def test_records_from_before_there_were_bounds_read_as_they_were_written() -> None:
    kept = '{"value": 0.2124, "stderr": 0.0, "data_stderr": 0.01, "status": "converged", "reason": "", "details": {}}'
    found = Estimate.from_json(kept)
    assert (found.value, found.stderr, found.status) == (0.2124, 0.0, Status.CONVERGED)
