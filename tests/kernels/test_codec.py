"""The compiled codec: lossless on every path, within its bound, the same bytes however it runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import CODECS, FLOATS, PATTERNS, TILE, guarded, guarded_copy, mixed, tensor_of, tensors

from uzipmpi.errors import FormatError
from uzipmpi.kernels import codec, reference, reference_planes
from uzipmpi.typing import Bytes, DType, Tensor

GROUPS = 6
few = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def encode(tensor: Tensor, name: str = "auto", *, verify: bool = False, threads: int = 1) -> Bytes:
    """Return a frame, encoded into memory of exactly the bound."""
    out = guarded(codec.bound(tensor.count, tensor.dtype))
    return out[: codec.encode(tensor, out, codec=name, verify=verify, threads=threads)].copy()


def decode(frame: Bytes, dtype: DType, *, verify: bool = False, threads: int = 1) -> Bytes:
    """Return the values of a frame, decoded between memory that may not be touched."""
    count = codec.info(frame).count
    out = Tensor(guarded(count * dtype.itemsize), dtype)
    out.memory[:] = 0xA5
    codec.decode(guarded_copy(frame), out, verify=verify, threads=threads)
    return out.memory


def recode(tensor: Tensor, frame: Bytes) -> Bytes:
    """Return the frame that the reference makes with the same parameters, kinds and table."""
    header = reference.parse(frame)
    table = reference.table_of(frame) if header.codec == 2 else None
    return reference.encode(tensor, header, kinds=reference.kinds_of(frame), table=table)


def same(left: Bytes, right: Bytes) -> bool:
    """Compare bytes, without the copy of thousands of them that a failing assertion prints."""
    return left.size == right.size and bool(np.array_equal(left, right))


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", FLOATS)
@few
@given(st.data(), st.booleans())
def test_round_trip_and_reference(
    dtype: DType, name: str, data: st.DataObject, verify: bool
) -> None:
    tensor = data.draw(tensors(dtype))
    frame = encode(tensor, name, verify=verify)
    assert frame.size <= codec.HEADER_BYTES + tensor.nbytes
    assert same(decode(frame, dtype, verify=verify), tensor.memory)
    by_reference = reference.decode(frame, verify=verify)
    assert by_reference.dtype is dtype
    assert same(by_reference.memory, tensor.memory)
    assert same(recode(tensor, frame), frame)


@pytest.mark.parametrize("pattern", sorted(PATTERNS))
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_simd_paths_agree(simd: str, dtype: DType, name: str, pattern: str) -> None:
    tensor = tensor_of(pattern, dtype, 19 * TILE + 77, seed=5)
    frame = encode(tensor, name)
    assert same(decode(frame, dtype), tensor.memory)
    codec.force_simd("portable")
    assert same(encode(tensor, name), frame)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", FLOATS)
@few
@given(st.data())
def test_simd_paths_agree_on_mixed_tiles(
    simd: str, dtype: DType, name: str, data: st.DataObject
) -> None:
    tensor = data.draw(tensors(dtype))
    codec.force_simd("portable")
    expected = encode(tensor, name)
    codec.force_simd(simd)
    frame = encode(tensor, name)
    assert same(frame, expected)
    assert same(decode(frame, dtype), tensor.memory)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.itemsize <= 2])
def test_every_bit_pattern(simd: str, dtype: DType, name: str) -> None:
    """In an order that mixes exponents in a tile, and sorted, so that each tile has few."""
    n = 1 << 8 * dtype.itemsize
    words = np.arange(max(n, TILE)).astype(f"u{dtype.itemsize}")
    for values in (words, np.random.default_rng(0).permutation(words)):
        tensor = Tensor(values.view(np.uint8), dtype)
        frame = encode(tensor, name)
        assert same(decode(frame, dtype), tensor.memory)
        assert same(reference.decode(frame).memory, tensor.memory)


@pytest.mark.parametrize("menu", range(8))
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_reads_every_parameter(simd: str, dtype: DType, packed: bool, menu: int) -> None:
    """The encoder chooses among parameters; the decoder must read them all."""
    generator = np.random.default_rng(menu)
    patterns = sorted(PATTERNS)
    tensor = mixed(patterns, dtype, (len(patterns) + 9) * TILE + menu, seed=menu)
    header = reference.Header(
        dtype,
        codec=1,
        packed=packed,
        menu=menu,
        base=int(generator.integers(2 ** reference.Header(dtype, 1).exponent_bits)),
        order=tuple(generator.permutation(16).tolist()),
        has_checksum=True,
    )
    frame = reference.encode(tensor, header)
    assert same(decode(frame, dtype, verify=True), tensor.memory)


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype.itemsize > 1])
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_reads_every_zero_plane(simd: str, dtype: DType, packed: bool) -> None:
    n_planes = (reference.Header(dtype, 1).mantissa_bits + 1) // 8
    for zero_planes in range(1 << n_planes):
        header = reference.Header(
            dtype, 1, packed=packed, menu=3, zero_planes=zero_planes, order=tuple(range(16))
        )
        tensor = tensor_of("random_bits", dtype, 3 * TILE)
        symbols, rest = reference_planes.split(tensor.memory, header)
        stored = np.uint64(sum(((1 << width) - 1) << low for low, width in header.planes))
        tensor = Tensor(reference_planes.join(symbols, rest & stored, header), dtype)
        frame = reference.encode(tensor, header, kinds=[0, 0, 0])
        assert same(decode(frame, dtype), tensor.memory)


def test_groups_may_lie_in_any_order(simd: str) -> None:
    """A frame whose tail section has its groups reversed and far apart."""
    tensor = tensor_of("normal", DType.BFLOAT16, 24 * TILE)
    frame = encode(tensor, "tier")
    header = reference.parse(frame)
    entries = frame[header.directory_at : header.directory_at + 12].view("<u4")
    tails = frame[header.tails_at :]
    ends = [*(16 * entries[1:]), tails.size]
    groups = [tails[16 * start : end] for start, end in zip(entries, ends, strict=True)]
    moved, place = [], 0
    for group in (2, 1, 0):
        moved += [np.full(48, 0xEE, np.uint8), groups[group]]
        place += 48
        entries[group] = place // 16
        place += groups[group].size
    moved_frame = np.concatenate([frame[: header.tails_at], *moved])
    moved_frame[16:24] = np.frombuffer(np.uint64(moved_frame.size).tobytes(), np.uint8)
    moved_frame[48:56] = np.frombuffer(np.uint64(place).tobytes(), np.uint8)
    assert same(reference.decode(moved_frame).memory, tensor.memory)
    assert same(decode(moved_frame, DType.BFLOAT16), tensor.memory)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("pattern", ["normal", "zero_heavy", "outliers", "random_bits"])
def test_threads_give_the_same_bytes(dtype: DType, name: str, pattern: str) -> None:
    tensor = tensor_of(pattern, dtype, 515 * TILE + 1, seed=3)
    frame = encode(tensor, name, verify=True)
    for threads in (2, 3):
        assert same(encode(tensor, name, verify=True, threads=threads), frame)
        assert same(decode(frame, dtype, verify=True, threads=threads), tensor.memory)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("pattern", ["normal", "zero_heavy", "random_bits", "zeros"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_steps_give_the_same_bytes(dtype: DType, pattern: str, step: int, verify: bool) -> None:
    tensor = tensor_of(pattern, dtype, (8 * GROUPS - 7) * TILE + 9, seed=4)
    expected = encode(tensor, "tier", verify=verify)
    out = np.zeros(codec.bound(tensor.count, dtype), np.uint8)
    encoder = codec.Encoder(tensor, out, codec="tier", verify=verify)
    final = codec.HEADER_BYTES
    for _ in range(GROUPS // step + 1):
        stop = encoder.advance(step)
        if encoder.fell_back:
            break
        assert final <= stop <= encoder.fixed_stop
        final = stop
        if codec.info(expected).codec != "raw":
            assert same(out[codec.HEADER_BYTES : final], expected[codec.HEADER_BYTES : final])
    assert same(out[: encoder.finish()], expected)
    if encoder.fell_back:
        assert codec.info(expected).codec == "raw"
    else:
        assert final == encoder.fixed_stop


@pytest.mark.parametrize(
    ("pattern", "dtype", "limit"),
    [
        ("zeros", DType.BFLOAT16, 0.01),
        ("zeros", DType.FLOAT64, 0.01),
        ("constant", DType.FLOAT32, 0.02),
        ("two_symbols", DType.BFLOAT16, 0.60),
        ("normal", DType.BFLOAT16, 0.68),
        ("short_mantissa", DType.FLOAT32, 0.40),
        ("normal", DType.FLOAT8_E4M3FN, 0.95),
    ],
)
def test_ratio(pattern: str, dtype: DType, limit: float) -> None:
    tensor = tensor_of(pattern, dtype, 256 * TILE)
    assert encode(tensor).size <= limit * tensor.nbytes


@pytest.mark.parametrize("name", [*CODECS, "auto"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [0, 1, TILE - 1, TILE, 8 * TILE + 1, 300 * TILE])
def test_random_bits_cost_a_header(dtype: DType, name: str, count: int) -> None:
    tensor = tensor_of("random_bits", dtype, count)
    frame = encode(tensor, name)
    assert codec.bound(count, dtype) == codec.HEADER_BYTES + tensor.nbytes
    assert frame.size <= codec.bound(count, dtype)
    assert same(decode(frame, dtype), tensor.memory)


def test_bytes_travel_raw() -> None:
    tensor = Tensor(np.arange(5000, dtype=np.uint32).view(np.uint8), DType.BYTES)
    frame = encode(tensor)
    assert codec.info(frame).codec == "raw"
    assert same(decode(frame, DType.BYTES), tensor.memory)


def test_info() -> None:
    tensor = tensor_of("normal", DType.BFLOAT16, 20 * TILE)
    frame = encode(tensor, "tier", verify=True)
    header = reference.parse(frame)
    info = codec.info(frame[: codec.HEADER_BYTES])
    assert (info.dtype, info.count, info.codec) == (DType.BFLOAT16, 20 * TILE, "tier")
    assert (info.frame_bytes, info.menu) == (frame.size, header.menu)
    assert info.ratio == pytest.approx(frame.size / tensor.nbytes)


@pytest.mark.parametrize("pattern", ["normal", "random_bits", "zeros", "zero_heavy"])
def test_predict_is_near(pattern: str) -> None:
    tensor = tensor_of(pattern, DType.BFLOAT16, 400 * TILE)
    actual = encode(tensor, "tier").size / tensor.nbytes
    assert codec.predict(tensor) == pytest.approx(actual, abs=0.03)


def frame_and_tensor() -> tuple[Bytes, Tensor]:
    tensor = tensor_of("normal", DType.FLOAT32, 2 * TILE)
    return encode(tensor), tensor


@pytest.mark.parametrize(
    ("dtype", "n_bytes"),
    [
        (DType.FLOAT16, 2 * 2 * TILE),  # another dtype, the same count
        (DType.FLOAT16, 4 * 2 * TILE),  # another dtype, the same size
        (DType.BYTES, 4 * 2 * TILE),
        (DType.FLOAT32, 4 * (2 * TILE - 1)),
        (DType.FLOAT32, 4 * (2 * TILE + 1)),
        (DType.FLOAT32, 0),
    ],
)
def test_destination_must_fit(dtype: DType, n_bytes: int) -> None:
    frame, _ = frame_and_tensor()
    destination = guarded(n_bytes)
    destination[:] = 0xA5
    with pytest.raises(FormatError, match="expected"):
        codec.decode(frame, Tensor(destination, dtype))
    assert np.all(destination == 0xA5)


def test_destination_must_be_writable() -> None:
    frame, tensor = frame_and_tensor()
    memory = np.zeros(tensor.nbytes, np.uint8)
    memory.flags.writeable = False
    with pytest.raises(ValueError, match=r"writ|read-only"):
        codec.decode(frame, Tensor(memory, tensor.dtype))
    assert not np.any(memory)


def test_output_must_be_writable_and_hold_the_bound() -> None:
    _, tensor = frame_and_tensor()
    n_bytes = codec.bound(tensor.count, tensor.dtype)
    read_only = np.zeros(n_bytes, np.uint8)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match=r"writ|read-only"):
        codec.encode(tensor, read_only)
    with pytest.raises(ValueError, match="expected"):
        codec.encode(tensor, guarded(n_bytes - 1))


def test_memory_must_be_contiguous() -> None:
    frame, tensor = frame_and_tensor()
    spread = np.zeros(2 * tensor.nbytes, np.uint8)[::2]
    out = np.zeros(2 * codec.bound(tensor.count, tensor.dtype), np.uint8)
    with pytest.raises(ValueError, match="contiguous"):
        codec.encode(Tensor(spread, tensor.dtype), out)
    with pytest.raises(ValueError, match="contiguous"):
        codec.encode(tensor, out[::2])
    with pytest.raises(ValueError, match="contiguous"):
        codec.decode(frame, Tensor(spread, tensor.dtype))
    with pytest.raises(ValueError, match="contiguous"):
        codec.decode(np.repeat(frame, 2)[::2], tensor)


def test_unknown_names() -> None:
    _, tensor = frame_and_tensor()
    out = np.zeros(codec.bound(tensor.count, tensor.dtype), np.uint8)
    with pytest.raises(ValueError, match="zip"):
        codec.encode(tensor, out, codec="zip")
    with pytest.raises(ValueError, match="mmx"):
        codec.force_simd("mmx")


def test_verify_wants_a_checksum() -> None:
    frame, tensor = frame_and_tensor()
    assert not reference.parse(frame).has_checksum
    with pytest.raises(FormatError, match="checksum"):
        codec.decode(frame, Tensor(np.zeros(tensor.nbytes, np.uint8), tensor.dtype), verify=True)


def test_simd_paths() -> None:
    assert "portable" in codec.SIMD_PATHS
    assert codec.simd_path() in codec.SIMD_PATHS
