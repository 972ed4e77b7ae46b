"""The GPU's code against the CPU's frames, on an emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest
from emulator import Emulator
from samples import EXPONENT_BITS, FLOATS, PATTERNS, TILE, from_fields, tensor_of

from uzipmpi.kernels import codec
from uzipmpi.typing import Bytes, DType, Tensor

MENUS = range(8)
TIER, HEADER = "tier", 64


def decoded_by_cpu(frame: Bytes, like: Tensor) -> Bytes:
    """Return the values of a frame as the CPU reads them."""
    out = Tensor(np.empty_like(like.memory), like.dtype)
    codec.decode(frame, out)
    return out.memory


def cpu_frame(tensor: Tensor) -> Bytes:
    """Return the CPU's ``tier`` frame."""
    out = np.empty(codec.bound(tensor.count, tensor.dtype), np.uint8)
    return out[: codec.encode(tensor, out, codec="tier")]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_the_cpu_reads_what_the_gpu_wrote_and_so_does_the_gpu(
    emulator: Emulator, pattern: str, dtype: DType
) -> None:
    for count, codec_name, offset in (
        (TILE + 3, "auto", 0),
        (9 * TILE + 77, "tier", 0),
        (2500, "tier", 8),
    ):
        tensor = tensor_of(pattern, dtype, count, seed=count)
        frame = emulator.encode(tensor.memory, dtype, codec_name=codec_name, offset=offset)
        assert (decoded_by_cpu(frame, tensor) == tensor.memory).all()
        status, values = emulator.decode(frame, dtype, count, offset=offset)
        assert status == 0
        assert (values == tensor.memory).all()


@pytest.mark.parametrize("menu", MENUS)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_every_menu(emulator: Emulator, dtype: DType, menu: int) -> None:
    for pattern in ("normal", "outliers", "wrapped"):
        tensor = tensor_of(pattern, dtype, 2 * TILE + 5, seed=menu)
        frame = emulator.encode(tensor.memory, dtype, codec_name="tier", menu=menu)
        info = codec.info(frame)
        assert info.codec == "raw" or info.menu == menu
        assert (decoded_by_cpu(frame, tensor) == tensor.memory).all()
        status, values = emulator.decode(frame, dtype, tensor.count)
        assert status == 0
        assert (values == tensor.memory).all()


def spread_symbols(dtype: DType, count: int, share: float, seed: int) -> Tensor:
    """Return values of one exponent but for a share that has any of 16 or more, nearly evenly."""
    generator = np.random.default_rng(seed)
    symbols = 1 << EXPONENT_BITS[dtype]
    other = generator.integers(min(symbols, 20), size=count)
    symbol = np.where(generator.random(count) < share, other, 7)
    return Tensor(from_fields(0, symbol, generator.integers(2**62, size=count), dtype), dtype)


@pytest.mark.parametrize("menu", MENUS)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_values_of_every_rank_and_of_none_are_coded_wherever_they_are(
    emulator: Emulator, dtype: DType, menu: int
) -> None:
    """Few and many to a level: these are different code."""
    for share in (0.01, 0.1, 0.3):
        tensor = spread_symbols(dtype, 8 * TILE, share, seed=menu)
        masked = tensor.memory.copy().reshape(-1, dtype.itemsize)
        masked[np.random.default_rng(menu).random(tensor.count) < 0.3] = 0
        for memory in (tensor.memory, masked.ravel()):
            frame = emulator.encode(memory, dtype, codec_name="tier", menu=menu)
            assert (decoded_by_cpu(frame, tensor) == memory).all()
            status, values = emulator.decode(frame, dtype, tensor.count)
            assert status == 0
            assert (values == memory).all()


