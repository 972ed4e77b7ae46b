"""A slow, readable codec in NumPy, written from FORMAT.md alone and in its order.

The tests hold the compiled codec against it, byte for byte. Where the format leaves a choice to the
encoder (parameters, kinds of tiles, table), the choice is an argument here: :func:`parse`,
:func:`kinds_of` and :func:`table_of` read it from a frame of another encoder.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from uzipmpi.kernels.reference_ans import BLOCK_HEADER, decode_ans, encode_ans, table_of
from uzipmpi.kernels.reference_header import (
    HEADER,
    RAW,
    TIER,
    TILE,
    Header,
    checksum,
    directory_of,
    padded,
    parse,
    require,
)
from uzipmpi.kernels.reference_tier import decode_tier, encode_tier
from uzipmpi.typing import Bytes, Tensor

__all__ = ["Header", "checksum", "decode", "encode", "kinds_of", "parse", "table_of"]


def encode(
    tensor: Tensor,
    header: Header,
    *,
    kinds: Sequence[int] | None = None,
    table: npt.NDArray[Any] | None = None,
) -> Bytes:
    """Encode a tensor with the parameters of a header.

    Parameters
    ----------
    tensor
        What to encode; its dtype must be the header's.
    header
        The parameters; count, sizes and checksum are computed.
    kinds
        The kind of each tile (tier) or block (ans). Left out: the smallest for tier, coded for ans.
    table
        256 frequencies (ans), at least 1 for every code that occurs.

    Returns
    -------
    Bytes
        The frame.
    """
    header = replace(header, count=tensor.count)
    cut = header.tiles * TILE * header.itemsize
    tiles, remainder = tensor.memory[:cut], tensor.memory[cut:].tobytes()
    if header.codec == RAW:
        sections = [tensor.memory.tobytes()]
    else:
        if header.codec == TIER:
            heads, directory, tails = encode_tier(tiles, header, kinds)
        else:
            if table is None:
                raise ValueError("expected a table of frequencies for codec ans, found none")
            heads, directory, tails = encode_ans(tiles, header, kinds, table)
        fixed = [part.ljust(padded(len(part)), b"\0") for part in (heads, remainder, directory)]
        sections = [*fixed, tails]
        header = replace(header, body_bytes=len(tails))
    frame_bytes = HEADER.size + sum(map(len, sections))
    header = replace(header, frame_bytes=frame_bytes, checksum=0)
    frame = np.frombuffer(b"".join([header.to_bytes(), *sections]), np.uint8).copy()
    if header.has_checksum:
        frame[24:32] = np.frombuffer(struct.pack("<Q", checksum(frame)), np.uint8)
    return frame


def decode(frame: Bytes, *, verify: bool = False) -> Tensor:
    """Decode a frame.

    Parameters
    ----------
    frame
        Exactly the bytes of one frame, however damaged.
    verify
        Demand a checksum, and that it is right.

    Raises
    ------
    FormatError
        If the frame breaks a rule of FORMAT.md.
    """
    header = parse(frame)
    if verify:
        require(header.has_checksum, "expected a checksum, found none")
        found = checksum(frame)
        require(found == header.checksum, f"expected checksum {header.checksum}, found {found}")
    if header.codec == RAW:
        return Tensor(frame[HEADER.size :].copy(), header.dtype)
    tiles = decode_tier(frame, header) if header.codec == TIER else decode_ans(frame, header)
    remainder = frame[header.remainder_at :][: header.remainder_bytes]
    return Tensor(np.concatenate([*tiles, remainder]), header.dtype)


def kinds_of(frame: Bytes) -> list[int]:
    """Return the kind of each tile (tier) or block (ans) of a valid frame; nothing for raw."""
    header = parse(frame)
    if header.codec == RAW:
        return []
    offsets, entries = directory_of(frame, header)
    if header.codec == TIER:
        return [int(entry) >> 14 for entry in entries]
    blocks = (frame[header.tails_at + 16 * int(offset) :] for offset in offsets)
    return [BLOCK_HEADER.unpack(block[: BLOCK_HEADER.size].tobytes())[2] for block in blocks]
