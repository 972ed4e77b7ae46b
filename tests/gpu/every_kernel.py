"""Run every kernel on the GPU for a moment and compare with the CPU; short enough for a sanitizer.

python tests/gpu/every_kernel.py [--tiles 100] [--dtype BFLOAT16 FLOAT32]
"""

from __future__ import annotations

import argparse
from typing import Any

import cupy
import numpy as np

from uzipmpi.kernels import codec, gpu, reduce
from uzipmpi.typing import Bytes, DType, Tensor

TILE = 1024
Array = Any
# What frames are made of: codec and menu.
KINDS = [("tier", menu) for menu in range(8)] + [("ans", -1), ("raw", -1), ("auto", -1)]


def make_values(dtype: DType, tiles: int, seed: int, *, zeros: bool) -> Tensor:
    """Return tiles of few exponents and of random bits, with zeros and constants if asked."""
    generator = np.random.default_rng(seed)
    count = tiles * TILE + 77
    memory = generator.integers(0, 256, (count, dtype.itemsize), np.uint8)
    kinds = np.arange(count) // TILE % 8
    memory[kinds != 7, -1] = 0x38 + generator.integers(0, 5, count, np.uint8)[kinds != 7]
    if zeros:
        memory[(kinds < 4) & (generator.random(count) < 0.8)] = 0
        memory[kinds == 5] = 7
    return Tensor(memory.reshape(-1), dtype)


def cpu_values(frame: Array, like: Tensor) -> Bytes:
    """Return the values of a frame as the CPU reads them."""
    host = cupy.asnumpy(frame)
    out = Tensor(np.empty_like(like.memory), like.dtype)
    codec.decode(host[: codec.info(host[:64]).frame_bytes], out)
    return out.memory


def require_same(found: Bytes, expected: Bytes, what: str) -> None:
    """Stop where two results differ."""
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        raise SystemExit(f"{what}: {wrong.size} bytes differ, the first at {wrong[0]}")


def check_codec(tensor: Tensor) -> list[Array]:
    """Encode and decode in all ways, sound and damaged; return a frame of the GPU for each."""
    dtype, frames = tensor.dtype, []
    values, status = cupy.asarray(tensor.memory), cupy.zeros(1, np.uint32)
    for name, menu in KINDS:
        what = f"{dtype.name} {name} {menu}"
        frame = cupy.zeros(codec.bound(tensor.count, dtype), np.uint8)
        gpu.encode(values, frame, dtype=dtype, codec=name, menu=menu)
        require_same(cpu_values(frame, tensor), tensor.memory, f"{what}, decoded by the CPU")
        frame = frame[: codec.info(cupy.asnumpy(frame[:64])).frame_bytes]
        out = cupy.empty_like(values)
        gpu.decode(frame, out, status, dtype=dtype)
        if int(status[0]):
            raise SystemExit(f"{what}: expected status 0, found {int(status[0])}")
        require_same(cupy.asnumpy(out), tensor.memory, what)
        for place in range(64, frame.size, frame.size // 3):
            damaged = frame.copy()
            damaged[place] ^= 0x5A
            gpu.decode(damaged, out, cupy.zeros(1, np.uint32), dtype=dtype)
        frames.append(frame)
    return frames


def check_warps(dtype: DType) -> None:
    """Encode with one block, whose warps have groups of their own, and a rest together."""
    tensor = make_values(dtype, 66, 3, zeros=False)
    values = cupy.asarray(tensor.memory)
    for menu in (1, 2, 3, 5):
        frame = cupy.zeros(codec.bound(tensor.count, dtype), np.uint8)
        gpu.encode(values, frame, dtype=dtype, codec="tier", menu=menu, max_blocks=1)
        require_same(cpu_values(frame, tensor), tensor.memory, f"{dtype.name} {menu}, warps alone")


def check_reduce(tensors: list[Tensor], frames: list[Array]) -> None:
    """Fold frames and plain values, with and without a frame of the result."""
    like, dtype = tensors[0], tensors[0].dtype
    status = cupy.zeros(1, np.uint32)
    inputs = [*frames, cupy.asarray(tensors[-1].memory)]
    plain = [len(frames)]
    for op, divisor in (("sum", 1), ("sum", 3), ("sum", 4), ("prod", 1), ("min", 1), ("max", 1)):
        what = f"{dtype.name} {op} / {divisor} of {len(inputs)}"
        expected = Tensor(np.empty_like(like.memory), dtype)
        reduce.fold(op, tensors, expected, divisor)
        out = cupy.empty(like.nbytes, np.uint8)
        gpu.decode_reduce(op, inputs, out, status, plain=plain, divisor=divisor, dtype=dtype)
        require_same(cupy.asnumpy(out), expected.memory, what)
        for kept in (None, out):
            frame = cupy.empty(codec.bound(like.count, dtype), np.uint8)
            gpu.decode_reduce_encode(
                op,
                inputs,
                frame,
                status,
                count=like.count,
                dtype=dtype,
                out=kept,
                plain=plain,
                divisor=divisor,
            )
            require_same(cpu_values(frame, like), expected.memory, f"{what}, a frame")
    if int(status[0]):
        raise SystemExit(f"{dtype.name}: expected status 0, found {int(status[0])}")


def check_many(tensors: list[Tensor]) -> None:
    """Fold more inputs than a launch takes, and encode many tensors in one launch."""
    like, dtype = tensors[0], tensors[0].dtype
    many = [tensors[i % len(tensors)] for i in range(20)]
    expected = Tensor(np.empty_like(like.memory), dtype)
    reduce.fold("sum", many, expected)
    out, status = cupy.empty(like.nbytes, np.uint8), cupy.zeros(1, np.uint32)
    inputs = [cupy.asarray(tensor.memory) for tensor in many]
    gpu.decode_reduce("sum", inputs, out, status, plain=range(20), dtype=dtype)
    require_same(cupy.asnumpy(out), expected.memory, f"{dtype.name} 20 inputs")
    frames = [cupy.empty(codec.bound(like.count, dtype), np.uint8) for _ in inputs]
    gpu.encode_shards(inputs, frames, dtype=dtype)
    for frame, tensor in zip(frames, many, strict=True):
        require_same(cpu_values(frame, tensor), tensor.memory, f"{dtype.name} shards")


def main() -> None:
    """Check each data type."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tiles", type=int, default=100)
    names = [dtype.name for dtype in DType if dtype is not DType.BYTES]
    parser.add_argument("--dtype", nargs="+", default=names, choices=names)
    arguments = parser.parse_args()
    for name in arguments.dtype:
        dtype = DType[name]
        tensors = [make_values(dtype, arguments.tiles, seed, zeros=seed == 1) for seed in range(3)]
        dense, packed = check_codec(tensors[0]), check_codec(tensors[1])
        check_warps(dtype)
        check_reduce(tensors, [dense[2], packed[1]])
        check_reduce([tensors[0], tensors[2]], [dense[5]])  # of two has kernels of its own
        check_many(tensors)
        print(f"{name}: every kernel agrees with the CPU", flush=True)


if __name__ == "__main__":
    main()
