"""The reference itself: against figures worked out by hand from FORMAT.md, and its own inverse."""

from __future__ import annotations

import numpy as np
import pytest
from samples import FLOATS, TILE, mixed, tensor_of

from uzipmpi.errors import FormatError
from uzipmpi.kernels import reference
from uzipmpi.kernels.reference_header import ANS, MENU, RAW, TIER
from uzipmpi.kernels.reference_planes import VALUE_AT, Cursor, pack, unpack
from uzipmpi.kernels.reference_tier import CODED, CONSTANT, MASKED, VERBATIM
from uzipmpi.typing import DType, Tensor

ORDER = tuple(range(16))
# From FORMAT.md's tables: itemsize, bytes of a tile's rests, ranks of each menu.
REST_BYTES = dict(
    zip(FLOATS, (1024, 1024 + 256 + 128, 3072, 6144 + 512 + 128, 512, 384), strict=True)
)
N_RANKS = (15, 7, 9, 13, 10, 11, 13, 13)


def test_positions_follow_the_formula() -> None:
    for row in range(4):
        for lane in range(32):
            for k in range(8):
                position = (row >> 1) * 512 + lane * 16 + (row & 1) * 8 + k
                assert VALUE_AT[position] == row * 256 + lane * 8 + k


def test_planes_of_a_few_fields() -> None:
    fields = np.array([1, 2, 3, 0, 3], np.uint64)
    assert pack(fields, 2) == bytes([0b00_11_10_01, 0b11])
    assert pack(fields & np.uint64(1), 1) == bytes([0b10101])
    assert pack(fields, 4) == bytes([0x21, 0x03, 0x03])
    assert pack(fields, 8) == bytes([1, 2, 3, 0, 3])
    # Three bits: the low two of all, then the high one of all.
    assert pack(np.array([5, 3, 4], np.uint64), 3) == bytes([0b00_11_01, 0b101])


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
def test_unpack_inverts_pack(width: int) -> None:
    fields = np.random.default_rng(width).integers(0, 1 << width, 77, dtype=np.uint64)
    plane = np.frombuffer(pack(fields, width), np.uint8)
    assert np.array_equal(unpack(Cursor(plane), 77, width), fields)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("menu", range(8))
def test_stride(dtype: DType, menu: int) -> None:
    header = reference.Header(dtype, TIER, menu=menu, order=ORDER)
    assert header.stride == REST_BYTES[dtype] + MENU[menu][0] * TILE // 8
    assert sum((1 << width) - 1 for width in MENU[menu]) == N_RANKS[menu]


def test_header_offsets() -> None:
    header = reference.Header(
        DType.FLOAT32,
        TIER,
        packed=True,
        menu=5,
        zero_planes=3,
        base=0x67,
        order=tuple(reversed(range(16))),
        has_checksum=True,
        checksum=0x1122334455667788,
        count=0x0102030405060708,
        frame_bytes=0x1112131415161718,
        body_bytes=0x2122232425262728,
    )
    raw = header.to_bytes()
    assert raw[:8] == b"UZIP\x01\x03\x01\x03"
    assert raw[8:16] == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert raw[16:24] == bytes(range(0x18, 0x10, -1))
    assert raw[24:32] == bytes([0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11])
    assert raw[32:36] == bytes([5, 3, 0x67, 0])
    assert raw[36:44] == bytes([0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01])
    assert raw[44:] == bytes(4) + bytes(range(0x28, 0x20, -1)) + bytes(8)


def test_checksum_of_a_raw_frame() -> None:
    tensor = Tensor(np.array([1, 0, 0], np.uint8), DType.BYTES)
    frame = reference.encode(tensor, reference.Header(DType.BYTES, RAW, has_checksum=True))
    words = [0x0001_00_00_01_50495A55, 3, 67, 0, 0, 0, 0, 0, 1]
    words[0] = int.from_bytes(b"UZIP\x01\x00\x00\x01", "little")
    expected = sum(
        word * (0x9E3779B97F4A7C15 + place * 0xD1B54A32D192ED04) for place, word in enumerate(words)
    )
    assert reference.parse(frame).checksum == expected % 2**64


def test_one_tile_of_tier_by_hand() -> None:
    """bfloat16 1.0 everywhere, but 2.0, 4.0 and 8.0 once each; menu 1/2/3 and the plain order."""
    values = np.ones(TILE, np.float32)
    values[[0, 8, 9]] = 2, 4, 8  # positions 0 (lane 0), 16 and 17 (lane 1)
    tensor = Tensor.of(values.astype(DType.BFLOAT16.numpy))
    header = reference.Header(DType.BFLOAT16, TIER, menu=5, base=127, order=ORDER)
    frame = reference.encode(tensor, header).tobytes()
    # One bit: rank 0 or more. Two bits: ranks 1, 2, 3 are digits 0, 1, 2.
    first = bytearray(128)
    first[0], first[2] = 0b1, 0b11
    assert frame[64 : 64 + 1024] == bytes(1024)
    assert frame[1088 : 1088 + 128] == first
    assert frame[1216 : 1216 + 16] == bytes([0, 0, 0, 0, 1, 0]) + bytes(10)
    assert frame[1232:] == bytes([0b10_01_00]) + bytes(15)


