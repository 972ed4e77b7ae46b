"""Codec ans: any table is read, blocks fall back one by one, and the ratio is near the entropy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from samples import FLOATS, TILE, guarded, guarded_copy, mixed, tensor_of

from uzipmpi.errors import FormatError
from uzipmpi.kernels import codec, reference
from uzipmpi.typing import Bytes, DType, Tensor

ANS = 2
CODED, VERBATIM = 0, 1
TABLE_BYTES = 512
Table = npt.NDArray[np.uint16]


def encode(tensor: Tensor, *, threads: int = 1) -> Bytes:
    """Return a frame that must be one of codec ans."""
    out = guarded(codec.bound(tensor.count, tensor.dtype))
    frame = out[: codec.encode(tensor, out, codec="ans", threads=threads)].copy()
    assert codec.info(frame).codec == "ans"
    return frame


def decode(frame: Bytes, dtype: DType) -> Bytes:
    """Return the values, decoded between memory that may not be touched."""
    out = Tensor(guarded(codec.info(frame).count * dtype.itemsize), dtype)
    codec.decode(guarded_copy(frame), out)
    return out.memory


def table_of(frequencies: dict[int, int], others: int = 0) -> Table:
    table = np.full(256, others, np.uint16)
    for code, frequency in frequencies.items():
        table[code] = frequency
    return table


def check(tensor: Tensor, frame: Bytes) -> None:
    """The frame gives the tensor, to us and to the reference, which makes the same frame of it."""
    assert np.array_equal(decode(frame, tensor.dtype), tensor.memory)
    assert np.array_equal(reference.decode(frame).memory, tensor.memory)
    again = reference.encode(
        tensor,
        reference.parse(frame),
        kinds=reference.kinds_of(frame),
        table=reference.table_of(frame),
    )
    assert np.array_equal(again, frame)


TABLES = {
    "flat": table_of({}, 16),
    "one code rules": table_of({0: 4096 - 255}, 1),
    "two halves": table_of({17: 2048, 34: 2048 - 254}, 1),
    "the last code rules": table_of({255: 4096 - 255}, 1),
}


@pytest.mark.parametrize("menu", [2, 3, 4, 5])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_reads_every_parameter(simd: str, dtype: DType, table: Table, menu: int) -> None:
    """The encoder chooses among parameters and tables; the decoder must read them all."""
    patterns = ["normal", "random_bits", "special", "wrapped", "zeros"]
    tensor = mixed(patterns, dtype, 37 * TILE + 11, seed=menu)
    base = 0 if dtype.itemsize == 1 else 2 ** reference.Header(dtype, ANS).exponent_bits - menu
    header = reference.Header(dtype, ANS, menu=menu, base=base)
    n_blocks = -(-37 // (1 << menu))
    kinds = [CODED if block % 3 < 2 else VERBATIM for block in range(n_blocks)]
    frame = reference.encode(tensor, header, kinds=kinds, table=table)
    assert np.array_equal(decode(frame, dtype), tensor.memory)


@pytest.mark.parametrize("frequency", [4095, 4094, 3000, 2049, 2048, 2047, 1])
def test_reads_a_table_of_two_codes(simd: str, frequency: int) -> None:
    codes = np.random.default_rng(frequency).choice(
        np.array([3, 200], np.uint8), 5 * TILE, p=[frequency / 4096, 1 - frequency / 4096]
    )
    tensor = Tensor(codes, DType.FLOAT8_E5M2)
    table = table_of({3: frequency, 200: 4096 - frequency})
    frame = reference.encode(tensor, reference.Header(tensor.dtype, ANS, menu=2), table=table)
    assert np.array_equal(decode(frame, tensor.dtype), codes)


def test_divides_exactly(simd: str) -> None:
    """A quotient that is wrong for one state in a million makes a stream that ends elsewhere."""
    generator = np.random.default_rng(8)
    codes = generator.integers(256, size=2048 * TILE, dtype=np.uint8)
    places = generator.permutation(codes.size)
    for share in np.linspace(0.5, 0.98, 25):
        codes[places[: int(share * codes.size)]] = 77
        frame = encode(Tensor(codes, DType.FLOAT8_E4M3FN))
        assert reference.table_of(frame)[77] > 1800
        assert np.array_equal(decode(frame, DType.FLOAT8_E4M3FN), codes)


@pytest.mark.parametrize("dtype", FLOATS)
def test_symbols_outside_of_the_window(simd: str, dtype: DType) -> None:
    tensor = tensor_of("outliers", dtype, 130 * TILE + 3)
    frame = encode(tensor)
    check(tensor, frame)
    n_raw = frame[reference.parse(frame).tails_at + 4 :][:2].view("<u2")[0]
    assert (n_raw > 0) == (dtype.itemsize > 1)


def test_blocks_that_do_not_shrink_are_raw(simd: str) -> None:
    normal = tensor_of("normal", DType.BFLOAT16, 256 * TILE)
    values = normal.memory.copy()
    values[64 * TILE * 2 : 128 * TILE * 2] = tensor_of(
        "random_bits", DType.BFLOAT16, 64 * TILE
    ).memory
    tensor = Tensor(values, DType.BFLOAT16)
    frame = encode(tensor)
    assert reference.kinds_of(frame) == [CODED] * 2 + [VERBATIM] * 2 + [CODED] * 4
    check(tensor, frame)


def test_a_plane_believed_to_be_zero_makes_other_blocks_raw(simd: str) -> None:
    values = tensor_of("short_mantissa", DType.FLOAT32, 256 * TILE).memory.copy()
    values[4 * (200 * TILE + 5)] = 1
    tensor = Tensor(values, DType.FLOAT32)
    frame = encode(tensor)
    assert codec.info(frame).zero_planes != 0
    assert reference.kinds_of(frame) == [CODED] * 6 + [VERBATIM] + [CODED]
    check(tensor, frame)


@pytest.mark.parametrize("dtype", FLOATS)
def test_threads_give_the_same_bytes(dtype: DType) -> None:
    tensor = mixed(["normal", "normal", "outliers"], dtype, 1300 * TILE + 9, seed=3)
    frame = encode(tensor)
    for threads in (2, 3, 8):
        assert np.array_equal(encode(tensor, threads=threads), frame)
        out = Tensor(np.zeros_like(tensor.memory), dtype)
        codec.decode(frame, out, threads=threads)
        assert np.array_equal(out.memory, tensor.memory)


def entropy_floor(tensor: Tensor) -> float:
    """Return the ratio of an ideal order-0 code of whole bytes, or of exponents."""
    header = reference.Header(tensor.dtype, ANS)
    if header.byte_mode:
        symbols = tensor.memory
        rest_bits = 0
    else:
        words = tensor.memory.view(f"<u{header.itemsize}") >> header.mantissa_bits
        symbols = words & ((1 << header.exponent_bits) - 1)
        rest_bits = header.mantissa_bits + 1
    counts = np.unique(symbols, return_counts=True)[1]
    bits = -np.sum(counts * np.log2(counts / tensor.count)) / tensor.count
    return float((rest_bits + bits) / (8 * header.itemsize))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_ratio_is_near_the_entropy(dtype: DType, law: str) -> None:
    generator = np.random.default_rng(0)
    n = 1 << 21
    values = generator.normal(0, 1, n) if law == "normal" else generator.uniform(-1, 1, n)
    tensor = Tensor.of(values.astype(np.float32).astype(dtype.numpy))
    if dtype is DType.FLOAT64:  # not a widened float32: its low mantissa bits are no information
        tensor = Tensor.of(values)
    limit = 1.02 if dtype.itemsize == 1 else 1.012
    assert encode(tensor).size < limit * entropy_floor(tensor) * tensor.nbytes


@pytest.mark.parametrize("pattern", ["zeros", "constant"])
def test_what_tier_packs_is_handed_to_it(pattern: str) -> None:
    tensor = tensor_of(pattern, DType.FLOAT32, 64 * TILE)
    out = np.zeros(codec.bound(tensor.count, tensor.dtype), np.uint8)
    frame = out[: codec.encode(tensor, out, codec="ans")]
    assert codec.info(frame).packed
    assert frame.size < 0.02 * tensor.nbytes


def small_frame() -> Bytes:
    tensor = tensor_of("outliers", DType.BFLOAT16, 5 * TILE, seed=1)
    table = table_of({17 * k: 200 for k in range(16)}, 3)
    table[0] += 4096 - int(table.sum())
    header = reference.Header(DType.BFLOAT16, ANS, menu=2, base=113)
    return reference.encode(tensor, header, table=table)


def rejected(frame: Bytes) -> bool:
    """Tell whether a frame is rejected, here and by the reference."""
    with pytest.raises(FormatError):
        reference.decode(frame)
    with pytest.raises(FormatError):
        decode(frame, DType.BFLOAT16)
    return True


def test_the_small_frame_is_sound(simd: str) -> None:
    assert decode(small_frame(), DType.BFLOAT16).size == 5 * TILE * 2


@pytest.mark.parametrize(("code", "change"), [(0, 1), (0, -1), (200, 1), (255, -3)])
def test_tables_must_add_up(simd: str, code: int, change: int) -> None:
    frame = small_frame()
    at = reference.parse(frame).table_at
    table = frame[at : at + TABLE_BYTES].view("<u2")
    table[code] = int(table[code]) + change
    assert rejected(frame)


def test_no_frequency_is_4096(simd: str) -> None:
    frame = small_frame()
    at = reference.parse(frame).table_at
    frame[at : at + TABLE_BYTES].view("<u2")[:] = table_of({17: 4096})
    assert rejected(frame)


@pytest.mark.parametrize(
    ("offset", "change", "what"),
    [
        (0, 1, "a word that is not used"),
        (0, -1, "a word too few"),
        (3, 64, "words past the end"),
        (4, 1, "a raw symbol that is not used"),
        (4, -1, "a raw symbol too few"),
        (6, 2, "a kind that does not exist"),
        (6, 1, "a raw block with words"),
        (8, 1, "another state of lane 0"),
        (8 + 4 * 31, 1, "another state of lane 31"),
        (136, 1, "another word"),
    ],
)
def test_blocks_must_be_consistent(simd: str, offset: int, change: int, what: str) -> None:
    frame = small_frame()
    at = reference.parse(frame).tails_at
    assert frame[at + 4] > 0, "the first block has raw symbols"
    frame[at + offset] = int(frame[at + offset]) + change
    assert rejected(frame), what


def test_lanes_must_end_where_the_encoder_began(simd: str) -> None:
    """A code of frequency 4095 and no refill: the last state shows, and nothing else."""
    tensor = Tensor(np.zeros(4 * TILE, np.uint8), DType.FLOAT8_E4M3FN)
    header = reference.Header(tensor.dtype, ANS, menu=2)
    frame = reference.encode(tensor, header, table=table_of({0: 4095, 1: 1}))
    block = frame[reference.parse(frame).tails_at :]
    assert np.array_equal(decode(frame, tensor.dtype), tensor.memory)
    assert block[:4].view("<u4")[0] == 0, "no words"
    states = block[8:136].view("<u4")
    states[5] += 1
    with pytest.raises(FormatError, match="state"):
        decode(frame, tensor.dtype)
