"""Downloads against a server on the loopback: resumed, cut off, wrong, absent."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from data_samples import idx_bytes

from landscope.core.errors import DamagedFileError, DownloadError, MissingFileError
from landscope.data import DATASETS, get, load, status
from landscope.data.catalogue import fetch
from landscope.data.dataset import DataSet, Raw, Split
from landscope.data.files import Download, Files, Version

CONTENT = np.random.default_rng(0).integers(0, 256, 1_000_000, dtype=np.uint8).tobytes()
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Site:
    """What the server gives, what it does wrong, and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: {"/file": CONTENT})
    ranges: bool = True
    cut_after: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            state.asked.append(wanted)
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if start >= len(content) and start:
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            body = content[start:]
            self.wfile.write(body[: state.cut_after.pop(0)] if state.cut_after else body)
            self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("checksum", [MD5, SHA256])
def test_whole(site: Site, tmp_path: Path, checksum: str) -> None:
    seen: list[tuple[str, int, int | None]] = []
    target = fetch([site.url + "/file"], tmp_path / "sub" / "file", checksum, progress=lambda *a: seen.append(a))
    assert target.read_bytes() == CONTENT
    assert names(tmp_path) == ["file"]
    assert seen[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    asked = len(site.asked)
    fetch([site.url + "/file"], target, checksum)
    assert len(site.asked) == asked


def test_cut_off_transfers_are_resumed(site: Site, tmp_path: Path) -> None:
    site.cut_after = [300_000, 200_000]
    assert fetch([site.url + "/file"], tmp_path / "file", MD5).read_bytes() == CONTENT
    assert site.asked == [None, "bytes=300000-", "bytes=500000-"]


def test_a_later_run_goes_on_where_the_first_stopped(site: Site, tmp_path: Path) -> None:
    site.cut_after = [400_000]
    with pytest.raises(DownloadError, match="again"):
        fetch([site.url + "/file"], tmp_path / "file", MD5, attempts=1)
    assert names(tmp_path) == ["file.part"]
    assert fetch([site.url + "/file"], tmp_path / "file", MD5).read_bytes() == CONTENT
    assert site.asked[-1] == "bytes=400000-"
    assert names(tmp_path) == ["file"]


def test_a_server_without_ranges_starts_again(site: Site, tmp_path: Path) -> None:
    site.ranges, site.cut_after = False, [400_000]
    assert fetch([site.url + "/file"], tmp_path / "file", MD5).read_bytes() == CONTENT


def test_a_complete_part_is_only_checked(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert fetch([site.url + "/file"], tmp_path / "file", MD5).read_bytes() == CONTENT


def test_a_part_of_something_else_is_dropped(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"older" * 1000)
    assert fetch([site.url + "/file"], tmp_path / "file", MD5).read_bytes() == CONTENT
    (tmp_path / "file").unlink()
    (tmp_path / "file.part").write_bytes(b"longer" * 1_000_000)
    assert fetch([site.url + "/file"], tmp_path / "file", MD5).read_bytes() == CONTENT


def test_wrong_checksum_leaves_nothing(site: Site, tmp_path: Path) -> None:
    wrong = "md5:" + "0" * 32
    with pytest.raises(DamagedFileError, match=f"file: .*{MD5}.*{wrong}"):
        fetch([site.url + "/file"], tmp_path / "file", wrong)
    assert names(tmp_path) == []


def test_mirrors_are_tried_in_turn(site: Site, tmp_path: Path) -> None:
    site.files["/bad"] = b"something else"
    urls = [site.url + "/absent", site.url + "/bad", site.url + "/file"]
    assert fetch(urls, tmp_path / "file", MD5).read_bytes() == CONTENT


def test_no_network_says_what_to_put_where(site: Site, tmp_path: Path) -> None:
    closed = "http://127.0.0.1:9/file"
    with pytest.raises(DownloadError) as caught:
        fetch([closed, site.url + "/absent"], tmp_path / "file", MD5, attempts=1)
    for part in (str(tmp_path / "file"), MD5, closed, "404"):
        assert part in str(caught.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/x"])
def test_only_http(url: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="only http"):
        fetch([url], tmp_path / "file", MD5)


def tarred(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def register(monkeypatch: pytest.MonkeyPatch, version: Version) -> None:
    def read(files: Files, *, seed: int) -> Raw:
        rows = torch.tensor([[float(byte)] for byte in files.read("rows")])
        return Raw(train=Split(rows, rows))

    dataset = DataSet(
        name="toy", title="Toy", task="regression", read=read, licence="none", citation="none", source="here",
        versions=(version,),
    )  # fmt: skip
    monkeypatch.setitem(DATASETS._entries, "toy", dataset)


def test_get_unpacks_an_archive(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/toy.tar.gz"] = tarred({"toy/rows": bytes(range(50))})
    checksum = "md5:" + hashlib.md5(site.files["/toy.tar.gz"]).hexdigest()
    home = Download(urls=(site.url + "/toy.tar.gz",), path="toy.tar.gz", checksum=checksum, unpacks_to="toy")
    rows = "sha256:" + hashlib.sha256(bytes(range(50))).hexdigest()
    register(monkeypatch, Version(name="only", folders=("toy",), files={"rows": rows}, downloads=(home,)))
    monkeypatch.setenv("LANDSCOPE_DATA", str(tmp_path))

    with pytest.raises(MissingFileError, match="landscope data get toy"):
        load("toy")
    assert status("toy").state == "missing"
    assert get("toy") == tmp_path / "toy"
    assert names(tmp_path) == ["rows"]
    assert load("toy").card.counts["train"] == 40
    asked = len(site.asked)
    get("toy")
    assert len(site.asked) == asked

    (tmp_path / "toy" / "rows").write_bytes(b"broken")
    assert status("toy").state == "damaged"
    get("toy")
    assert status("toy").state == "present"


def test_get_refuses_an_archive_that_climbs_out(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/toy.tar.gz"] = tarred({"toy/rows": b"12345", "../outside": b"evil"})
    checksum = "md5:" + hashlib.md5(site.files["/toy.tar.gz"]).hexdigest()
    home = Download(urls=(site.url + "/toy.tar.gz",), path="toy.tar.gz", checksum=checksum, unpacks_to="toy")
    register(monkeypatch, Version(name="only", folders=("toy",), files={"rows": None}, downloads=(home,)))
    with pytest.raises(ValueError, match="climbs out"):
        get("toy", root=tmp_path / "root")
    assert names(tmp_path) == []


def test_get_replaces_a_damaged_plain_file_by_a_zipped_one(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = idx_bytes(np.zeros((4, 2)))
    site.files["/rows.gz"] = gzip.compress(content)
    checksum = "md5:" + hashlib.md5(site.files["/rows.gz"]).hexdigest()
    home = Download(urls=(site.url + "/rows.gz",), path="toy/rows.gz", checksum=checksum)
    published = "sha256:" + hashlib.sha256(content).hexdigest()
    register(monkeypatch, Version(name="only", folders=("toy",), files={"rows": published}, downloads=(home,)))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "rows").write_bytes(content[:-1])
    assert status("toy", root=tmp_path).state == "damaged"
    get("toy", root=tmp_path)
    assert status("toy", root=tmp_path).state == "present"
    assert names(tmp_path) == ["rows.damaged", "rows.gz"]


def test_get_without_a_home_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"images\.npy"):
        get("tinyimagenet100_32", root=tmp_path)


def test_get_of_what_is_there(tmp_path: Path) -> None:
    assert get("abalone", root=tmp_path).name == "abalone"
    assert get("circles", root=tmp_path) == tmp_path
    assert names(tmp_path) == []
