"""Codec ``ans`` of the GPU against the CPU's, on an emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest
from emulator import Emulator
from samples import FLOATS, TILE, tensor_of

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
