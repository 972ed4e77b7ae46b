"""The reference codec's header, layout, checksum and directory; see :mod:`.reference`."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from uzipmpi.errors import FormatError
from uzipmpi.typing import Bytes, DType

__all__ = ["Header", "checksum", "directory_of", "group_entries", "padded", "parse", "require"]

RAW, TIER, ANS = 0, 1, 2
HEADER = struct.Struct("<4s4B3Q2BHQIQQ")
TILE = 1024
EXPONENT_BITS = {
    DType.BFLOAT16: 8,
    DType.FLOAT16: 5,
    DType.FLOAT32: 8,
    DType.FLOAT64: 11,
    DType.FLOAT8_E4M3FN: 4,
    DType.FLOAT8_E5M2: 5,
}
MENU = ((4,), (3,), (2, 2, 2), (2, 2, 3), (2, 1, 2, 2), (1, 2, 3), (1, 1, 1, 2, 3), (3, 2, 2))


def require(holds: bool, message: str) -> None:
    """Raise a FormatError unless a rule of the format holds."""
    if not holds:
        raise FormatError(message)


def padded(size: int) -> int:
    """Return a size rounded up to a multiple of 16 bytes."""
    return -(-size // 16) * 16


@dataclass(frozen=True)
class Header:
    """What the first 64 bytes say, and the layout that follows from it.

    Parameters
    ----------
    dtype, codec, packed, menu, zero_planes, base, order
        The parameters of a frame; ``codec`` is the number in FORMAT.md, ``order`` has 16 places for
        tier and is empty for the others.
    has_checksum, checksum, count, frame_bytes, body_bytes
        The rest of the header.
    """

    dtype: DType
    codec: int
    packed: bool = False
    menu: int = 0
    zero_planes: int = 0
    base: int = 0
    order: tuple[int, ...] = ()
    has_checksum: bool = False
    checksum: int = 0
    count: int = 0
    frame_bytes: int = 0
    body_bytes: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return self.dtype.itemsize

    @property
    def byte_mode(self) -> bool:
        """Whether ans codes whole values."""
        return self.itemsize == 1

    @property
    def exponent_bits(self) -> int:
        """Width of a symbol."""
        return EXPONENT_BITS[self.dtype]

    @property
    def mantissa_bits(self) -> int:
        """Width of the mantissa field."""
        return 8 * self.itemsize - self.exponent_bits - 1

    @property
    def symbol_bytes(self) -> int:
        """Bytes of a symbol written raw."""
        return 2 if self.exponent_bits > 8 else 1

    @property
    def tiles(self) -> int:
        """Number of whole tiles."""
        return self.count // TILE

    @property
    def remainder_bytes(self) -> int:
        """Bytes of the values after the last whole tile."""
        return self.count % TILE * self.itemsize

    @property
    def tiles_per_group(self) -> int:
        """Tiles in a unit of placement."""
        return 8 if self.codec == TIER else 1 << self.menu

    @property
    def groups(self) -> int:
        """Number of units of placement."""
        return -(-self.tiles // self.tiles_per_group)

    @property
    def planes(self) -> list[tuple[int, int]]:
        """Lowest bit and width of every stored plane of the rest."""
        byte_planes, left = divmod(self.mantissa_bits + 1, 8)
        planes = [(8 * i, 8) for i in range(byte_planes) if not self.zero_planes >> i & 1]
        low = 8 * byte_planes
        for width in (4, 2, 1):
            if left & width:
                planes.append((low, width))
                low += width
        return planes

    @property
    def digit_widths(self) -> tuple[int, ...]:
        """Widths of the digits of the levels."""
        return MENU[self.menu]

    @property
    def stride(self) -> int:
        """Bytes of a tile's head."""
        if self.codec == ANS and self.byte_mode:
            return 0
        first_digit = self.digit_widths[0] if self.codec == TIER else 0
        return (sum(width for _, width in self.planes) + first_digit) * TILE // 8

    @property
    def remainder_at(self) -> int:
        """Offset of the remainder."""
        return HEADER.size + (0 if self.packed else self.tiles * self.stride)

    @property
    def table_at(self) -> int:
        """Offset of the table of ans."""
        return self.remainder_at + padded(self.remainder_bytes)

    @property
    def directory_at(self) -> int:
        """Offset of the directory."""
        return self.table_at + (512 if self.codec == ANS else 0)

    @property
    def tails_at(self) -> int:
        """Offset of the tail section."""
        entries = 4 * self.groups + (2 * self.tiles if self.codec == TIER else 0)
        return self.directory_at + padded(entries)

    def to_bytes(self) -> bytes:
        """Return the 64 bytes."""
        flags = self.has_checksum | self.packed << 1
        order = sum(offset << 4 * rank for rank, offset in enumerate(self.order))
        fields = (self.menu, self.zero_planes, self.base, order, 0, self.body_bytes, 0)
        sizes = (self.count, self.frame_bytes, self.checksum)
        return HEADER.pack(b"UZIP", 1, self.dtype, self.codec, flags, *sizes, *fields)


