"""The reference codec's values, planes and bytes; see :mod:`.reference`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from uzipmpi.kernels.reference_header import TILE, Header, require
from uzipmpi.typing import Bytes

Words = npt.NDArray[np.uint64]  # one field per value, whatever its width
# Index: position in a plane; value: place in the tile.
VALUE_AT = np.arange(TILE).reshape(2, 2, 32, 8).transpose(0, 2, 1, 3).ravel()


class Cursor:
    """Takes bytes from the front of a region and never past its end."""

    def __init__(self, region: Bytes) -> None:
        self.region = region
        self.taken = 0

    def take(self, size: int) -> Bytes:
        """Return the next ``size`` bytes."""
        left = self.region.size - self.taken
        require(size <= left, f"expected {size} bytes more, found {left}")
        self.taken += size
        return self.region[self.taken - size : self.taken]


def split(values: Bytes, header: Header) -> tuple[Words, Words]:
    """Return symbol and rest of each value."""
    words = values.view(f"<u{header.itemsize}").astype(np.uint64)
    sign = words >> np.uint64(8 * header.itemsize - 1)
    mantissa = words & np.uint64((1 << header.mantissa_bits) - 1)
    symbols = words >> np.uint64(header.mantissa_bits) & np.uint64((1 << header.exponent_bits) - 1)
    return symbols, sign << np.uint64(header.mantissa_bits) | mantissa


def join(symbols: Words, rest: Words, header: Header) -> Bytes:
    """Return the values' bytes: the inverse of :func:`split`."""
    mantissa_bits = np.uint64(header.mantissa_bits)
    sign = rest >> mantissa_bits
    mantissa = rest & np.uint64((1 << header.mantissa_bits) - 1)
    words = sign << np.uint64(8 * header.itemsize - 1) | symbols << mantissa_bits | mantissa
    values: Bytes = words.astype(f"<u{header.itemsize}").view(np.uint8)
    return values


def pack(fields: Words, width: int) -> bytes:
    """Return a plane of 1, 2, 4 or 8 bit fields; 3 bits are a plane of two and a plane of one."""
    if width == 3:
        return pack(fields & np.uint64(3), 2) + pack(fields >> np.uint64(2), 1)
    bits = fields[:, None] >> np.arange(width, dtype=np.uint64) & np.uint64(1)
    return np.packbits(bits.astype(np.uint8).ravel(), bitorder="little").tobytes()


def unpack(source: Cursor, n: int, width: int) -> Words:
    """Read a plane of ``n`` fields: the inverse of :func:`pack`."""
    if width == 3:
        return unpack(source, n, 2) | unpack(source, n, 1) << np.uint64(2)
    plane = source.take(-(-width * n // 8))
    bits = np.unpackbits(plane, count=width * n, bitorder="little").reshape(n, width)
    places = np.arange(width, dtype=np.uint64)
    fields: Words = np.sum(bits.astype(np.uint64) << places, axis=1, dtype=np.uint64)
    return fields


def pack_planes(rest: Words, header: Header) -> bytes:
    """Return the stored planes of the rests.

    Raises
    ------
    ValueError
        If a plane that is not stored is not zero.
    """
    if not is_codable(rest, header):
        raise ValueError(f"expected zeros in the planes {header.zero_planes:#b}, found others")
    return b"".join(pack(rest >> np.uint64(low) & mask_of(w), w) for low, w in header.planes)


def is_codable(rest: Words, header: Header) -> bool:
    """Tell whether the planes that are not stored are zero."""
    dropped = sum(0xFF << 8 * plane for plane in range(8) if header.zero_planes >> plane & 1)
    return not np.any(rest & np.uint64(dropped))


def unpack_planes(source: Cursor, n: int, header: Header) -> Words:
    """Read ``n`` rests; planes that are not stored are zero."""
    rest = np.zeros(n, np.uint64)
    for low, width in header.planes:
        rest |= unpack(source, n, width) << np.uint64(low)
    return rest


def mask_of(width: int) -> np.uint64:
    """Return ``width`` set bits."""
    return np.uint64((1 << width) - 1)


def pack_symbols(symbols: Words, header: Header) -> bytes:
    """Return symbols written raw."""
    return symbols.astype(f"<u{header.symbol_bytes}").tobytes()


def unpack_symbols(source: Cursor, n: int, header: Header) -> Words:
    """Read symbols written raw, modulo the number of symbols."""
    symbols = source.take(n * header.symbol_bytes).copy().view(f"<u{header.symbol_bytes}")
    return symbols.astype(np.uint64) & mask_of(header.exponent_bits)


def in_order(values: Bytes, header: Header) -> Bytes:
    """Bring a tile's values from the order of positions to their own."""
    tile = np.empty((TILE, header.itemsize), np.uint8)
    tile[VALUE_AT] = values.reshape(TILE, header.itemsize)
    flat: Bytes = tile.ravel()
    return flat
