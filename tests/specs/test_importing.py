"""Functions of the user's own: where they are looked for, and what is run to find them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from landscope import models
from landscope.core.errors import SpecError
from landscope.specs.code import source_version
from landscope.specs.names import (
    ALIASES,
    HOMES,
    call_imported,
    former_names,
    import_function,
    locate,
    public_name,
    public_names,
)

ROOT = Path(__file__).parent.parent.parent
BOOM = "import pathlib\npathlib.Path('boom.txt').write_text('ran')\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which nothing else has on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def alone(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A process in a folder that finds this package, and its tests' folder not."""
    settings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, env=settings)


def test_the_current_folder_is_searched_last_and_only_where_it_is_needed(here: Path) -> None:
    (here / "own_last.py").write_text("def build(): return 'own'\n")
    import_function("json:loads")
    assert str(here) not in sys.path
    assert import_function("own_last:build")() == "own"
    assert sys.path[-1] == str(here)
    assert sys.path.count(str(here)) == 1


def test_a_package_of_this_folder_goes_before_a_mere_folder_elsewhere(here: Path) -> None:
    (here / "elsewhere" / "own_package_here").mkdir(parents=True)
    (here / "own_package_here").mkdir()
    (here / "own_package_here" / "__init__.py").write_text("def build(): return 'own'\n")
    sys.path.insert(0, str(here / "elsewhere"))
    assert locate("own_package_here:build") == here / "own_package_here" / "__init__.py"
    assert import_function("own_package_here:build")() == "own"


def test_an_installed_module_may_need_one_of_this_folder(here: Path) -> None:
    (here / "installed").mkdir()
    (here / "installed" / "needs_a_helper.py").write_text("from a_helper_here import build\n")
    (here / "a_helper_here.py").write_text("def build(): return 'helped'\n")
    sys.path.insert(0, str(here / "installed"))
    assert import_function("needs_a_helper:build")() == "helped"


def test_a_file_that_another_module_hides_is_named(here: Path) -> None:
    (here / "json.py").write_text("def rows(): ...\n")
    with pytest.raises(SpecError, match=r"json has no function 'rows'\. .*json\.py is not read, because an installed"):
        import_function("json:rows")


@pytest.mark.parametrize("source", ["nets:", ":build", ".nets:build", "a..b:build", ":"])
def test_what_is_not_a_function_by_name_is_refused(source: str) -> None:
    for look in (import_function, locate):
        with pytest.raises(SpecError, match=r"expected package\.module:function"):
            look(source)


def test_locating_runs_nothing(here: Path) -> None:
    (here / "own_package").mkdir()
    for name in ("__init__", "nets"):
        (here / "own_package" / f"{name}.py").write_text(BOOM + "def build(): ...\n")
    assert locate("own_package.nets:build") == here / "own_package" / "nets.py"
    assert locate("own_package.made_by_code:build") is None
    version = source_version("own_package.nets:build", imports=False)
    assert not (here / "boom.txt").exists()
    assert "own_package" not in sys.modules
    assert source_version("own_package.nets:build") == version
    assert (here / "boom.txt").exists()


def test_the_current_folder_may_be_gone(here: Path) -> None:
    (here / "gone").mkdir()
    os.chdir(here / "gone")
    (here / "gone").rmdir()
    with pytest.raises(SpecError, match="no_such_module_anywhere"):
        import_function("no_such_module_anywhere:build")
    with pytest.raises(SpecError, match="there is no module named 'no_such_module_anywhere'"):
        locate("no_such_module_anywhere:build")


