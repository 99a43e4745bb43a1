"""Python pickles as data: numpy arrays, sparse rows and plain containers, and nothing else.

A pickle is a program. This reader runs it with its hands tied: each name that the program may use is bound to a
stand-in of our own that only collects arguments, any other name ends the reading, and the arrays are made afterwards
from the collected pieces by `numpy.frombuffer`. The pickle never calls a function of numpy or scipy, so object arrays,
attribute chains and reducers with side effects get no hold.

Written for CIFAR's python version and Planetoid's `ind.*` files, both from Python 2 (text is decoded as Latin-1).
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn, TypeGuard

import numpy as np
import numpy.typing as npt
import scipy

from landscope.core.errors import DamagedFileError, UnsafeFileError

_DEPTH = 16
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class _RefusedError(Exception):
    """Carries the reason out of the unpickler."""


def _refuse(reason: str) -> NoReturn:
    raise _RefusedError(reason)


_SPARE = 2**20
_left: ContextVar[list[int]] = ContextVar("bytes that may still be copied out of the pickle")


def _spend(size: int) -> None:
    """Count bytes that are copied: a pickle may name the same megabyte a million times."""
    left = _left.get()
    left[0] -= size
    if left[0] < 0:
        _refuse("copies the same bytes over and over")


class _Name:
    """A name that may be mentioned but neither called nor changed: `numpy.ndarray`, `list`."""

    __slots__ = ()

    def __new__(cls, *_: object) -> NoReturn:
        _refuse(f"calls {cls.__name__.strip('_').lower()} directly")

    def __setstate__(self, state: object) -> NoReturn:
        _refuse("sets the state of a class")


class _Ndarray(_Name):
    __slots__ = ()


class _List(_Name):
    __slots__ = ()


class _Dtype:
    """Stand-in for `numpy.dtype(code, align, copy)`, numbers only."""

    __slots__ = ("_order", "code")

    def __init__(self, code: object, *_: object) -> None:
        text = code.decode("latin-1") if isinstance(code, bytes) else code
        if not isinstance(text, str) or text not in {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"}:
            _refuse(f"holds an array of type {text!r}; only plain numbers are admitted")
        self.code = text
        self._order = "|"

    def __setstate__(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) >= 5 and state[2:5] == (None, None, None)):
            _refuse("holds an array with fields or sub-arrays")
        order = state[1].decode("latin-1") if isinstance(state[1], bytes) else state[1]
        if order not in {"<", ">", "|", "="}:
            _refuse("holds an array of unknown byte order")
        self._order = order

    def numpy(self) -> np.dtype[np.generic]:
        return np.dtype(self._order + self.code)


class _Array:
    """Stand-in for an array: `_reconstruct(ndarray, (0,), b'b')`, then its state."""

    __slots__ = ("value",)

    def __init__(self, kind: object, *_: object) -> None:
        if kind is not _Ndarray:
            _refuse("builds a subclass of numpy.ndarray")
        self.value: npt.NDArray[np.generic] | None = None

    def __setstate__(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            _refuse("holds an array with an unknown state")
        _, shape, dtype, fortran, data = state
        self.value = _numbers(data, dtype, shape, "F" if fortran else "C")


class _SparseRows:
    """Stand-in for `scipy.sparse.csr_matrix`."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: dict[object, object] = {}

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict):
            _refuse("holds a sparse matrix with an unknown state")
        self.state = state


def _numbers(data: object, dtype: object, shape: object, order: object) -> npt.NDArray[np.generic]:
    if isinstance(data, str):
        _spend(len(data))
    raw = data.encode("latin-1") if isinstance(data, str) else data.value if isinstance(data, _Latin1) else data
    if not (isinstance(dtype, _Dtype) and isinstance(raw, bytes | bytearray) and order in {"C", "F"}):
        _refuse("holds an array whose data are not bytes of plain numbers")
    if not _is_shape(shape) or math.prod(shape) * dtype.numpy().itemsize != len(raw):
        _refuse(f"holds an array of shape {shape!r} in {len(raw)} bytes")
    _spend(len(raw))
    flat = np.frombuffer(raw, dtype.numpy())
    return flat.reshape(shape, order="F" if order == "F" else "C").copy()


def _is_shape(shape: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(shape, tuple) and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)


def _is_vector(item: object) -> TypeGuard[npt.NDArray[np.generic]]:
    return isinstance(item, np.ndarray) and item.ndim == 1


class _Frombuffer:
    """Stand-in for the array that protocol 5 writes as `_frombuffer(data, dtype, shape, order)`."""

    __slots__ = ("value",)

    def __init__(self, data: object, dtype: object, shape: object, order: object) -> None:
        self.value = _numbers(data, dtype, shape, order)

    def __setstate__(self, state: object) -> NoReturn:
        _refuse("changes an array after it is made")


