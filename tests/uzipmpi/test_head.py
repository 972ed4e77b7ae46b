"""The head of a message that goes in parts: what is one, and what is not."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from uzipmpi.algorithms.sendrecv import Parts
from uzipmpi.errors import FormatError
from uzipmpi.head import CRC, FIELDS, HEAD_BYTES, MAGIC, Head
from uzipmpi.typing import DType

HEAD = Head(DType.BFLOAT16, 1 << 40, 12345, Parts("split", 1 << 20, 777))


def resealed(message: bytearray) -> np.ndarray:
    CRC.pack_into(message, FIELDS.size, zlib.crc32(message[: FIELDS.size]))
    return np.frombuffer(bytes(message), np.uint8)


@pytest.mark.parametrize(
    "parts", [Parts("whole", 8), Parts("chunked", 1 << 33), HEAD.parts], ids=str
)
@pytest.mark.parametrize("dtype", list(DType))
def test_round_trip(dtype: DType, parts: Parts) -> None:
    head = Head(dtype, 24, 1, parts)
    message = head.pack()
    assert message.size == HEAD_BYTES == 136
    assert Head.unpack(message) == head


def test_every_flipped_bit_is_noticed() -> None:
    message = HEAD.pack()
    for bit in range(8 * HEAD_BYTES):
        flipped = message.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        if bit < 8 * len(MAGIC):
            assert Head.unpack(flipped) is None
        else:
            with pytest.raises(FormatError, match="damaged message head: expected CRC"):
                Head.unpack(flipped)


@pytest.mark.parametrize("size", [0, 1, 16, 135, 137, 200])
def test_other_lengths_are_plain_messages(size: int) -> None:
    message = np.resize(HEAD.pack(), size)
    assert Head.unpack(message) is None


@pytest.mark.parametrize(
    ("at", "value", "found"),
    [(16, 2, "version 2"), (18, 1, "transport 1"), (24, 1, "values of BFLOAT16"), (17, 9, "9")],
)
def test_a_head_that_we_cannot_follow(at: int, value: int, found: str) -> None:
    message = bytearray(HEAD.pack().tobytes())
    message[at] = value
    with pytest.raises(FormatError, match=found):
        Head.unpack(resealed(message))