def parse(frame: Bytes) -> Header:
    """Read and check a header, and that the sections add up to the bytes given.

    Parameters
    ----------
    frame
        Exactly the bytes of one frame.

    Raises
    ------
    FormatError
        If the header breaks a rule of FORMAT.md.
    """
    require(frame.size >= HEADER.size, f"expected a header of 64 bytes, found {frame.size} bytes")
    magic, version, dtype, codec, flags, *fields = HEADER.unpack(frame[: HEADER.size].tobytes())
    count, frame_bytes, stored, menu, zero_planes, base, order, zero0, body_bytes, zero1 = fields
    require(magic == b"UZIP", f"expected magic UZIP, found {magic!r}")
    require(version == 1, f"expected version 1, found {version}")
    require(dtype in DType.__members__.values(), f"expected a dtype code 0..6, found {dtype}")
    require(codec in (RAW, TIER, ANS), f"expected codec 0, 1 or 2, found {codec}")
    require(flags <= (3 if codec == TIER else 1), f"flags {flags:#x} are unknown to codec {codec}")
    require(zero0 == zero1 == 0, "a reserved field is not zero")
    require(flags & 1 or stored == 0, "a checksum without its flag")
    header = Header(
        DType(dtype),
        codec,
        packed=bool(flags & 2),
        menu=menu,
        zero_planes=zero_planes,
        base=base,
        order=tuple(order >> 4 * rank & 15 for rank in range(16)) if codec == TIER else (),
        has_checksum=bool(flags & 1),
        checksum=stored,
        count=count,
        frame_bytes=frame_bytes,
        body_bytes=body_bytes,
    )
    require(codec == TIER or order == 0, "an order, but the codec is not tier")
    check_parameters(header)
    check_sizes(header, frame.size)
    return header


def check_parameters(header: Header) -> None:
    """Check what depends on codec and dtype."""
    if header.codec == RAW:
        unused = (header.menu, header.zero_planes, header.base, header.body_bytes)
        require(not any(unused), f"expected zero parameters in a raw frame, found {unused}")
        return
    require(header.dtype is not DType.BYTES, "bytes are only coded raw")
    byte_planes = (header.mantissa_bits + 1) // 8
    require(header.zero_planes >> byte_planes == 0, "a zero plane that the dtype lacks")
    require(header.base < 1 << header.exponent_bits, f"base {header.base} is not a symbol")
    if header.codec == TIER:
        require(header.menu < len(MENU), f"expected a menu index below 8, found {header.menu}")
        require(sorted(header.order) == list(range(16)), "the order is not a permutation")
    else:
        require(2 <= header.menu <= 5, f"expected a block log2 2..5, found {header.menu}")
        require(not header.byte_mode or header.base == 0, "a base in byte mode")


def check_sizes(header: Header, given: int) -> None:
    """Check that header, sections and the bytes given agree."""
    require(header.count * header.itemsize < 1 << 63, f"{header.count} values exceed 2^63 bytes")
    require(header.frame_bytes == given, f"expected {header.frame_bytes} bytes, found {given}")
    if header.codec == RAW:
        total = HEADER.size + header.count * header.itemsize
    else:
        total = header.tails_at + header.body_bytes
    require(total == given, f"sections add up to {total} bytes, the frame has {given}")


def checksum(frame: Bytes) -> int:
    """Return the checksum that a frame should have, whatever its checksum field holds."""
    padding = np.zeros(-frame.size % 8, np.uint8)
    words = np.concatenate([frame, padding]).view("<u8").copy()
    words[3] = 0
    places = np.arange(words.size, dtype=np.uint64)
    factors = np.uint64(0x9E3779B97F4A7C15) + places * np.uint64(0xD1B54A32D192ED04)
    return int(np.sum(words * factors, dtype=np.uint64))


def group_entries(groups: Sequence[bytes]) -> bytes:
    """Return the offsets of groups placed in order without gaps."""
    offsets = itertools.accumulate((padded(len(group)) // 16 for group in groups), initial=0)
    return np.array(list(offsets)[:-1], "<u4").tobytes()


def directory_of(frame: Bytes, header: Header) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the group entries and the tile entries."""
    directory = frame[header.directory_at : header.tails_at].copy()
    cut = 4 * header.groups
    entries = directory[cut : cut + 2 * header.tiles] if header.codec == TIER else directory[:0]
    return directory[:cut].view("<u4"), entries.view("<u2")
