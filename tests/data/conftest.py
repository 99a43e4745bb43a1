"""Fixtures: sample files of every data set, and the real ones where they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_samples import SAMPLES

from landscope.data import status


@pytest.fixture(scope="session")
def sample_roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    roots = {}
    for number, (name, (write, _)) in enumerate(SAMPLES.items()):
        roots[name] = tmp_path_factory.mktemp(name.replace("/", "_"))
        write(roots[name], np.random.default_rng(number))
    return roots


@pytest.fixture
def real() -> Callable[[str], None]:
    """Skips a test unless the real files of a set are in $LANDSCOPE_DATA."""

    def need(name: str) -> None:
        if "LANDSCOPE_DATA" not in os.environ:
            pytest.skip("LANDSCOPE_DATA is not set: the real data sets are needed")
        state = status(name, verify=False)
        if state.state != "present":
            pytest.skip(f"the real files of {name} are not in $LANDSCOPE_DATA")

    return need