class _Mapping:
    """Stand-in for `defaultdict(list)` and `OrderedDict()`, filled item by item."""

    __slots__ = ("items",)

    def __init__(self, factory: object = None) -> None:
        if factory is not None and factory is not _List:
            _refuse("holds a defaultdict of something else than lists")
        self.items: dict[object, object] = {}

    def __setitem__(self, key: object, value: object) -> None:
        self.items[key] = value

    def __setstate__(self, state: object) -> NoReturn:
        _refuse("sets the state of a dictionary")


class _Latin1:
    """Stand-in for `_codecs.encode(text, 'latin1')` and `bytes()`, how Python 3 writes bytes in protocol 2."""

    __slots__ = ("value",)

    def __init__(self, text: object = "", encoding: object = "latin1") -> None:
        if not isinstance(text, str) or encoding != "latin1":
            _refuse("encodes something else than Latin-1 text")
        _spend(len(text))
        self.value = text.encode("latin-1")

    def __setstate__(self, state: object) -> NoReturn:
        _refuse("sets the state of bytes")


_NAMES: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _Frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _Frombuffer,
    ("numpy", "ndarray"): _Ndarray,
    ("numpy", "dtype"): _Dtype,
    ("scipy.sparse.csr", "csr_matrix"): _SparseRows,
    ("scipy.sparse._csr", "csr_matrix"): _SparseRows,
    ("collections", "defaultdict"): _Mapping,
    ("collections", "OrderedDict"): _Mapping,
    ("__builtin__", "list"): _List,
    ("builtins", "list"): _List,
    ("_codecs", "encode"): _Latin1,
    ("__builtin__", "bytes"): _Latin1,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        try:
            return _NAMES[module, name]
        except KeyError:
            _refuse(f"asks for {module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        _refuse(f"asks for a persistent object {pid!r}")


def _resolve(item: object, done: dict[int, object], depth: int = 0) -> object:
    """Replace the stand-ins inside `item` by what they stand for; shared parts are visited once."""
    if isinstance(item, _PLAIN):
        return item
    if depth > _DEPTH:
        _refuse(f"nests containers more than {_DEPTH} deep")
    if id(item) in done:
        return done[id(item)]
    result: object
    if isinstance(item, _Array | _Frombuffer | _Latin1):
        result = item.value
    elif isinstance(item, _SparseRows):
        result = _csr(item.state, done, depth)
    elif isinstance(item, list):
        result = [_resolve(part, done, depth + 1) for part in item]
    elif isinstance(item, tuple):
        result = tuple(_resolve(part, done, depth + 1) for part in item)
    elif isinstance(item, dict | _Mapping):
        pairs = (item.items if isinstance(item, _Mapping) else item).items()
        if not all(isinstance(key, _PLAIN) for key, _ in pairs):
            _refuse("holds a dictionary whose keys are not plain values")
        result = {key: _resolve(value, done, depth + 1) for key, value in pairs}
    else:
        _refuse(f"leaves an unfinished {type(item).__name__.strip('_').lower()} behind")
    if result is None:
        _refuse("leaves an array without data behind")
    done[id(item)] = result
    return result


def _csr(state: dict[object, object], done: dict[int, object], depth: int) -> scipy.sparse.csr_matrix[np.float64]:
    data, indices, indptr = (_resolve(state.get(key), done, depth + 1) for key in ("data", "indices", "indptr"))
    shape = state.get("_shape")
    if not (_is_vector(data) and _is_vector(indices) and _is_vector(indptr) and _is_shape(shape) and len(shape) == 2):
        _refuse("holds an incomplete sparse matrix")
    _spend(8 * (data.size + indices.size + indptr.size))
    try:
        parts = data.astype(np.float64), indices.astype(np.int64), indptr.astype(np.int64)
        matrix = scipy.sparse.csr_matrix(parts, shape=(shape[0], shape[1]), dtype=np.float64)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        _refuse(f"holds an inconsistent sparse matrix ({error})")
    return matrix


def loads(content: bytes, path: Path) -> object:
    r"""Object in the pickle `content`, which was read from `path` (named in errors).

    >>> loads(pickle.dumps({"labels": [1, 2], "data": np.eye(2)}), Path("batch"))["data"].shape
    (2, 2)
    >>> loads(b"cos\nsystem\n(S'true'\ntR.", Path("batch"))
    Traceback (most recent call last):
    landscope.core.errors.UnsafeFileError: batch: the pickle asks for os.system; …
    """
    try:
        scan(content)
        _left.set([_SPARE + 16 * len(content)])
        return _resolve(_Unpickler(io.BytesIO(content), encoding="latin-1").load(), {})
    except _RefusedError as refusal:
        raise UnsafeFileError(
            f"{path}: the pickle {refusal}; only numbers, text, lists, dictionaries, numpy arrays and csr matrices are "
            "admitted. Do not use this file; get it again from its official home."
        ) from None
    except (
        pickle.UnpicklingError,
        EOFError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        KeyError,
        MemoryError,
        OverflowError,
        RecursionError,
        UnicodeError,
        struct.error,
    ) as error:
        raise DamagedFileError(f"{path}: is not a readable pickle ({type(error).__name__}: {error})") from error


# A scan of a pickle before it is run: counting alone finds what would exhaust memory or stack.
#
# Python's unpickler trusts three numbers of a pickle. It allocates the memo up to the largest index (one opcode, 34 GB),
# allocates strings of the declared length, and hashes tuples used as keys, which recurses as deep as they nest and kills the
# process. None of these need exceed what a pickle of this length can honestly use.


DEEPEST = 32
"""Tuples within tuples."""
_LINES = {"INST": 2, "GLOBAL": 2}
_SIZES = {
    pickletools.TAKEN_FROM_ARGUMENT1: "<B",
    pickletools.TAKEN_FROM_ARGUMENT4: "<i",
    pickletools.TAKEN_FROM_ARGUMENT4U: "<I",
    pickletools.TAKEN_FROM_ARGUMENT8U: "<Q",
}
_OPCODES = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
_MARK = -1


def scan(content: bytes) -> None:
    r"""Raise `ValueError` where the pickle `content` declares more than it has, or nests tuples too deep.

    >>> scan(b"]r\x00\x00\x00\x70.")
    Traceback (most recent call last):
    ValueError: the memo is asked for entry 1,879,048,192 by opcode 2
    """
    stack: list[int] = []  # how deep the tuple at each place is; 0 for all else
    memo: dict[int, int] = {}
    at = count = 0
    while True:
        if at >= len(content):
            raise ValueError("it ends before it stops")
        opcode = _OPCODES.get(content[at])
        if opcode is None:
            raise ValueError(f"byte {content[at]} at {at:,} is not an opcode")
        count += 1
        name = opcode.name
        argument, at = _argument(content, opcode, at + 1)
        if name == "STOP":
            return
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            index = len(memo) if name == "MEMOIZE" else _index(name, argument)
            if not 0 <= index <= count:
                raise ValueError(f"the memo is asked for entry {index:,} by opcode {count:,}")
            memo[index] = stack[-1] if stack else 0
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo.get(_index(name, argument), 0))
        elif name == "DUP":
            stack.append(stack[-1] if stack else 0)
        elif name == "MARK":
            stack.append(_MARK)
        else:
            # A container is as deep as what is in it, so that none can hide a tuple from the count.
            depth = max([0, *_popped(stack, opcode)]) + (pickletools.pytuple in opcode.stack_after)
            if depth > DEEPEST:
                raise ValueError(f"tuples are nested more than {DEEPEST} deep")
            stack.extend([depth] * len(opcode.stack_after))