def test_a_file_of_this_folder_does_not_stand_in_for_a_module_of_pythons(tmp_path: Path) -> None:
    for name in ("random", "tempfile", "dataclasses", "torch", "difflib"):
        (tmp_path / f"{name}.py").write_text(BOOM + "raise RuntimeError('not the real one')\n")
    done = alone("-m", "landscope", "--version", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("landscope ")
    assert not (tmp_path / "boom.txt").exists()


def test_a_package_that_imports_landscope_keeps_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").write_text("import landscope.core\nimport a_sibling\n")
    (tmp_path / "theirs" / "__main__.py").write_text("print(a_sibling := 'fine')\n")
    (tmp_path / "a_sibling.py").write_text("")
    done = alone("-m", "theirs", folder=tmp_path)
    assert done.stdout == "fine\n", done.stderr


KEPT = [
    "landscope.recipes.false_friend_images:halved_cifar10",
    "landscope.models.images:WideResNet",
    "landscope.models.images.wide_resnet:WideResNet",
    "landscope.models.images:PreResNet",
    "landscope.models.images:ResNet",
    "landscope.recipes.false_friend:mnist_split",
    "landscope.recipes.fam_inputs:rte_word_pieces",
    "landscope.recipes.halved_images:halved_fashion_mnist",
    "landscope.recipes.fam_timing:HessianTime",
    "landscope.recipes.fam_timing:layer_rows",
    "landscope.recipes.fam_inputs:enlarged_efficientnet",
    "landscope.recipes.false_friend_images:enlarged_digits",
    "landscope.recipes.function_centric:enlarged_digits",
]
"""Names of ours in records and stores of version 0.1.0: users have them on their disks, so they never change."""


@pytest.mark.parametrize("former", sorted({*KEPT, *ALIASES}))
def test_a_former_name_stands_for_what_it_stood_for(former: str) -> None:
    public = public_name(former)
    assert public.startswith("landscope:")
    assert former in former_names(public)
    assert import_function(former) is import_function(public)
    assert locate(former) == locate(public)
    assert source_version(former) == source_version(public) == source_version(former, imports=False) == public


def test_every_public_name_has_a_home_and_stands_for_one_thing() -> None:
    assert {public.removeprefix("landscope:") for public in ALIASES.values()} == {*HOMES}
    assert len({import_function(f"landscope:{name}") for name in HOMES}) == len(HOMES)


def test_every_network_that_is_exported_has_a_public_name() -> None:
    exported = {f"{models.__name__}:{name}": getattr(models, name) for name in models.__all__}
    networks = {name for name, kind in exported.items() if isinstance(kind, type) and issubclass(kind, nn.Module)}
    assert networks
    assert {public_name(name) for name in networks} <= {*ALIASES.values()}


def test_names_are_replaced_wherever_they_stand_and_keys_are_not() -> None:
    old, new = "landscope.models.images:VGG", "landscope:VGG"
    spec = {"a": [old, {"measure": old, old: 1}], "b": f"{old} 0123", "c": "landscope.models.images:Vgg", "d": None}
    assert public_names(spec) == {**spec, "a": [new, {"measure": new, old: 1}]}
    assert public_name("my_nets:VGG") == "my_nets:VGG"


def test_what_is_ours_without_a_public_name_is_still_found() -> None:
    assert import_function("landscope:measure") is import_function("landscope.measures:measure")
    with pytest.raises(SpecError, match="has no function 'VGGs'"):
        import_function("landscope:VGGs")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys\nsys.exit()", r"importing BAD ended the process \(sys\.exit\(\), .*BAD\.py:2; remove that call"),
        ("import sys\nsys.exit(0)", r"importing BAD ended the process \(sys\.exit\(0\), .*BAD\.py:2"),
        ("raise SystemExit('no')", r"importing BAD ended the process \(sys\.exit\('no'\), .*BAD\.py:1"),
        ("x = 1\ndef build(:\n", r"importing BAD failed \(SyntaxError: .*BAD\.py:2\)"),
        ("\n  x = 1", r"importing BAD failed \(IndentationError: .*BAD\.py:2\)"),
        ("from math import nothing", r"importing BAD failed \(ImportError: cannot import name 'nothing' .*BAD\.py:1\)"),
        ("import json\n\njson.loads('{')", r"importing BAD failed \(JSONDecodeError: .*BAD\.py:3\)"),
        ("1 / 0", r"importing BAD failed \(ZeroDivisionError: .*BAD\.py:1\)"),
        ("import no_such_dependency", r"No module named 'no_such_dependency'"),
        ("def __getattr__(name):\n  raise OSError('gone')", r"importing BAD failed \(OSError: gone, .*BAD\.py:2\)"),
    ],
    ids=range(10),
)
def test_a_module_that_cannot_be_imported_is_told_with_its_line(
    here: Path, code: str, message: str, request: pytest.FixtureRequest
) -> None:
    name = f"bad_module_{request.node.callspec.id}"
    (here / f"{name}.py").write_text(code)
    with pytest.raises(SpecError, match=f"^{name}:build: .*{message.replace('BAD', name)}"):
        import_function(f"{name}:build")


CALLED = """\
import functools, math, sys
def ends(): sys.exit(0)
def inside(width=3):
    return width + "a"
def nested(): return inside("b", 2, 3)
def plain(width): ...
def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **options): return function(*args, **options)
    return wrapper
@wrapped
def decorated(width): ...
class Net:
    def __init__(self, width):
        self.width = width + None
"""


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        ("ends", {}, r"calling it ended the process \(sys\.exit\(0\), .*called_badly\.py:2"),
        ("inside", {}, r"with the options {} failed \(TypeError: unsupported operand .*called_badly\.py:4\)"),
        ("nested", {}, r"failed \(TypeError: .*called_badly\.py:5\)"),
        ("Net", {"width": 2}, r"failed \(TypeError: unsupported operand .*called_badly\.py:15\)"),
        ("plain", {}, r"cannot be called with the options {}: .* missing 1 required"),
        ("decorated", {"widht": 1}, r"cannot be called with the options {'widht': 1}: .* unexpected keyword"),
        ("Net", {}, r"cannot be called with the options {}: .* missing 1 required"),
    ],
)
def test_what_fails_inside_a_function_is_told_apart_from_wrong_options(
    here: Path, call: str, options: dict[str, object], message: str
) -> None:
    (here / "called_badly.py").write_text(CALLED)
    with pytest.raises(SpecError, match=f"called_badly:{call}.*{message}"):
        call_imported(f"called_badly:{call}", options)
