"""Archives that climb out, link or lie are refused before anything is written."""

from __future__ import annotations

import errno
import io
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from landscope.core.errors import DamagedFileError, DataFileError, UnsafeFileError
from landscope.data.catalogue import unpack


def tar_with(path: Path, *members: tarfile.TarInfo, content: bytes = b"evil", form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w:gz", format=form) as archive:
        good = tarfile.TarInfo("set/good")
        good.size = 4
        archive.addfile(good, io.BytesIO(b"good"))
        for member in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return path


def zip_with(path: Path, name: str, mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("set/good", "good")
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, "evil")
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


EVIL: dict[str, Callable[[Path], Path]] = {
    "tar climbs": lambda p: tar_with(p / "a.tar.gz", member("../outside")),
    "tar climbs inside": lambda p: tar_with(p / "a.tar.gz", member("set/../../outside")),
    "tar absolute": lambda p: tar_with(p / "a.tar.gz", member("/outside")),
    "tar symlink": lambda p: tar_with(p / "a.tar.gz", member("set/link", tarfile.SYMTYPE, "/etc/passwd")),
    "tar hard link": lambda p: tar_with(p / "a.tar.gz", member("set/link", tarfile.LNKTYPE, "set/good")),
    "tar device": lambda p: tar_with(p / "a.tar.gz", member("set/null", tarfile.CHRTYPE)),
    "tar pipe": lambda p: tar_with(p / "a.tar.gz", member("set/pipe", tarfile.FIFOTYPE)),
    "tar twice": lambda p: tar_with(p / "a.tar.gz", member("set/good")),
    "tar twice, disguised": lambda p: tar_with(p / "a.tar.gz", member("set//./good")),
    "tar file and folder": lambda p: tar_with(p / "a.tar.gz", member("set/good/more")),
    "zip climbs": lambda p: zip_with(p / "a.zip", "../outside"),
    "zip backslash": lambda p: zip_with(p / "a.zip", "set\\..\\..\\outside"),
    "zip drive": lambda p: zip_with(p / "a.zip", "C:/outside"),
    "zip absolute": lambda p: zip_with(p / "a.zip", "/outside"),
    "tar of long names": lambda p: tar_with(p / "a.tar.gz", member("set/" + "x" * 300)),
    "tar of long folders": lambda p: tar_with(p / "a.tar.gz", member("set/" + "x" * 300 + "/file")),
    "tar of long letters": lambda p: tar_with(p / "a.tar.gz", member("set/" + "é" * 128)),
    "tar of long paths": lambda p: tar_with(p / "a.tar.gz", member("set/" + "folder/" * 800 + "file")),
    "tar of long GNU names": lambda p: tar_with(p / "a.tar.gz", member("set/" + "x" * 300), form=tarfile.GNU_FORMAT),
    "tar without a name": lambda p: tar_with(p / "a.tar.gz", member(".")),
    "zip of long names": lambda p: zip_with(p / "a.zip", "set/" + "x" * 300),
    "zip of long paths": lambda p: zip_with(p / "a.zip", "set/" + "folder/" * 800 + "file"),
    "zip without a name": lambda p: zip_with(p / "a.zip", "."),
    "zip symlink": lambda p: zip_with(p / "a.zip", "set/link", stat.S_IFLNK | 0o777),
}


@pytest.mark.parametrize("name", sorted(EVIL))
def test_evil_archives_leave_nothing(name: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    source.mkdir()
    archive = EVIL[name](source)
    with pytest.raises(UnsafeFileError, match=archive.name):
        unpack(archive, target, "set")
    assert list(target.iterdir()) == []
    assert {p.name for p in tmp_path.rglob("*")} == {"source", archive.name, "deep", "target"}


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landscope.data.catalogue._BYTES", 100)
    archive = tar_with(tmp_path / "a.tar.gz", member("set/big"), content=b"\0" * 1000)
    with pytest.raises(UnsafeFileError, match="would unpack to"):
        unpack(archive, tmp_path / "target", "set")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_good_archives_replace_what_was_there(kind: str, tmp_path: Path) -> None:
    archive = (
        tar_with(tmp_path / "a.tar.gz", member("set/sub/more"))
        if kind == "tar"
        else zip_with(tmp_path / "a", "set/sub/more")
    )
    old = tmp_path / "target" / "set"
    old.mkdir(parents=True)
    (old / "stale").write_text("old")
    assert unpack(archive, tmp_path / "target", "set") == old
    assert sorted(p.relative_to(old).as_posix() for p in old.rglob("*") if p.is_file()) == ["good", "sub/more"]
    assert [p.name for p in (tmp_path / "target").iterdir()] == ["set"]


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_truncated_archives_leave_what_was_there(share: float, tmp_path: Path) -> None:
    whole = tar_with(tmp_path / "a.tar.gz", member("set/more"), content=bytes(range(256)) * 200).read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(whole[: int(share * len(whole))])
    old = tmp_path / "target" / "set"
    old.mkdir(parents=True)
    (old / "kept").write_text("old")
    with pytest.raises(DamagedFileError, match=r"a\.tar\.gz"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "target", "set")
    assert [p.relative_to(tmp_path / "target").as_posix() for p in (tmp_path / "target").rglob("*")] == [
        "set",
        "set/kept",
    ]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_the_longest_names_are_written(kind: str, tmp_path: Path) -> None:
    name = f"set/{'x' * 255}"
    archive = tar_with(tmp_path / "a.tar.gz", member(name)) if kind == "tar" else zip_with(tmp_path / "a.zip", name)
    assert (unpack(archive, tmp_path / "target", "set") / ("x" * 255)).read_bytes() == b"evil"


def test_a_long_name_is_not_told_whole(tmp_path: Path) -> None:
    archive = tar_with(tmp_path / "a.tar.gz", member("set/" + "x" * 300))
    with pytest.raises(UnsafeFileError, match="has a name of 300 bytes .* at most 255") as raised:
        unpack(archive, tmp_path / "target", "set")
    assert "x" * 100 not in str(raised.value)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_of_gigabytes_is_not_read(kind: bytes, tmp_path: Path) -> None:
    info = member("set/name", kind)
    info.size = 2**33
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 5000)
    with pytest.raises(DamagedFileError, match=r"(?s)a\.tar: cannot be unpacked .*a header of 8,589,934,592 bytes"):
        unpack(tmp_path / "a.tar", tmp_path / "target", "set")


def test_headers_upon_headers(tmp_path: Path) -> None:
    """Each names the next; tarfile reads them one within the other."""
    info = member("set/name", tarfile.GNUTYPE_LONGNAME)
    info.size = 4
    (tmp_path / "a.tar").write_bytes((info.tobuf(tarfile.GNU_FORMAT) + b"abc".ljust(512, b"\0")) * 3000)
    with pytest.raises(DamagedFileError, match=r"a\.tar: cannot be unpacked"):
        unpack(tmp_path / "a.tar", tmp_path / "target", "set")


def test_many_members_are_refused_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landscope.data.catalogue._MEMBERS", 3)
    archive = tar_with(tmp_path / "a.tar.gz", *(member(f"set/{i}", tarfile.DIRTYPE) for i in range(5)))
    with pytest.raises(UnsafeFileError, match="at most"):
        unpack(archive, tmp_path / "target", "set")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz", "zip"])
def test_changed_bytes_are_refused_or_unpacked(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    if mode == "zip":
        zip_with(path, "set/sub/more")
    else:
        with tarfile.open(path, mode) as archive:
            for name in ("set/good", f"set/{'long' * 40}"):
                info = member(name)
                info.size = 4
                archive.addfile(info, io.BytesIO(b"good"))
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(150):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(whole))] = rng.choice([0, 255, rng.randrange(256)])
        path.write_bytes(changed[: rng.choice([None, rng.randrange(len(whole))])])
        try:
            unpack(path, tmp_path / "target", "set")
        except DataFileError as error:
            assert str(path) in str(error)  # noqa: PT017 (a change may do no harm)


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(DataFileError, match=r"a\.tar\.gz: cannot be unpacked into .*No space left"):
        unpack(tar_with(tmp_path / "a.tar.gz"), tmp_path / "target", "set")


def test_the_wrong_archive_is_named(tmp_path: Path) -> None:
    archive = tar_with(tmp_path / "a.tar.gz")
    with pytest.raises(DamagedFileError, match="holds no folder 'other'"):
        unpack(archive, tmp_path / "target", "other")
    (tmp_path / "noise").write_bytes(b"no archive")
    with pytest.raises(DamagedFileError, match="noise"):
        unpack(tmp_path / "noise", tmp_path / "target", "set")
    assert list((tmp_path / "target").iterdir()) == []