def _argument(content: bytes, opcode: pickletools.OpcodeInfo, at: int) -> tuple[bytes, int]:
    """Argument of an opcode, which begins at `at`, and where the next opcode is."""
    if opcode.arg is None:
        return b"", at
    n = opcode.arg.n
    if n == pickletools.UP_TO_NEWLINE:
        stop = at
        for _ in range(_LINES.get(opcode.name, 1)):
            stop = content.find(b"\n", stop) + 1
            if not stop:
                raise ValueError(f"a line that begins at {at:,} does not end")
        return content[at:stop], stop
    if n < 0:
        form = _SIZES[n]
        n = struct.unpack(form, content[at : at + struct.calcsize(form)])[0]
        at += struct.calcsize(form)
    if not 0 <= n <= len(content) - at:
        raise ValueError(f"{n:,} bytes are promised at {at:,}, {len(content) - at:,} follow")
    return content[at : at + n] if n <= 8 else b"", at + n


def _index(name: str, argument: bytes) -> int:
    return int(argument) if name in ("PUT", "GET") else int.from_bytes(argument, "little")


def _popped(stack: list[int], opcode: pickletools.OpcodeInfo) -> list[int]:
    """Depths of what an opcode takes from the stack; what is missing there is left to the unpickler to notice."""
    before = opcode.stack_before
    taken: list[int] = []
    n = len(before)
    if pickletools.markobject in before:
        while stack and (depth := stack.pop()) != _MARK:
            taken.append(depth)
        n = before.index(pickletools.markobject)
    for _ in range(min(n, len(stack))):
        taken.append(stack.pop())
    return taken
