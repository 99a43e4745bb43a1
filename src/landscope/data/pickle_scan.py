"""A look through a pickle before it is run: what would exhaust memory or stack is found by counting alone.

Python's unpickler trusts three numbers of a pickle. It makes room for the memo up to the largest index (one opcode, 34 GB),
makes room for strings of the promised length, and hashes a tuple that is a key, which for tuples in tuples in tuples goes as
deep as they do and ends the process. None of them needs to be more than what a pickle of this length can honestly use.
"""

from __future__ import annotations

import pickletools
import struct

__all__ = ["scan"]

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
    r"""Raise `ValueError` where the pickle `content` promises more than it has, or nests tuples too deep.

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