def test_raw_symbols_follow_the_planes() -> None:
    values = np.ones(TILE, np.float64)
    values[5] = 2.0**-1000
    header = reference.Header(DType.FLOAT64, TIER, menu=0, base=1015, order=ORDER)
    frame = reference.encode(Tensor.of(values), header)
    assert reference.parse(frame).body_bytes == 16
    assert frame[-16:].tobytes() == (23).to_bytes(2, "little") + bytes(14)


def test_kinds_of_packed_tiles() -> None:
    dtype = DType.FLOAT16
    parts = ("zeros", "constant", "random_bits", "normal")
    tiles = [tensor_of(part, dtype, TILE).memory for part in parts]
    sparse = np.zeros(TILE, np.float16)
    sparse[3] = 1.5
    tensor = Tensor(np.concatenate([*tiles, sparse.view(np.uint8)]), dtype)
    header = reference.Header(dtype, TIER, packed=True, menu=2, order=ORDER[::-1])
    frame = reference.encode(tensor, header)
    expected = [CONSTANT, CONSTANT, VERBATIM, CODED, MASKED]
    assert reference.kinds_of(frame) == expected
    assert np.array_equal(reference.decode(frame).memory, tensor.memory)


def header_for(dtype: DType, codec: int, packed: bool, menu: int) -> reference.Header:
    base = 0 if codec == ANS and dtype.itemsize == 1 else 3
    order = tuple(np.random.default_rng(menu).permutation(16).tolist()) if codec == TIER else ()
    return reference.Header(
        dtype, codec, packed=packed, menu=menu, base=base, order=order, has_checksum=True
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_tier_round_trip(dtype: DType, packed: bool) -> None:
    patterns = ["normal", "special", "random_bits", "zero_heavy", "constant", "zeros", "counting"]
    for menu in range(8):
        tensor = mixed(patterns, dtype, 9 * TILE + 100 + menu, seed=menu)
        frame = reference.encode(tensor, header_for(dtype, TIER, packed, menu))
        assert np.array_equal(reference.decode(frame, verify=True).memory, tensor.memory)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("menu", [2, 3, 4, 5])
def test_ans_round_trip(dtype: DType, menu: int) -> None:
    table = np.ones(256, np.uint16)
    table[17] += 4096 - 256
    tensor = mixed(["normal", "random_bits", "two_symbols"], dtype, 17 * TILE + 5, seed=menu)
    header = header_for(dtype, ANS, packed=False, menu=menu)
    n_blocks = -(-17 // (1 << menu))
    kinds = [block % 2 for block in range(n_blocks)]
    frame = reference.encode(tensor, header, kinds=kinds, table=table)
    assert reference.kinds_of(frame) == kinds
    assert np.array_equal(reference.table_of(frame), table)
    assert np.array_equal(reference.decode(frame, verify=True).memory, tensor.memory)


def test_a_plane_marked_zero_makes_other_tiles_raw() -> None:
    tensor = mixed(["short_mantissa", "normal"], DType.FLOAT32, 2 * TILE, seed=1)
    header = reference.Header(
        DType.FLOAT32, TIER, menu=2, zero_planes=3, base=112, order=ORDER[::-1]
    )
    frame = reference.encode(tensor, header)
    assert reference.parse(frame).stride == 1024 + 256
    assert reference.kinds_of(frame) == [CODED, VERBATIM]
    assert np.array_equal(reference.decode(frame).memory, tensor.memory)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, 0, "magic"),
        (4, 2, "version"),
        (5, 7, "dtype"),
        (5, 0, "raw"),
        (6, 3, "codec"),
        (7, 4, "flags"),
        (8, 1, "sections"),
        (15, 0x80, "2\\^63"),
        (16, 1, "expected .* bytes"),
        (24, 1, "checksum"),
        (32, 8, "menu"),
        (33, 2, "zero plane"),
        (35, 1, "base"),
        (36, 0, "permutation"),
        (44, 1, "reserved"),
        (48, 1, "sections"),
        (63, 1, "reserved"),
    ],
)
def test_header_rules(offset: int, value: int, message: str) -> None:
    tensor = tensor_of("normal", DType.BFLOAT16, 2 * TILE)
    frame = reference.encode(tensor, header_for(DType.BFLOAT16, TIER, False, 2))
    frame[7], frame[24:32] = 0, 0
    assert np.array_equal(reference.decode(frame).memory, tensor.memory)
    frame[offset] = value
    with pytest.raises(FormatError, match=message):
        reference.decode(frame)
