"""Codec ans of the reference; see :mod:`.reference`."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from uzipmpi.kernels.reference_header import (
    HEADER,
    TILE,
    Header,
    directory_of,
    group_entries,
    padded,
    parse,
    require,
)
from uzipmpi.kernels.reference_planes import (
    VALUE_AT,
    Cursor,
    Words,
    in_order,
    join,
    mask_of,
    pack_planes,
    pack_symbols,
    split,
    unpack_planes,
    unpack_symbols,
)
from uzipmpi.typing import Bytes

BLOCK_HEADER = struct.Struct("<IHH")
CODED, VERBATIM = 0, 1
ESCAPE = np.uint64(15)
LANES = 32
TABLE_TOTAL = 4096
STATE_END = 1 << 16


def cumulate(table: npt.NDArray[Any]) -> Words:
    """Return the sum of the frequencies of smaller codes, for each code."""
    return np.concatenate([[0], np.cumsum(table)[:-1]]).astype(np.uint64)


def steps_of(codes: Words) -> Words:
    """Bring a tile's codes from the order ``half, lane, i`` into rows of ``half, i``, all lanes."""
    steps: Words = codes.reshape(2, LANES, -1).transpose(0, 2, 1).reshape(-1, LANES)
    return steps


def codes_of(steps: Words) -> Words:
    """Bring the steps of a tile back into the order of positions."""
    return steps.reshape(2, -1, LANES).transpose(0, 2, 1).ravel()


def encode_steps(codes: Words, table: npt.NDArray[Any]) -> tuple[bytes, bytes]:
    """Return the decoder's first states, and the words in the order it takes them.

    ``codes`` has one row per tile, by position.
    """
    cumulated, frequencies = cumulate(table), table.astype(np.uint64)
    state = np.full(LANES, STATE_END, np.uint64)
    words: list[Words] = []
    steps = np.concatenate([steps_of(tile) for tile in codes])
    for step in steps[::-1]:
        frequency = frequencies[step]
        full = state >= frequency << np.uint64(20)
        words.append(state[full] & np.uint64(0xFFFF))
        state[full] >>= np.uint64(16)
        slot = state % frequency + cumulated[step]
        state = state // frequency * np.uint64(TABLE_TOTAL) + slot
    return state.astype("<u4").tobytes(), np.concatenate(words[::-1]).astype("<u2").tobytes()


