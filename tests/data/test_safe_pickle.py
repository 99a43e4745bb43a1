"""Pickles that try something are refused before anything happens; pickles that hold data are read."""

from __future__ import annotations

import collections
import os
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from landscope.core.errors import DamagedFileError, DataFileError, UnsafeFileError
from landscope.data.safe_pickle import loads

FILE = Path("batch")


class Call:
    """Pickles as a call of `function(*args)`."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "item",
    [
        {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "name": "x", "none": None},
        [np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.zeros((0, 3), np.int32), np.array(True)],
        (np.arange(3, dtype=">i4"), b"bytes", "text", 1.5, True, 10**30),
    ],
)
def test_data_comes_back(item: object, protocol: int) -> None:
    def same(a: object, b: object) -> bool:
        if isinstance(a, np.ndarray):
            return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
        if isinstance(a, list | tuple):
            return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
        if isinstance(a, dict):
            return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
        return type(a) is type(b) and a == b

    assert same(item, loads(pickle.dumps(item, protocol), FILE))


@pytest.mark.parametrize("protocol", [2, 4])
def test_sparse_rows_and_graphs(protocol: int) -> None:
    rows = scipy.sparse.csr_matrix(np.eye(3, dtype=np.float32))
    back = loads(pickle.dumps(rows, protocol), FILE)
    assert isinstance(back, scipy.sparse.csr_matrix)
    assert np.array_equal(back.toarray(), np.eye(3))
    graph = collections.defaultdict(list, {0: [1, 2], 1: [0]})
    assert loads(pickle.dumps(graph, protocol), FILE) == {0: [1, 2], 1: [0]}


def test_names_of_old_numpy_and_scipy_are_known() -> None:
    """What Planetoid's files utter: modules that no longer exist under these names."""
    rows = scipy.sparse.csr_matrix(np.eye(3, dtype=np.float32))
    content = pickle.dumps(rows, protocol=2)
    content = content.replace(b"scipy.sparse._csr", b"scipy.sparse.csr").replace(b"numpy._core", b"numpy.core")
    assert np.array_equal(loads(content, FILE).toarray(), np.eye(3))


MARK = "LANDSCOPE_PICKLE_RAN"


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(MARK, raising=False)
    yield
    assert list(tmp_path.iterdir()) == []
    assert MARK not in os.environ


ATTACKS = {
    "os.system": pickle.dumps(Call(os.system, "touch ran")),
    "posix.system by name": b"cposix\nsystem\n(S'touch ran'\ntR.",
    "eval": pickle.dumps(Call(eval, f"__import__('os').environ.setdefault('{MARK}', '1')")),
    "exec in python 2's name": b'c__builtin__\nexec\n(S\'open("ran", "w")\'\ntR.',
    "open": pickle.dumps(Call(open, "ran", "w")),
    "getattr chain": pickle.dumps(Call(getattr, Call(__import__, "os"), "system")),
    "getattr on an admitted name": b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'__class__'\ntR.",
    "dotted name under numpy": b"\x80\x04cnumpy\nndarray.__class__\n.",
    "numpy scalar of objects": b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\nI0\nI1\ntRS'x'\ntR.",
    "numpy load": b"cnumpy\nload\n(S'ran'\ntR.",
    "numpy runs a string": b'cnumpy.testing\nrunstring\n(S\'open("ran","w")\'\n}tR.',
    "numpy from a file": b"cnumpy\nfromfile\n(S'ran'\ntR.",
    "object array": pickle.dumps(np.array([Call(os.system, "touch ran")], dtype=object)),
    "array of text": pickle.dumps(np.array(["a", "b"])),
    "array with fields": pickle.dumps(np.zeros(2, [("a", "f4")])),
    "array subclass": pickle.dumps(np.array([1.0]).view(np.matrix)),
    "memory map": b"cnumpy.core.memmap\nmemmap\n(S'ran'\ntR.",
    "calls ndarray": b"cnumpy\nndarray\n((I9999999999999\ntI00\ntR.",
    "calls list": b"cbuiltins\nlist\n(S'abc'\ntR.",
    "instance of an admitted class": b"(inumpy\nndarray\n.",
    "defaultdict of a function": b"ccollections\ndefaultdict\n(cos\nsystem\ntR.",
    "defaultdict of an admitted class": b"ccollections\ndefaultdict\n(cscipy.sparse.csr\ncsr_matrix\ntR.",
    "codecs": b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
    "codecs decode": b"c_codecs\ndecode\n(S'x'\nS'zlib'\ntR.",
    "functools": b"cfunctools\npartial\n(cos\nsystem\nS'touch ran'\ntR.",
    "operator": b"coperator\nattrgetter\n(S'system'\ntR.",
    "torch": b"ctorch.storage\n_load_from_bytes\n(S'x'\ntR.",
    "sparse of another kind": pickle.dumps(scipy.sparse.coo_matrix(np.eye(2))),
    "persistent object": b"Psomething\n.",
    "extension code": b"\x82\x01.",
    "set of something": b"\x80\x04\x8f(K\x01\x90.",
    "deep nesting": b"]" * 40 + b"a" * 39 + b".",
    "a list in itself": b"]\x940h\x00h\x00a.",
    "huge promise": pickle.dumps(np.zeros(4, np.uint8)).replace(b"K\x04\x85", b"J\xff\xff\xff\x7f\x85"),
    "negative shape": pickle.dumps(np.zeros(4, np.uint8)).replace(b"K\x04\x85", b"J\xfc\xff\xff\xff\x85"),
    "memo of 34 GB": b"]r\xff\xff\xff\x7f.",
    "memo of 34 GB in text": b"]p2147483647\n.",
    "negative memo": b"]p-1\n.",
    "memo beyond its opcodes": b"]q\x40.",
    "keys of deep tuples": b"}N" + b"\x85" * 1_000_000 + b"Ns.",
    "keys of deep pairs": b"}N" + b"N\x86" * 300_000 + b"Ns.",
    "keys of deep marked tuples": b"}" + b"(" * 300_000 + b"t" * 300_000 + b"Ns.",
    "deep tuples through the memo": b"}N" + b"\x85q\x000h\x00" * 300_000 + b"Ns.",
    "deep tuples through states of nothing": b"}N" + (b"\x85" * 20 + b"Nb") * 20_000 + b"Ns.",
    "deep tuples through empty appends": b"}N" + (b"\x85" * 20 + b"(e") * 20_000 + b"Ns.",
    "deep tuple as a byte order": b"cnumpy\ndtype\n(S'f4'\ntR(I3\nN" + b"\x85" * 300_000 + b"NNNtb.",
    "long bytes": b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"x.",
    "longer bytes": b"\x80\x04\x8e" + (2**64 - 1).to_bytes(8, "little") + b"x.",
    "long bytearray": b"\x80\x05\x96" + (2**36).to_bytes(8, "little") + b"x.",
    "long text": b"\x80\x04\x8d" + (2**36).to_bytes(8, "little") + b"x.",
    "long string": b"T\xff\xff\xff\x7fx.",
    "negative string": b"T\xff\xff\xff\xffx.",
    "long integer": b"\x8b\xff\xff\xff\x7f\x01.",
    "long integer in text": b"L" + b"9" * 10_000 + b"L\n.",
    "long frame": b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"N",
    "one megabyte ten thousand times": b"(V"
    + b"x" * 2**20
    + b"\nq\x010"
    + b"c_codecs\nencode\n(h\x01S'latin1'\ntR" * 10_000
    + b"l.",
    "state for a name": b"cnumpy\nndarray\n}S'__setstate__'\nI1\nsb.",
    "state for a class": b"cscipy.sparse.csr\ncsr_matrix\n}S'x'\nI1\nsb.",
    "slot state for a class": b"cnumpy\ndtype\n(N}S'code'\nS'O8'\nstb.",
}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_attacks_are_refused(name: str) -> None:
    with pytest.raises(DataFileError, match=r"^batch: "):
        loads(ATTACKS[name], FILE)


