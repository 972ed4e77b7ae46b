"""What every message of a collective says about the call: a word that ranks compare.

Where ranks disagree about operation, algorithm, operator or root, those that receive a frame of
another call raise an error that names both. Data type and count stand in the frame itself.
"""

from __future__ import annotations

import struct
import zlib

from uzipmpi.algorithms.operators import AVG, MAX, MIN, PROD, SUM, Operator
from uzipmpi.typing import Bytes

__all__ = ["TRAILER_BYTES", "describe", "enroll", "pack_trailer", "unpack_trailer", "word"]

# A magic number, by which other bytes are not taken for a trailer; the call; frames to come.
_TRAILER = struct.Struct("<3I")
TRAILER_BYTES = _TRAILER.size
_MAGIC = 0x9E3779B1

# A word: 8 bits for the algorithm, 8 for the operator, 16 for the root.
_algorithms: list[str] = ["a message"]
_OPERATORS = (SUM, PROD, MIN, MAX, AVG)
_FIRST_USER_OPERATOR = 128
_ROOTS = (1 << 16) - 1


def enroll(operation: str, name: str) -> int:
    """Return the number of an algorithm; the same on all ranks, as all import the same modules."""
    _algorithms.append(f"{operation} ({name})")
    return len(_algorithms) - 1


def word(algorithm: int, op: Operator | None = None, root: int | None = None) -> int:
    """Return the word for a call of the algorithm with this number."""
    if op is None:
        operator = 0
    elif op in _OPERATORS:
        operator = _OPERATORS.index(op) + 1
    else:
        operator = _FIRST_USER_OPERATOR + zlib.crc32(op.name.encode()) % _FIRST_USER_OPERATOR
    return algorithm | operator << 8 | (0 if root is None else root % _ROOTS + 1) << 16


def describe(call: int) -> str:
    """Return in words what a word says."""
    algorithm, operator, root = call & 0xFF, call >> 8 & 0xFF, call >> 16
    known = algorithm < len(_algorithms)
    words = [_algorithms[algorithm] if known else f"something else, 0x{call:08x}"]
    if 0 < operator <= len(_OPERATORS):
        words.append(f"operator {_OPERATORS[operator - 1].name}")
    elif operator:
        words.append(f"user's operator no. {operator}")
    if root:
        words.append(f"root {root - 1}")
    return ", ".join(words)


def pack_trailer(buffer: Bytes, at: int, call: int, left: int) -> None:
    """Write what follows a frame: the word of the call, and how many frames are still to come."""
    _TRAILER.pack_into(buffer, at, _MAGIC, call, left)  # type: ignore[arg-type]


def unpack_trailer(buffer: Bytes, at: int) -> tuple[int, int] | None:
    """Return the word and the number of frames to come; None if these bytes are no trailer."""
    magic, call, left = _TRAILER.unpack_from(buffer, at)  # type: ignore[arg-type]
    return (call, left) if magic == _MAGIC else None
