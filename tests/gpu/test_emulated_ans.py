"""Codec ``ans`` of the GPU against the CPU's, on an emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest
from emulator import Emulator
from samples import FLOATS, PATTERNS, TILE, tensor_of

from uzipmpi.kernels import codec
from uzipmpi.typing import Bytes, DType, Tensor

HEADER, TABLE_BYTES = 64, 512


def cpu_frame(tensor: Tensor) -> Bytes:
    """Return the CPU's frame."""
    out = np.empty(codec.bound(tensor.count, tensor.dtype), np.uint8)
    return out[: codec.encode(tensor, out, codec="ans")]


def codable(dtype: DType, count: int) -> Tensor:
    """Return a small tensor whose frame is ``ans``, with a few raw symbols."""
    generator = np.random.default_rng(count)
    memory = tensor_of("two_symbols", dtype, count, seed=count).memory.reshape(count, -1).copy()
    places = generator.integers(count, size=count // 500)
    memory[places] = generator.integers(256, size=(places.size, dtype.itemsize))
    return Tensor(memory.reshape(-1), dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_the_gpu_reads_frames_of_the_cpu(emulator: Emulator, dtype: DType) -> None:
    """Blocks of 4, 8 and 16 tiles, the last one cut short; values at any place."""
    menus = set()
    for count in (20 * TILE + 3, 40 * TILE, 70 * TILE + 1):
        for pattern in ("normal", "outliers", "wrapped", "two_symbols"):
            tensor = tensor_of(pattern, dtype, count, seed=count)
            frame = cpu_frame(tensor)
            if codec.info(frame).codec == "ans":
                menus.add(codec.info(frame).menu)
            status, values = emulator.decode(frame, dtype, count, offset=count % 2 * 8)
            assert status == 0
            assert (values == tensor.memory).all()
    assert menus == {2, 3, 4}


def test_the_number_of_blocks_changes_nothing(emulator: Emulator) -> None:
    dtype = DType.BFLOAT16
    tensor = tensor_of("outliers", dtype, 260 * TILE + 11, seed=1)
    frame = cpu_frame(tensor)
    assert codec.info(frame).menu == 5
    for blocks in (1, 2):
        status, values = emulator.decode(frame, dtype, tensor.count, blocks=blocks)
        assert status == 0
        assert (values == tensor.memory).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_raw_blocks(emulator: Emulator, dtype: DType) -> None:
    """Every second block of a tensor that is worth coding is not."""
    count = 24 * TILE
    size = 4 * TILE * dtype.itemsize
    memory = tensor_of("two_symbols", dtype, count, seed=2).memory.copy()
    noise = tensor_of("random_bits", dtype, count, seed=3).memory
    for block in (1, 4):
        memory[block * size : (block + 1) * size] = noise[block * size : (block + 1) * size]
    frame = cpu_frame(Tensor(memory, dtype))
    assert codec.info(frame).codec == "ans"
    status, values = emulator.decode(frame, dtype, count)
    assert status == 0
    assert (values == memory).all()


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT64, DType.FLOAT8_E4M3FN])
def test_damage_is_seen_as_the_cpu_sees_it(emulator: Emulator, dtype: DType) -> None:
    tensor = codable(dtype, 20 * TILE + 5)
    frame = cpu_frame(tensor)
    assert codec.info(frame).codec == "ans"
    generator = np.random.default_rng(6)
    tails = frame.size - codec.info(frame).tail_bytes
    directory = tails - 32
    table = directory - TABLE_BYTES
    ranges = ((0, HEADER), (directory, tails), (tails, tails + 160), (table, frame.size))
    reported = 0
    for round_number in range(80):
        damaged = frame.copy()
        damaged[generator.integers(*ranges[round_number % 4])] ^= 1 << generator.integers(8)
        status, values = emulator.decode(damaged, dtype, tensor.count)
        reported += status != 0
        out = Tensor(np.empty_like(tensor.memory), dtype)
        try:
            codec.decode(damaged, out)
            sound = True
        except ValueError:
            sound = False
        assert sound == (status == 0)
        if sound:
            assert (values == out.memory).all()
    assert reported >= 40


