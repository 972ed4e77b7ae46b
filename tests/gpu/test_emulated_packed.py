"""The packed layout of codec ``tier``: the GPU's code against the CPU's, on an emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest
from emulator import Emulator
from samples import FLOATS, TILE, mixed

from uzipmpi.kernels import codec
from uzipmpi.typing import Bytes, DType, Tensor

HEADER = 64
PACKED_OFTEN = ("zeros", "constant", "zero_heavy")
ALL_KINDS = ["zero_heavy", "constant", "outliers", "zeros"]


def cpu_frame(tensor: Tensor) -> Bytes:
    """Return the CPU's ``tier`` frame."""
    out = np.empty(codec.bound(tensor.count, tensor.dtype), np.uint8)
    return out[: codec.encode(tensor, out, codec="tier")]


def decoded_by_cpu(frame: Bytes, like: Tensor) -> Bytes | None:
    """Return the values of a frame as the CPU reads them; None if it is malformed."""
    out = Tensor(np.empty_like(like.memory), like.dtype)
    try:
        codec.decode(frame, out)
    except ValueError:
        return None
    return out.memory


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("other", ["normal", "outliers", "random_bits", "wrapped"])
def test_the_gpu_reads_frames_of_the_cpu(emulator: Emulator, dtype: DType, other: str) -> None:
    """Tiles of all four kinds, and masks of few and of many zeros."""
    packed = 0
    for seed, zeros in enumerate(PACKED_OFTEN):
        count = 10 * TILE + 7 * seed
        tensor = mixed([zeros, "zero_heavy", other, "zeros"], dtype, count, seed)
        frame = cpu_frame(tensor)
        packed += codec.info(frame).packed
        status, values = emulator.decode(frame, dtype, count, offset=8 * (seed % 2))
        assert status == 0
        assert (values == tensor.memory).all()
    assert packed >= 2


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_damage_is_seen_as_the_cpu_sees_it(emulator: Emulator, dtype: DType) -> None:
    tensor = mixed(ALL_KINDS, dtype, 9 * TILE + 5, 3)
    frame = cpu_frame(tensor)
    assert codec.info(frame).packed
    generator = np.random.default_rng(4)
    tails = frame.size - codec.info(frame).tail_bytes
    ranges = ((0, HEADER), (tails - 32, tails), (tails, frame.size), (tails, tails + 200))
    reported = 0
    for round_number in range(60):
        damaged = frame.copy()
        damaged[generator.integers(*ranges[round_number % 4])] ^= 1 << generator.integers(8)
        status, values = emulator.decode(damaged, dtype, tensor.count)
        reported += status != 0
        theirs = decoded_by_cpu(damaged, tensor)
        assert (theirs is not None) == (status == 0)
        if theirs is not None:
            assert (values == theirs).all()
    assert reported >= 15


MIXTURES = (
    ["zeros"],
    ["constant"],
    ["zero_heavy"],
    ["zeros", "normal"],
    ["zero_heavy", "constant"],
    ["zero_heavy", "outliers"],
    ["zero_heavy", "random_bits"],
    ["zero_heavy", "wrapped"],
)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("mixture", MIXTURES, ids="-".join)
def test_a_group_has_the_bytes_that_the_cpu_gives_it(
    emulator: Emulator, mixture: list[str], dtype: DType
) -> None:
    """All values are sampled, so with the same menu all is the same; one group, one order."""
    tensor = mixed(mixture, dtype, 2 * TILE, 5)
    theirs = cpu_frame(tensor)
    menu = codec.info(theirs).menu
    ours = emulator.encode(tensor.memory, dtype, codec_name="tier", menu=menu)
    assert codec.info(ours) == codec.info(theirs)
    assert (ours == theirs).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", ["tier", "ans"])
def test_the_cpu_reads_what_the_gpu_wrote(emulator: Emulator, name: str, dtype: DType) -> None:
    """Several groups, a remainder, values at any place."""
    tensor = mixed(ALL_KINDS, dtype, 19 * TILE + 77, 6)
    frame = emulator.encode(tensor.memory, dtype, codec_name=name, offset=8, blocks=2)
    assert codec.info(frame).packed
    theirs = decoded_by_cpu(frame, tensor)
    assert theirs is not None
    assert (theirs == tensor.memory).all()
    status, values = emulator.decode(frame, dtype, tensor.count)
    assert status == 0
    assert (values == tensor.memory).all()


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32], ids=lambda dtype: dtype.name)
def test_nine_zeros_in_ten_become_as_small_as_on_the_cpu(emulator: Emulator, dtype: DType) -> None:
    generator = np.random.default_rng(7)
    values = generator.normal(0, 0.02, 40 * TILE).astype(dtype.numpy)
    values[generator.random(values.size) < 0.9] = 0
    tensor = Tensor(values.view(np.uint8), dtype)
    frame = emulator.encode(tensor.memory, dtype)
    assert frame.size < 0.14 * tensor.nbytes
    assert frame.size < 1.01 * cpu_frame(tensor).size
