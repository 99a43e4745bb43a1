"""A record says which files of the package made it, also where git does not know."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import landscope
from landscope.studies.work.run import environment, git_tree

GIT = shutil.which("git")


def git(folder: Path, *words: str) -> str:
    assert GIT is not None
    return subprocess.run([GIT, "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(GIT is None, reason="git is not installed")
def test_a_folder_is_named_as_git_names_it(tmp_path: Path) -> None:
    for name in ("a.py", "a-b/c.py", "a/z.txt", "a/b/é.yaml", "a0", "Z"):
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 3 + b"\r\n")
    for ignored in ("a/__pycache__/z.pyc", "gone/__pycache__/z.pyc", "old.pyc"):
        (tmp_path / "package" / ignored).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / ignored).write_bytes(b"compiled")
    before = git_tree(tmp_path / "package")
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("__pycache__\n*.pyc\n")
    git(tmp_path, "-c", "core.autocrlf=false", "add", "package")
    assert git(tmp_path, "write-tree", "--prefix=package/") == before
    (tmp_path / "package" / "a0").write_bytes(b"other")
    assert git_tree(tmp_path / "package") != before


def test_a_record_names_the_files_of_the_package() -> None:
    assert environment(torch.device("cpu"))["tree"] == git_tree(Path(landscope.__file__).parent)
