"""Headers that promise the absurd are refused before any memory is taken; what means "none" is taken for none."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from data_samples import SAMPLES, nifti_bytes, planetoid_parts

from landscope.core.errors import DamagedFileError
from landscope.data import load
from landscope.data.formats import parse_npy, parse_npz, parse_planetoid, parse_python
from landscope.data.sets.skull_volumes import parse_nifti
from landscope.data.sets.svhn import parse_svhn

FILE = Path("folder") / "file"


@contextmanager
def little_memory(most: int = 2**22) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def npy(header: str, data: bytes = b"\0" * 64, version: bytes = b"\1\0") -> bytes:
    text = header.encode("latin-1")
    size = struct.pack("<H" if version == b"\1\0" else "<I", len(text))
    return b"\x93NUMPY" + version + size + text + data


def described(descr: object = "<f4", shape: object = (16,), order: object = False) -> str:
    return f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape!r}, }}\n"


BAD_NPY = {
    "a million million": npy(described(shape=(10**12,))),
    "beyond any integer": npy(described(shape=(10**30,))),
    "wraps around": npy(described(shape=(2**32, 2**32))),
    "nothing of the absurd": npy(described(shape=(0, 10**30))),
    "negative": npy(described(shape=(-16,))),
    "twice negative": npy(described(shape=(-4, -4))),
    "not a shape": npy(described(shape="16")),
    "fractional": npy(described(shape=(16.0,))),
    "too many dimensions": npy(described(shape=(1,) * 60)),
    "one too many": npy(described(shape=(17,))),
    "objects": npy(described("|O", (1,))),
    "text": npy(described("<U4", (4,))),
    "empty text": npy(described("|S0", (10**12,))),
    "records": npy(described([("a", "<f4")], (16,))),
    "rows in rows": npy(described(("<f4", (4,)), (4,))),
    "no type": npy(described("nonsense")),
    "no order": npy(described(order="F")),
    "deep": npy("(" * 5000),
    "deep lists": npy("[" * 200 + "]" * 200),
    "a call": npy("__import__('os').getcwd()"),
    "half a header": npy(described())[:20],
    "half a token": npy("{'descr': '''"),
    "cut": npy(described())[:-1],
    "no magic": b"NUMPY" + npy(described())[6:],
    "unknown version": npy(described(), version=b"\7\0"),
    "empty": b"",
}


@pytest.mark.parametrize("name", BAD_NPY)
def test_absurd_npy(name: str) -> None:
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("volume.npy", BAD_NPY[name])
    with little_memory(), pytest.raises(DamagedFileError, match="folder.file: "):
        parse_npy(BAD_NPY[name], FILE)
    with little_memory(), pytest.raises(DamagedFileError, match="folder.file: "):
        parse_npz(zipped.getvalue(), FILE, "volume")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", ["?", "u1", "<i2", ">i4", "<f4", ">f8", "<c8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_npy_is_what_numpy_reads(shape: tuple[int, ...], dtype: str, version: tuple[int, int]) -> None:
    whole = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    for array in (whole, np.asfortranarray(whole)):
        stream = io.BytesIO()
        np.lib.format.write_array(stream, array, version=version)
        ours, theirs = parse_npy(stream.getvalue(), FILE), np.load(io.BytesIO(stream.getvalue()))
        assert (ours.dtype, ours.shape, ours.flags.f_contiguous) == (
            array.dtype,
            theirs.shape,
            theirs.flags.f_contiguous,
        )
        assert np.array_equal(ours, theirs)
        assert ours.flags.writeable


def test_an_npz_that_is_a_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, volume=np.zeros(2**23, np.uint8))
    assert parse_npz(stream.getvalue(), FILE, "volume").size == 2**23
    monkeypatch.setattr("landscope.data.formats.LARGEST", 2**20)
    with little_memory(), pytest.raises(DamagedFileError, match="unpacks to 8,388,736 bytes"):
        parse_npz(stream.getvalue(), FILE, "volume")
    with pytest.raises(DamagedFileError, match=r"expected a \.npy file, got a \.npz"):
        parse_npy(stream.getvalue(), FILE)


def nifti(offset: float = 352.0, slope: float = 1.0, intercept: float = 0.0, order: str = "<", **at: float) -> bytes:
    content = bytearray(nifti_bytes(np.arange(60, dtype=np.int16).reshape(3, 4, 5), order))
    struct.pack_into(f"{order}3f", content, 108, offset, slope, intercept)
    for place, value in at.items():
        struct.pack_into(f"{order}f", content, int(place[1:]), value)
    return bytes(content)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    "offset", [math.nan, math.inf, -math.inf, -352.0, 0.0, -0.0, 347.0, 352.5, 353.0, 473.0, 1e30, 3e38, 2.0**63]
)
def test_offsets_of_nifti(offset: float, order: str) -> None:
    with pytest.raises(DamagedFileError, match="folder.file: "):
        parse_nifti(nifti(offset, order=order), FILE)


@pytest.mark.parametrize(
    ("slope", "intercept", "scale", "shift"),
    [
        (1.0, 0.0, 1.0, 0.0),
        (0.0, 0.0, 1.0, 0.0),
        (0.0, 7.0, 1.0, 0.0),
        (-0.0, 7.0, 1.0, 0.0),
        (math.nan, 7.0, 1.0, 0.0),
        (math.nan, math.nan, 1.0, 0.0),
        (math.inf, 7.0, 1.0, 0.0),
        (-math.inf, 7.0, 1.0, 0.0),
        (2.0, math.nan, 2.0, 0.0),
        (1.0, 7.0, 1.0, 7.0),
        (-2.0, 1.0, -2.0, 1.0),
    ],
)
def test_scalings_of_nifti(slope: float, intercept: float, scale: float, shift: float) -> None:
    voxels = parse_nifti(nifti(slope=slope, intercept=intercept), FILE).voxels
    assert np.array_equal(voxels, scale * np.arange(60.0).reshape(3, 4, 5) + shift)


@pytest.mark.parametrize("bad", [{"intercept": math.inf}, {"_80": math.nan}, {"_84": math.inf}, {"_88": -math.inf}])
def test_numbers_of_nifti_that_are_not_finite(bad: dict[str, float]) -> None:
    with pytest.raises(DamagedFileError, match="must be finite"):
        parse_nifti(nifti(**bad), FILE)


@pytest.mark.parametrize(
    "dims", [(3, 32767, 32767, 32767), (3, -1, 4, 5), (8, 5, 4, 3), (-3, 5, 4, 3), (7, 5, 4, 3, 9)]
)
def test_absurd_dimensions_of_nifti(dims: tuple[int, ...]) -> None:
    content = bytearray(nifti())
    struct.pack_into("<8h", content, 40, *dims, *[1] * (8 - len(dims)))
    with little_memory(), pytest.raises(DamagedFileError, match="folder.file: "):
        parse_nifti(bytes(content), FILE)


def mat(zipped: bool, **variables: object) -> bytes:
    stream = io.BytesIO()
    scipy.io.savemat(stream, variables, do_compression=zipped)
    return stream.getvalue()


IMAGES = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_mat_is_what_scipy_reads(dtype: str, zipped: bool) -> None:
    labels = np.array([[1], [10], [9], [2]]).astype(dtype)
    others = {"note": "text", "more": {"a": np.eye(3)}, "z": np.array([1j])}
    content = mat(zipped, **others, X=IMAGES, last=scipy.sparse.eye_array(3).tocsc(), y=labels)
    theirs = scipy.io.loadmat(io.BytesIO(content))
    images, digits = parse_svhn(content, FILE)
    assert np.array_equal(images, theirs["X"].transpose(3, 2, 0, 1))
    assert np.array_equal(digits, theirs["y"].ravel() % 10)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_changed_byte_of_mat_never_ends_the_process(zipped: bool) -> None:
    """Every byte of the headers, in several ways; many of these end a process that reads them with scipy."""
    content = mat(zipped, X=IMAGES[..., :1], y=np.array([[1]]))
    ends = [*range(400), *range(len(content) - 100, len(content))]
    for at in ends:
        for value in (0, 0xFF, content[at] ^ 1, content[at] ^ 0x80):
            changed = content[:at] + bytes([value]) + content[at + 1 :]
            try:
                parse_svhn(changed, FILE)
            except DamagedFileError:
                continue


@pytest.mark.parametrize(
    ("labels", "words"), [([[1.5], [1], [1], [1]], "not whole"), ([[math.nan], [1], [1], [1]], "outside 1")]
)
def test_labels_of_mat(labels: object, words: str) -> None:
    with pytest.raises(DamagedFileError, match=words):
        parse_svhn(mat(False, X=IMAGES, y=np.array(labels)), FILE)


@pytest.mark.parametrize("promised", [48, 2**20, 2**32 - 1])
def test_a_mat_that_is_a_bomb(promised: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of zeros behind the header of a variable, which promises something else."""
    monkeypatch.setattr("landscope.data.sets.svhn.LARGEST", 2**24)
    plain = mat(False, X=IMAGES)
    body = zlib.compress(struct.pack("<II", 14, promised) + plain[136:192] + b"\0" * 2**26)
    content = plain[:128] + struct.pack("<II", 15, len(body)) + body
    with little_memory(), pytest.raises(DamagedFileError, match="not a readable MATLAB file"):
        parse_svhn(content, FILE)


