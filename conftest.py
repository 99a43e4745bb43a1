"""One thread per test process: these networks are too small for more. No test finds what another one left."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "tests"))
torch.set_num_threads(1)
os.fsync = lambda descriptor: None  # no test outlives a power cut, and disks may take their time


def pytest_collection_finish() -> None:
    """What is there before the first test stays: collecting garbage need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _examples_draw_the_same_numbers(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _modules_of_a_test_end_with_it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test wrote under its temporary folder is imported afresh by the next one of that name."""
    before = set(sys.modules)
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(written):
            del sys.modules[name]
