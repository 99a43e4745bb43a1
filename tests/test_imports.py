"""What importing the package and asking for help bring along."""

import subprocess
import sys
from typing import get_args

import pytest

import landscope
from landscope.cli.options import Pixels
from landscope.data import Pixels as OfData


def loaded_after(code: str) -> set[str]:
    """Which of the heavy packages are there after some code, in an interpreter of its own."""
    heavy = ("torch", "scipy", "pandas", "matplotlib")
    asked = f"{code}\nimport sys\nprint(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import landscope",
        "from landscope.cli import app",
        "from typer.testing import CliRunner\nfrom landscope.cli import app\n"
        "assert CliRunner().invoke(app, ['study', 'run', '--help']).exit_code == 0",
    ],
    ids=["package", "commands", "help"],
)
def test_nothing_heavy_is_imported_before_it_is_used(code: str) -> None:
    assert not loaded_after(code)


def test_every_public_name_is_there_when_asked_for() -> None:
    for name in landscope.__all__:
        assert getattr(landscope, name) is not None
    assert set(landscope.__all__) <= set(dir(landscope))
    assert landscope.models.build is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = landscope.nothing


def test_the_measures_bring_neither_statistics_nor_figures() -> None:
    asked = "import landscope, landscope.studies.study; landscope.measure; import sys; print({} & sys.modules.keys())"
    asked = asked.format({"scipy.stats", "matplotlib"})
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_scales_of_pixels_are_those_of_the_data() -> None:
    assert get_args(Pixels) == get_args(OfData)
