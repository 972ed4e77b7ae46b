"""Fused reductions and the encoder of many tensors, where there is a GPU."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from samples import FLOATS, PATTERNS, TILE, tensor_of

from uzipmpi.kernels import codec, gpu, reduce
from uzipmpi.typing import Bytes, DType, Tensor

try:
    import cupy

    from uzipmpi.kernels import _gpu  # noqa: F401

    cupy.cuda.runtime.getDeviceCount()
except Exception as error:  # whatever a machine without a GPU says
    pytest.skip(f"no GPU, CuPy or GPU half here: {error}", allow_module_level=True)

by_name = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)


def framed(tensor: Tensor, codec_name: str = "tier") -> Any:
    """Return the frame of a tensor, made by the GPU."""
    frame = cupy.empty(codec.bound(tensor.count, tensor.dtype), np.uint8)
    gpu.encode(cupy.asarray(tensor.memory), frame, dtype=tensor.dtype, codec=codec_name)
    return frame[: codec.info(cupy.asnumpy(frame[:64])).frame_bytes]


def folded(op: str, tensors: list[Tensor], divisor: int = 1) -> Bytes:
    """Return what the CPU folds tensors to."""
    out = Tensor(np.empty_like(tensors[0].memory), tensors[0].dtype)
    reduce.fold(op, tensors, out, divisor)
    return out.memory


def decoded(frame: Any, like: Tensor) -> Bytes:
    """Return the values of a frame as the CPU reads them."""
    host = cupy.asnumpy(frame)
    out = Tensor(np.empty_like(like.memory), like.dtype)
    codec.decode(host[: codec.info(host[:64]).frame_bytes], out)
    return out.memory


@by_name
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
@pytest.mark.parametrize("n", [2, 4])  # two have kernels of their own
def test_folds_are_those_of_the_cpu(pattern: str, dtype: DType, n: int) -> None:
    count = 500 * TILE + 77
    tensors = [tensor_of(pattern, dtype, count, seed=seed) for seed in range(n)]
    values = cupy.asarray(tensors[1].memory)
    inputs = [framed(tensors[0]), values]
    inputs += [
        framed(tensor, name) for tensor, name in zip(tensors[2:], ("raw", "tier"), strict=False)
    ]
    status, out = cupy.zeros(1, np.uint32), cupy.empty_like(values)
    frame = cupy.empty(codec.bound(count, dtype), np.uint8)
    for op, divisor in (*((op, 1) for op in reduce.OPS), ("sum", 3)):
        expected = folded(op, tensors, divisor)
        gpu.decode_reduce(op, inputs, out, status, plain=[1], divisor=divisor, dtype=dtype)
        np.testing.assert_array_equal(cupy.asnumpy(out), expected, f"{op} {divisor}")
        for kept in (None, out):
            gpu.decode_reduce_encode(
                op,
                inputs,
                frame,
                status,
                count=count,
                dtype=dtype,
                out=kept,
                plain=[1],
                divisor=divisor,
            )
            np.testing.assert_array_equal(decoded(frame, tensors[0]), expected)
        np.testing.assert_array_equal(cupy.asnumpy(out), expected)
    assert int(status[0]) == 0


@pytest.mark.parametrize("op", reduce.OPS)
@by_name
def test_every_value_of_the_small_types(dtype: DType, op: str) -> None:
    if dtype.itemsize > 2:
        pytest.skip("too many values")
    generator = np.random.default_rng(5)
    bits = 8 * dtype.itemsize
    words = np.arange(1 << 16) % (1 << bits)
    columns = [words, *(generator.permutation(words) for _ in range(2))]
    tensors = [Tensor(c.astype(f"u{dtype.itemsize}").view(np.uint8), dtype) for c in columns]
    inputs = [cupy.asarray(tensor.memory) for tensor in tensors]
    status, out = cupy.zeros(1, np.uint32), cupy.empty_like(inputs[0])
    for divisor in (1, 3, 8):
        gpu.decode_reduce(op, inputs, out, status, plain=range(3), divisor=divisor, dtype=dtype)
        np.testing.assert_array_equal(cupy.asnumpy(out), folded(op, tensors, divisor))


@by_name
def test_more_inputs_than_a_launch_takes(dtype: DType) -> None:
    count = 100 * TILE + 5
    tensors = [tensor_of("normal", dtype, count, seed=seed) for seed in range(35)]
    inputs = [framed(tensor) for tensor in tensors[:-1]] + [cupy.asarray(tensors[-1].memory)]
    status = cupy.zeros(1, np.uint32)
    gpu.decode_reduce("sum", inputs, inputs[-1], status, plain=[34], divisor=35, dtype=dtype)
    assert int(status[0]) == 0
    np.testing.assert_array_equal(cupy.asnumpy(inputs[-1]), folded("sum", tensors, 35))


def test_a_damaged_frame_is_reported() -> None:
    tensor = tensor_of("normal", DType.BFLOAT16, 100 * TILE)
    good = framed(tensor)
    for place in (0, 16, 50, good.size - 100 * TILE // 100):
        bad = good.copy()
        bad[place] ^= 1
        status = cupy.zeros(1, np.uint32)
        out = cupy.empty(tensor.nbytes, np.uint8)
        frame = cupy.empty(codec.bound(tensor.count, tensor.dtype), np.uint8)
        gpu.decode_reduce_encode(
            "sum", [good, bad], frame, status, count=tensor.count, dtype=tensor.dtype, out=out
        )
        if place < 64:
            assert int(status[0]) != 0
        assert (int(status[0]) == 0) == bool(frame[0])


@by_name
def test_frames_of_many_arrays(dtype: DType) -> None:
    counts = [1000 * TILE + 5, 0, 1, 400 * TILE, TILE, TILE - 1, *itertools.repeat(9 * TILE, 70)]
    shards = [tensor_of("normal", dtype, count, seed=i) for i, count in enumerate(counts)]
    frames = [cupy.empty(codec.bound(count, dtype), np.uint8) for count in counts]
    gpu.encode_shards([cupy.asarray(shard.memory) for shard in shards], frames, dtype=dtype)
    for shard, frame in zip(shards, frames, strict=True):
        np.testing.assert_array_equal(decoded(frame, shard), shard.memory)