def read_parts(parts: dict[str, object]) -> Callable[[str], bytes]:
    return lambda part: value if isinstance(value := parts[part], bytes) else pickle.dumps(value, protocol=2)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("allx", scipy.sparse.csr_matrix(([], [], np.zeros(521, np.int64)), shape=(520, 10**12))),
        ("test.index", b"9" * 30),
        ("ty", np.full((10, 3), 1 / 3)),
        ("ty", np.array([[2, -1, 0]] * 10)),
        ("graph", {0: [10**30]}),
        ("graph", {0: [[1]]}),
        ("graph", {0: [np.eye(2)]}),
        ("graph", {"a": ["b"]}),
        ("graph", {}),
        ("graph", {0: [None]}),
        ("graph", {True: [1]}),
    ],
)
def test_odd_planetoid(part: str, value: object) -> None:
    parts = {**planetoid_parts(np.random.default_rng(0)), part: value}
    with pytest.raises(DamagedFileError, match=f"{part}: "):
        parse_planetoid(read_parts(parts), Path, n_validation=100)


def test_labels_beyond_any_integer() -> None:
    batch = {"data": np.zeros((1, 3072), np.uint8), "labels": [10**400]}
    with pytest.raises(DamagedFileError, match="outside 0 … 9"):
        parse_python(pickle.dumps(batch, protocol=2), FILE, "labels", 10)


@pytest.mark.parametrize("spacing", [1e-30, 1e-3, 1e3, 1e30])
def test_a_head_has_the_size_of_one(spacing: float, sample_roots: dict[str, Path], tmp_path: Path) -> None:
    """The volume is resampled to millimetres, which takes memory by the size that its header promises."""
    content = bytearray(gzip.decompress((sample_roots["skulls"] / "head" / "ch2.nii.gz").read_bytes()))
    struct.pack_into("<f", content, 80, spacing)
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "ch2.nii").write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"ch2\.nii: .* mm.*expected a head"):
        load("skulls", root=tmp_path, verify=False, **SAMPLES["skulls"][1])
