"""Files are written through links and never over what is not a file; what is read is a regular file of a bounded size."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from landscope.core.files import check_regular, destination, probe_folder, read_regular, write_whole, writing


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    end = tmp_path / "elsewhere" / "end.json"
    for name, to in (("link", end), ("relative", Path("elsewhere/end.json")), ("chain", tmp_path / "link")):
        link = tmp_path / name
        link.symlink_to(to)
        write_whole(link, name.encode())
        assert link.is_symlink()
        assert end.read_text() == name
        with writing(link) as aside:
            aside.write_text(f"{name} by a library")
        assert link.is_symlink()
        assert end.read_text() == f"{name} by a library"
    assert [path.name for path in end.parent.iterdir()] == ["end.json"]


def other_things(folder: Path) -> list[Path]:
    """A FIFO, a folder, a socket, links to them, and a link to itself."""
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "socket"))
    things = [folder / name for name in ("fifo", "folder", "socket")]
    for thing in things[:]:
        link = folder / f"link to {thing.name}"
        link.symlink_to(thing)
        things.append(link)
    (folder / "loop").symlink_to(folder / "loop")
    return [*things, folder / "loop"]


def test_what_is_not_a_file_is_neither_replaced_nor_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    for thing in other_things(Path()):
        before = os.lstat(thing)
        with pytest.raises(OSError, match=r"regular file|symbolic links"):
            write_whole(thing, b"1")
        with pytest.raises(OSError, match=r"regular file|symbolic links"), writing(thing):
            raise AssertionError("nothing is to be written")
        assert os.lstat(thing) == before
        with pytest.raises(ValueError, match="expected a regular file, found a "):
            read_regular(thing, 10)
        with pytest.raises(ValueError, match="expected a regular file, found a "):
            check_regular(thing)


def test_files_up_to_a_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(path, 5) == read_regular(tmp_path / "link", 5) == b"12345"
    os.truncate(path, 3 * 2**40)  # sparse: it takes no room
    with pytest.raises(ValueError, match="expected 1 MiB at most, found 3,145,728 MiB"):
        read_regular(path, 2**20)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing", 5)


def test_new_files_and_folders(tmp_path: Path) -> None:
    assert destination(tmp_path / "new") == tmp_path / "new"
    write_whole(tmp_path / "a" / "b", b"1")
    probe_folder(tmp_path / "x" / "y")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