def test_truncated_frames_are_reported(emulator: Emulator) -> None:
    dtype = DType.BFLOAT16
    tensor = codable(dtype, 9 * TILE + 9)
    frame = cpu_frame(tensor)
    for size in (64, 65, 1000, frame.size - 16, frame.size - 1):
        status, _ = emulator.decode(frame[:size], dtype, tensor.count)
        assert status != 0


def decoded_by_cpu(frame: Bytes, like: Tensor) -> Bytes:
    """Return the values of a frame as the CPU reads them."""
    out = Tensor(np.empty_like(like.memory), like.dtype)
    codec.decode(frame, out)
    return out.memory


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_the_cpu_reads_what_the_gpu_wrote_and_so_does_the_gpu(
    emulator: Emulator, pattern: str, dtype: DType
) -> None:
    for count, menu, offset in ((TILE + 3, -1, 0), (9 * TILE + 77, 3, 8)):
        tensor = tensor_of(pattern, dtype, count, seed=count)
        frame = emulator.encode(tensor.memory, dtype, codec_name="ans", menu=menu, offset=offset)
        info = codec.info(frame)
        # Zeros and constants are cheaper in tier's packed layout.
        assert info.packed == (info.codec == "tier")
        assert info.codec != "ans" or info.menu == max(menu, 2)
        assert (decoded_by_cpu(frame, tensor) == tensor.memory).all()
        status, values = emulator.decode(frame, dtype, count, offset=offset)
        assert status == 0
        assert (values == tensor.memory).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_frames_are_as_small_as_those_of_the_cpu(emulator: Emulator, dtype: DType) -> None:
    """The choice of table is the CPU's, but for rounding and, on larger tensors, the sample."""
    tensor = tensor_of("normal", dtype, 64 * TILE, seed=8)
    theirs = cpu_frame(tensor)
    menu = 3
    ours = emulator.encode(tensor.memory, dtype, codec_name="ans", menu=menu)
    assert (codec.info(theirs).codec, codec.info(theirs).menu) == ("ans", 4)
    more_states = 64 / 16 * 136
    assert ours.size < theirs.size + more_states + 64 / 8 * 16 + 0.002 * tensor.nbytes


def test_blocks_that_do_not_shrink_or_do_not_fit_are_raw(emulator: Emulator) -> None:
    """The table knows the common tiles; the block of the others is verbatim."""
    dtype = DType.BFLOAT16
    count = 24 * TILE
    memory = tensor_of("two_symbols", dtype, count, seed=2).memory.copy()
    noise = slice(8 * TILE, 16 * TILE)
    memory[noise] = tensor_of("random_bits", dtype, count, seed=3).memory[noise]
    tensor = Tensor(memory, dtype)
    frame = emulator.encode(memory, dtype, codec_name="ans")
    assert codec.info(frame).codec == "ans"
    assert (decoded_by_cpu(frame, tensor) == memory).all()
    # 32 tiles of 16 raw symbols a row are more than shared memory has room for.
    wide = tensor_of("special_exponents", dtype, 40 * TILE, seed=4)
    frame = emulator.encode(wide.memory, dtype, codec_name="ans", menu=5)
    assert (decoded_by_cpu(frame, wide) == wide.memory).all()


def test_the_number_of_thread_blocks_changes_only_places(emulator: Emulator) -> None:
    dtype = DType.FLOAT16
    tensor = tensor_of("normal", dtype, 60 * TILE + 1, seed=3)
    frames = [
        emulator.encode(tensor.memory, dtype, codec_name="ans", blocks=blocks)
        for blocks in (1, 2, 8)
    ]
    for frame in frames:
        assert (frame[:HEADER] == frames[0][:HEADER]).all()
        assert (decoded_by_cpu(frame, tensor) == tensor.memory).all()
