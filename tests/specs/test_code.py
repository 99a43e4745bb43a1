"""The version of a function changes exactly when what it executes does; nothing is run to find it."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from landscope.core.errors import SpecError
from landscope.specs.code import code_digests, file_version, source_version

FILES = {
    "own_nets.py": '''
        """Networks."""
        import torch
        from torch import nn
        import own_tools
        from own_blocks import Block, Spare
        from own_names import *

        WIDTH = 8
        TABLE = {}
        torch.set_num_threads(1)

        def register(make):
            TABLE[make.__name__] = make
            return make

        @register
        def wide():
            return 64

        class Net(nn.Module):
            """A network."""
            def __init__(self, width):
                """Made of blocks."""
                super().__init__()
                self.block = Block(width)

            def forward(self, x):
                from own_late import last
                return last(own_tools.scaled(self.block(x)))

        def build(width=WIDTH):
            """Build it."""  # of blocks
            return Net(TABLE["wide"]() + EXTRA + width)

        def unused():
            return Spare()

        if __name__ == "__main__":
            print(build())
    ''',
    "own_blocks.py": """
        from torch.nn import Linear

        class Base(Linear):
            bias = True

        class Block(Base):
            pass

        class Spare:
            size = 3
    """,
    "own_tools.py": "factor = 2\n\ndef scaled(x):\n    return x * factor\n\ndef other(x):\n    return x\n",
    "own_names.py": "EXTRA = 1\nMORE = 2\n",
    "own_late.py": "def last(x):\n    return x\n",
}
SAME = [
    ("own_nets.py", "# of blocks", "# of many blocks"),
    ("own_nets.py", '"""Build it."""', '"""Build the network."""'),
    ("own_nets.py", '"""Made of blocks."""', ""),
    ("own_nets.py", '"""Networks."""', '"""My networks.\n\nSeveral."""\n\n\n'),
    ("own_nets.py", "def unused():\n", "def unused(more=1):\n"),
    ("own_nets.py", "print(build())", "print(build(3))"),
    ("own_nets.py", "import Block, Spare", "import Block, Spare, Base"),
    ("own_nets.py", 'TABLE["wide"]() + EXTRA + width', "(TABLE['wide']()\n        + EXTRA + width)"),
    ("own_nets.py", "WIDTH = 8", "if TYPE_CHECKING:\n    from own_tools import other\nWIDTH = 8"),
    ("own_blocks.py", "size = 3", "size = 4"),
    ("own_tools.py", "def other(x):\n    return x", "def other(x):\n    return -x"),
    ("own_names.py", "MORE = 2", "MORE = 3"),
]
OTHER = [
    ("own_nets.py", "WIDTH = 8", "WIDTH = 9"),
    ("own_nets.py", "width=WIDTH", "width=8"),
    ("own_nets.py", "return 64", "return 65"),
    ("own_nets.py", "set_num_threads(1)", "set_num_threads(2)"),
    ("own_nets.py", "from torch import nn", "from own_torch import nn"),
    ("own_nets.py", "self.block(x)", "self.block(x).relu()"),
    ("own_nets.py", "def unused():\n", "TABLE['wide'] = len\n\ndef unused():\n"),
    ("own_blocks.py", "bias = True", "bias = False"),
    ("own_tools.py", "factor = 2", "factor = 3"),
    ("own_names.py", "EXTRA = 1", "EXTRA = 2"),
    ("own_late.py", "return x", "return -x"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    for name, text in FILES.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


def version(source: str = "own_nets:build") -> str:
    return source_version(source, imports=False)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(("file", "old", "new"), SAME)
def test_what_is_not_executed_changes_nothing(here: Path, file: str, old: str, new: str) -> None:
    before = version()
    edit(here / file, old, new)
    assert version() == before
    assert not {"own_nets", "own_blocks"} & sys.modules.keys(), "nothing is imported"


@pytest.mark.parametrize(("file", "old", "new"), OTHER)
def test_what_is_executed_changes_the_version(here: Path, file: str, old: str, new: str) -> None:
    before = version()
    edit(here / file, old, new)
    assert version() != before


def test_the_definitions_that_changed_are_named(here: Path) -> None:
    before = code_digests("own_nets:build")
    assert {"own_nets.build", "own_nets.Net", "own_nets", "own_blocks.Base", "own_tools.factor"} <= before.keys()
    assert not {"own_nets.unused", "own_blocks.Spare", "own_tools.other", "own_names.MORE"} & before.keys()
    edit(here / "own_tools.py", "x * factor", "factor * x")
    after = code_digests("own_nets:build")
    assert [name for name in before if after[name] != before[name]] == ["own_tools.scaled"]


def test_packages_and_relative_imports(here: Path) -> None:
    (here / "own_package" / "inner").mkdir(parents=True)
    (here / "own_package" / "__init__.py").write_text("from .nets import build\n")
    (here / "own_package" / "nets.py").write_text(
        "from . import parts\nfrom .inner.more import shape\nimport own_package.inner.deep\n\n"
        "def build():\n    return parts.one(shape), own_package.inner.deep.two\n"
    )
    (here / "own_package" / "parts.py").write_text("def one(x):\n    return x\n\ndef never():\n    return 1\n")
    (here / "own_package" / "inner" / "more.py").write_text("from ..parts import one\nshape = one(3)\n")
    (here / "own_package" / "inner" / "deep.py").write_text("two = 2\n")
    found = code_digests("own_package:build")
    assert found.keys() == {
        "own_package.nets.build", "own_package.parts.one", "own_package.inner.more.shape", "own_package.inner.deep.two",
    }  # fmt: skip
    assert code_digests("own_package.nets:build") == found


def test_where_code_looks_names_up_the_whole_module_counts(here: Path) -> None:
    (here / "own_lookup.py").write_text("def build(name):\n    return globals()[name]()\n\ndef mlp():\n    return 1\n")
    before = version("own_lookup:build")
    edit(here / "own_lookup.py", "return 1", "return 2")
    assert version("own_lookup:build") != before
    (here / "own_made.py").write_text("for name in 'ab':\n    globals()[name] = 1\n")
    assert "own_made.name" in code_digests("own_made:a")


def test_importing_gives_the_same_version(here: Path) -> None:
    (here / "own_nets.py").write_text("from own_tools import scaled as build\n")
    before = version()
    assert source_version("own_nets:build") == before
    assert "own_tools" in sys.modules
    assert file_version("own_nets:build") != file_version("own_nets:build", imports=False)  # where it is written


def test_what_is_not_python_is_reported(here: Path) -> None:
    (here / "own_nets.py").write_text("def build(:\n")
    with pytest.raises(SpecError, match=r"own_nets\.py:1: is not Python: "):
        version()


def test_installed_code_goes_by_its_name() -> None:
    assert version("math:hypot") == file_version("math:hypot") == "math:hypot"
    assert version("landscope.models.images:ResNet") == "landscope:ResNet"
    assert code_digests("landscope:ResNet") == {}
