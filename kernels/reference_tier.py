"""Codec tier of the reference; see :mod:`.reference`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from uzipmpi.kernels.reference_header import (
    HEADER,
    TILE,
    Header,
    directory_of,
    group_entries,
    padded,
    require,
)
from uzipmpi.kernels.reference_planes import (
    VALUE_AT,
    Cursor,
    in_order,
    is_codable,
    join,
    mask_of,
    pack,
    pack_planes,
    pack_symbols,
    split,
    unpack,
    unpack_planes,
    unpack_symbols,
)
from uzipmpi.typing import Bytes

CODED, VERBATIM, CONSTANT, MASKED = 0, 1, 2, 3


def encode_body(values: Bytes, header: Header) -> tuple[bytes, bytes]:
    """Return the fixed part of a body (1 and 2 in FORMAT.md) and the rest of it (3 and 4)."""
    symbols, rest = split(values, header)
    n_ranks = sum((1 << width) - 1 for width in header.digit_widths)
    rank_of = np.full(1 << header.exponent_bits, n_ranks, np.uint64)
    for j, offset in enumerate(header.order[:n_ranks]):
        rank_of[(header.base + offset) % rank_of.size] = j
    rank = rank_of[symbols]
    planes = []
    for width in header.digit_widths:
        planes.append(pack(np.minimum(rank, mask_of(width)), width))
        escaped = rank >= mask_of(width)
        rank, symbols = rank[escaped] - mask_of(width), symbols[escaped]
    head = pack_planes(rest, header) + planes[0]
    return head, b"".join(planes[1:]) + pack_symbols(symbols, header)


def decode_body(n: int, header: Header, head: Cursor, tail: Cursor) -> Bytes:
    """Read the body of ``n`` values; with the packed layout both cursors are the same."""
    rest = unpack_planes(head, n, header)
    rank = np.zeros(n, np.uint64)
    escaped = np.arange(n)
    for level, width in enumerate(header.digit_widths):
        digits = unpack(tail if level else head, escaped.size, width)
        rank[escaped] += digits
        escaped = escaped[digits == mask_of(width)]
    offsets = np.array(header.order, np.uint64)[np.minimum(rank, np.uint64(15))]
    symbols = offsets + np.uint64(header.base) & mask_of(header.exponent_bits)
    symbols[escaped] = unpack_symbols(tail, escaped.size, header)
    return join(symbols, rest, header)


def encode_tile(tile: Bytes, kind: int, header: Header) -> tuple[bytes, bytes]:
    """Return head and tail of a tile of a given kind; with the packed layout all is tail."""
    if kind == VERBATIM:
        cut = 0 if header.packed else header.stride
        return tile[:cut].tobytes(), tile[cut:].tobytes()
    if kind == CONSTANT:
        value = tile[: header.itemsize].tobytes()
        return b"", value.ljust(16, b"\0") if any(value) else b""
    values = tile.reshape(TILE, header.itemsize)[VALUE_AT]
    mask = b""
    if kind == MASKED:
        present = np.any(values, axis=1)
        values, mask = values[present], pack(present.astype(np.uint64), 1)
    head, tail = encode_body(values.ravel(), header)
    if not header.packed:
        return head, tail
    whole = mask + head + tail
    return b"", whole.ljust(padded(len(whole)), b"\0")


def decode_tile(kind: int, header: Header, head: Bytes, tail: Bytes) -> Bytes:
    """Return the values of a tile from its head (empty when packed) and tail."""
    if kind == VERBATIM:
        tile: Bytes = np.concatenate([head, tail])
        expected = TILE * header.itemsize
        require(tile.size == expected, f"expected a raw tile of {expected}, found {tile.size}")
        return tile
    require(header.packed or kind == CODED, f"a tile of kind {kind} in the dense layout")
    if kind == CONSTANT:
        require(tail.size in (0, 16), f"expected a constant tile of 0 or 16, found {tail.size}")
        value = tail[: header.itemsize] if tail.size else np.zeros(header.itemsize, np.uint8)
        return np.tile(value, TILE)
    cursor = Cursor(tail)
    present = unpack(cursor, TILE, 1).astype(bool) if kind == MASKED else np.ones(TILE, bool)
    n = int(np.count_nonzero(present))
    values = np.zeros((TILE, header.itemsize), np.uint8)
    fixed_part = cursor if header.packed else Cursor(head)
    values[present] = decode_body(n, header, fixed_part, cursor).reshape(n, header.itemsize)
    used = padded(cursor.taken) if header.packed else cursor.taken
    require(used == tail.size, f"expected a tile of {used} bytes, found {tail.size}")
    return in_order(values, header)


def best_kind(tile: Bytes, header: Header) -> int:
    """Return the kind that makes a tile smallest, the lower number among equals."""
    codable = is_codable(split(tile, header)[1], header)
    kinds = [CODED, VERBATIM] if codable else [VERBATIM]
    if header.packed:
        values = tile.reshape(TILE, header.itemsize)
        kinds += [CONSTANT] if np.all(values == values[0]) else []
        kinds += [MASKED] if codable else []
    return min(kinds, key=lambda kind: (sum(map(len, encode_tile(tile, kind, header))), kind))


def encode_tier(tiles: Bytes, header: Header, kinds: Sequence[int] | None) -> Iterator[bytes]:
    """Yield heads, directory and tail section of a tier frame; the caller adds the remainder."""
    tiles = tiles.reshape(header.tiles, TILE * header.itemsize)
    if kinds is None:
        kinds = [best_kind(tile, header) for tile in tiles]
    coded = [encode_tile(tile, kind, header) for tile, kind in zip(tiles, kinds, strict=True)]
    yield b"".join(head for head, _ in coded)
    groups = [b"".join(tail for _, tail in coded[i : i + 8]) for i in range(0, len(coded), 8)]
    entries = (kind << 14 | len(tail) for kind, (_, tail) in zip(kinds, coded, strict=True))
    yield group_entries(groups) + np.fromiter(entries, "<u2").tobytes()
    yield b"".join(group.ljust(padded(len(group)), b"\0") for group in groups)


def decode_tier(frame: Bytes, header: Header) -> Iterator[Bytes]:
    """Yield the values of each tile."""
    stride = 0 if header.packed else header.stride
    offsets, entries = directory_of(frame, header)
    tails = frame[header.tails_at :]
    for group, offset in enumerate(offsets):
        cursor = Cursor(tails)
        cursor.take(16 * int(offset))
        for tile in range(8 * group, min(8 * group + 8, header.tiles)):
            head = frame[HEADER.size + tile * stride :][:stride]
            kind, size = divmod(int(entries[tile]), 1 << 14)
            yield decode_tile(kind, header, head, cursor.take(size))