def test_attacks_would_have_worked() -> None:
    """The test can fail: a plain unpickler does resolve these names."""
    names = {arg for op, arg, _ in pickletools.genops(ATTACKS["posix.system by name"]) if op.name == "GLOBAL"}
    assert names == {"posix system"}
    assert pickle.loads(pickle.dumps(Call(eval, "1 + 1"))) == 2


def test_the_reason_is_told() -> None:
    with pytest.raises(UnsafeFileError, match=r"asks for .*system"):
        loads(ATTACKS["os.system"], FILE)
    with pytest.raises(UnsafeFileError, match="only plain numbers"):
        loads(ATTACKS["object array"], FILE)


@pytest.mark.parametrize("cut", [0, 1, 10, 100, -1])
def test_truncated(cut: int) -> None:
    content = pickle.dumps({"data": np.zeros(100, np.uint8), "labels": list(range(50))}, protocol=2)
    with pytest.raises(DamagedFileError, match="not a readable pickle"):
        loads(content[:cut], FILE)


def test_no_state_is_left_behind() -> None:
    """An attack that fails does not change how the next file is read."""
    for content in ATTACKS.values():
        with pytest.raises(DataFileError):
            loads(content, FILE)
    assert np.array_equal(loads(pickle.dumps(np.arange(3)), FILE), np.arange(3))


@pytest.mark.parametrize("protocol", range(6))
def test_what_python_writes_is_within_the_limits(protocol: int) -> None:
    """Long memos, nested tuples, long integers and many arrays, as picklers write them."""
    nested: object = ()
    for _ in range(10):
        nested = (nested, 1)
    items = [[f"{i}.png" for i in range(3000)], nested, [(i, i) for i in range(1000)], 1 << 5000, b"", "", [b"ab"] * 9]
    for item in (*items, [np.full(3, i, np.int16) for i in range(300)]):
        for content in (pickle.dumps(item, protocol), pickletools.optimize(pickle.dumps(item, protocol))):
            assert repr(loads(content, FILE)) == repr(item)


def test_python_2_wrote_memos_from_one_and_bytes_in_lines() -> None:
    old = b"(dp1\nS'data'\np2\nS'\\xff\\x00'\np3\nsS'labels'\np4\n(lp5\nI1\naI2\nas."
    assert loads(old, FILE) == {"data": "\xff\x00", "labels": [1, 2]}


def test_inconsistent_sparse_rows() -> None:
    rows = scipy.sparse.csr_matrix(np.eye(3))
    rows.indices = rows.indices + 7
    with pytest.raises(UnsafeFileError, match="inconsistent sparse matrix"):
        loads(pickle.dumps(rows, protocol=2), FILE)


def test_shared_parts_are_visited_once() -> None:
    """Ten levels of a thousand references to the next would be 10³⁰ visits."""
    level: list[object] = [1]
    for _ in range(10):
        level = [level] * 1000
    assert loads(pickle.dumps(level), FILE) is not None