@pytest.mark.parametrize("menu", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_warps_code_groups_alone_or_together(emulator: Emulator, dtype: DType, menu: int) -> None:
    """One block has groups for three turns of its warps, two and three for one and a rest.

    Some tiles are raw, some groups have tails that are longer than a warp's room.
    """
    group, tiles = 8 * TILE, 8 * 8 * 3 + 5
    normal = tensor_of("normal", dtype, tiles * TILE + 9, seed=menu).memory.copy()
    memory = normal.reshape(-1, dtype.itemsize)
    bits = tensor_of("random_bits", dtype, memory.size // dtype.itemsize, seed=9).memory
    generator = np.random.default_rng(menu)
    for first, share in ((9, 0.25), (13, 0.3), (17, 0.3), (18, 0.35)):
        some = first * group + np.flatnonzero(generator.random(group) < share)
        memory[some] = bits.reshape(memory.shape)[some]
    for tile in (3, 50, 51, 190, 196):
        whole = slice(tile * TILE, (tile + 1) * TILE)
        memory[whole] = bits.reshape(memory.shape)[whole]
    tensor = Tensor(memory.reshape(-1), dtype)
    sizes = set()
    for blocks in (1, 2, 3):
        frame = emulator.encode(tensor.memory, dtype, codec_name="tier", menu=menu, blocks=blocks)
        assert (decoded_by_cpu(frame, tensor) == tensor.memory).all()
        sizes.add(frame.size)
    assert len(sizes) == 1
    zeros = tensor_of("zero_heavy", dtype, 8 * group + 9, seed=menu)
    frame = emulator.encode(zeros.memory, dtype, codec_name="tier", menu=menu, blocks=1)
    assert (decoded_by_cpu(frame, zeros) == zeros.memory).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_the_gpu_reads_frames_of_the_cpu(emulator: Emulator, dtype: DType) -> None:
    read = 0
    for pattern in PATTERNS:
        tensor = tensor_of(pattern, dtype, 9 * TILE + 31, seed=1)
        frame = cpu_frame(tensor)
        status, values = emulator.decode(frame, dtype, tensor.count)
        assert status == 0
        assert (values == tensor.memory).all()
        read += codec.info(frame).codec == "tier"
    assert read >= 3


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_the_gpu_chooses_as_the_cpu_does(emulator: Emulator, dtype: DType) -> None:
    """All values are sampled. The GPU has another taste in menus, as not all are compiled."""
    tensor = tensor_of("normal", dtype, 2 * TILE, seed=2)
    theirs = cpu_frame(tensor)
    menu = codec.info(theirs).menu
    ours = emulator.encode(tensor.memory, dtype, codec_name="tier", menu=menu)
    assert codec.info(ours) == codec.info(theirs)
    assert (ours == theirs).all()


def test_the_number_of_blocks_changes_nothing_but_the_places_of_tails(emulator: Emulator) -> None:
    dtype = DType.BFLOAT16
    tensor = tensor_of("normal", dtype, 60 * TILE, seed=3)
    frames = [emulator.encode(tensor.memory, dtype, blocks=blocks) for blocks in (1, 2, 8)]
    for frame in frames:
        assert (frame[:HEADER] == frames[0][:HEADER]).all()
        for blocks in (1, 3):
            status, values = emulator.decode(frame, dtype, tensor.count, blocks=blocks)
            assert status == 0
            assert (values == tensor.memory).all()


def test_values_that_do_not_shrink_become_a_raw_frame(emulator: Emulator) -> None:
    """Whether a sample tells it, or only the coding of all values."""
    dtype, count = DType.BFLOAT16, 9 * TILE + 1
    generator = np.random.default_rng(4)
    # Tiles of these are a little larger than raw ones: to be seen when they are coded.
    symbol = np.where(generator.random(count) < 0.72, generator.integers(256, size=count), 120)
    hardly = from_fields(0, symbol, generator.integers(128, size=count), dtype)
    for memory in (tensor_of("random_bits", dtype, count, seed=4).memory, hardly):
        for codec_name in ("auto", "tier", "raw"):
            frame = emulator.encode(memory, dtype, codec_name=codec_name)
            assert codec.info(frame).codec == "raw"
            assert (frame[HEADER:] == memory).all()


@pytest.mark.parametrize("count", [0, 1, TILE - 1])
def test_less_than_a_tile_is_raw(emulator: Emulator, count: int) -> None:
    dtype = DType.FLOAT32
    tensor = tensor_of("normal", dtype, count)
    frame = emulator.encode(tensor.memory, dtype)
    status, values = emulator.decode(frame, dtype, count)
    assert (codec.info(frame).codec, status) == ("raw", 0)
    assert (values == tensor.memory).all()


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT64, DType.FLOAT8_E4M3FN])
def test_damaged_frames_are_reported_or_decoded_but_harmless(
    emulator: Emulator, dtype: DType
) -> None:
    tensor = tensor_of("outliers", dtype, 9 * TILE + 5, seed=5)
    frame = emulator.encode(tensor.memory, dtype, codec_name="tier")
    generator = np.random.default_rng(6)
    directory = frame.size - codec.info(frame).tail_bytes - 64
    reported = 0
    for round_number in range(60):
        damaged = frame.copy()
        low, high = ((0, HEADER), (directory, frame.size), (HEADER, frame.size))[round_number % 3]
        damaged[generator.integers(low, high)] ^= 1 << generator.integers(8)
        status, _ = emulator.decode(damaged, dtype, tensor.count)
        reported += status != 0
        try:
            codec.decode(damaged, Tensor(np.empty_like(tensor.memory), dtype))
            sound = True
        except ValueError:
            sound = False
        # A checksum flag without its check is not for the GPU half.
        assert sound == (status == 0) or (damaged[7] != frame[7] and status != 0)
    assert reported >= 20


def test_truncated_frames_are_reported(emulator: Emulator) -> None:
    dtype = DType.BFLOAT16
    tensor = tensor_of("normal", dtype, 3 * TILE + 9, seed=7)
    frame = emulator.encode(tensor.memory, dtype, codec_name="tier")
    for size in (64, 65, 1000, frame.size - 16, frame.size - 1):
        status, _ = emulator.decode(frame[:size], dtype, tensor.count)
        assert status != 0