def decode_steps(state: Words, words: Words, n_steps: int, table: npt.NDArray[Any]) -> Words:
    """Return the codes of ``n_steps`` rows of lanes."""
    cumulated, frequencies = cumulate(table), table.astype(np.uint64)
    code_at = np.repeat(np.arange(256, dtype=np.uint64), table)
    steps = np.empty((n_steps, LANES), np.uint64)
    used = 0
    for step in steps:
        slot = state % np.uint64(TABLE_TOTAL)
        step[:] = code_at[slot]
        state = frequencies[step] * (state // np.uint64(TABLE_TOTAL)) + slot - cumulated[step]
        low = state < STATE_END
        needed = int(np.count_nonzero(low))
        require(used + needed <= words.size, f"a block needs more than its {words.size} words")
        state[low] = state[low] << np.uint64(16) | words[used : used + needed]
        used += needed
    require(used == words.size, f"a block used {used} of its {words.size} words")
    require(bool(np.all(state == STATE_END)), "a lane ends in another state than 2^16")
    return steps


def encode_block(
    tiles: Bytes, kind: int, header: Header, table: npt.NDArray[Any]
) -> tuple[bytes, bytes]:
    """Return the heads of a block's tiles, all in one, and the block in the tail section."""
    tiles = tiles.reshape(-1, TILE * header.itemsize)
    if kind == VERBATIM:
        heads, tails = tiles[:, : header.stride], tiles[:, header.stride :]
        return heads.tobytes(), BLOCK_HEADER.pack(0, 0, VERBATIM) + tails.tobytes()
    values = tiles.reshape(-1, TILE, header.itemsize)[:, VALUE_AT].reshape(len(tiles), -1)
    if header.byte_mode:
        states, words = encode_steps(values.astype(np.uint64), table)
        return b"", BLOCK_HEADER.pack(len(words) // 2, 0, CODED) + states + words
    symbols, rest = split(values.ravel(), header)
    offsets = symbols - np.uint64(header.base) & mask_of(header.exponent_bits)
    digits = np.minimum(offsets, ESCAPE)
    raw = symbols[digits == ESCAPE]
    codes = digits[0::2] | digits[1::2] << np.uint64(4)
    states, words = encode_steps(codes.reshape(len(tiles), -1), table)
    packed_heads = b"".join(pack_planes(r, header) for r in rest.reshape(len(tiles), -1))
    sizes = BLOCK_HEADER.pack(len(words) // 2, raw.size, CODED)
    return packed_heads, sizes + states + words + pack_symbols(raw, header)


def decode_block(
    n_tiles: int, header: Header, head: Bytes, block: Cursor, table: npt.NDArray[Any]
) -> Bytes:
    """Return the values of a block."""
    n_words, n_raw, kind = BLOCK_HEADER.unpack(block.take(BLOCK_HEADER.size).tobytes())
    require(kind in (CODED, VERBATIM), f"expected a block of kind 0 or 1, found {kind}")
    heads = head.reshape(n_tiles, header.stride)
    if kind == VERBATIM:
        require(n_words == n_raw == 0, "a raw block with words or raw symbols")
        tails = block.take(n_tiles * (TILE * header.itemsize - header.stride))
        return np.concatenate([heads, tails.reshape(n_tiles, -1)], axis=1).ravel()
    states = block.take(4 * LANES).copy().view("<u4").astype(np.uint64)
    words = block.take(2 * n_words).copy().view("<u2").astype(np.uint64)
    require(n_raw == 0 or not header.byte_mode, "raw symbols in byte mode")
    steps_per_tile = TILE // LANES // (1 if header.byte_mode else 2)
    steps = decode_steps(states, words, n_tiles * steps_per_tile, table)
    codes = np.concatenate([codes_of(s) for s in steps.reshape(n_tiles, -1, LANES)])
    if header.byte_mode:
        values: Bytes = codes.astype(np.uint8)
    else:
        digits = np.stack([codes & np.uint64(15), codes >> np.uint64(4)], axis=1).ravel()
        symbols = digits + np.uint64(header.base) & mask_of(header.exponent_bits)
        escaped = digits == ESCAPE
        found = int(np.count_nonzero(escaped))
        require(found == n_raw, f"{found} escapes in a block of {n_raw} raw symbols")
        symbols[escaped] = unpack_symbols(block, n_raw, header)
        rest = np.concatenate([unpack_planes(Cursor(h), TILE, header) for h in heads])
        values = join(symbols, rest, header)
    return np.concatenate([in_order(v, header) for v in values.reshape(n_tiles, -1)])


def encode_ans(
    tiles: Bytes, header: Header, kinds: Sequence[int] | None, table: npt.NDArray[Any]
) -> Iterator[bytes]:
    """Yield heads, table and directory, and tail section; the caller adds the remainder."""
    size = TILE * header.itemsize << header.menu
    blocks = [tiles[i : i + size] for i in range(0, tiles.size, size)]
    kinds = [CODED] * len(blocks) if kinds is None else kinds
    coded = [encode_block(b, k, header, table) for b, k in zip(blocks, kinds, strict=True)]
    yield b"".join(heads for heads, _ in coded)
    yield table.astype("<u2").tobytes() + group_entries([block for _, block in coded])
    yield b"".join(block.ljust(padded(len(block)), b"\0") for _, block in coded)


def decode_ans(frame: Bytes, header: Header) -> Iterator[Bytes]:
    """Yield the values of each block."""
    table = table_of(frame)
    require(int(table.sum()) == TABLE_TOTAL, f"a table that adds up to {table.sum()}")
    require(int(table.max()) < TABLE_TOTAL, "a frequency of 4096")
    offsets, _ = directory_of(frame, header)
    for block, offset in enumerate(offsets):
        first = block << header.menu
        n_tiles = min(1 << header.menu, header.tiles - first)
        cursor = Cursor(frame[header.tails_at :])
        cursor.take(16 * int(offset))
        head = frame[HEADER.size + first * header.stride :][: n_tiles * header.stride]
        yield decode_block(n_tiles, header, head, cursor, table)


def table_of(frame: Bytes) -> npt.NDArray[np.uint16]:
    """Return the 256 frequencies of a valid ans frame."""
    table_at = parse(frame).table_at
    return frame[table_at : table_at + 512].copy().view("<u2")
