"""Measure the fused reductions of the GPU from cold memory, frames and plain values side by side.

    python benchmarks/fused_throughput_gpu.py --inputs 2 4 --mib 16 256 --json FILE

Speeds are bytes of values of all inputs per second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import provenance
from codec_throughput import DTYPES
from throughput_gpu import MIB, GpuGraph, draw, machine, n_slots

from uzipmpi.kernels import codec, gpu
from uzipmpi.typing import DType

REPLAYS = 7
SHIFT = 12_345_678  # values

Array = Any


def make_inputs(data: str, dtype: DType, nbytes: int, frames: int, plain: int) -> list[Array]:
    """Return the inputs of one fold in GPU memory, plain values last.

    They are the same values in other places, so that sums are those of independent ones.
    """
    drawn = draw(data, dtype, nbytes)
    tensors = [cupy.roll(drawn, SHIFT * k * dtype.itemsize) for k in range(frames + plain)]
    return [framed(tensor, dtype) for tensor in tensors[:frames]] + tensors[frames:]


def framed(values: Array, dtype: DType) -> Array:
    """Return the frame of values."""
    frame = cupy.empty(codec.bound(values.size // dtype.itemsize, dtype), np.uint8)
    gpu.encode(values, frame, dtype=dtype, codec="tier")
    return frame[: codec.info(cupy.asnumpy(frame[:64])).frame_bytes].copy()


def microseconds(call: Callable[[int], None], slots: int) -> float:
    """Return the median time of a call."""
    graph = GpuGraph(call, slots)
    return statistics.median(graph.seconds() for _ in range(REPLAYS)) / slots * 1e6


def measure(data: str, dtype: DType, nbytes: int, n_frames: int, n_plain: int) -> dict[str, Any]:
    """Time a sum with its result as values, and one with its result as a frame."""
    n = n_frames + n_plain
    slots = n_slots(n * nbytes)
    inputs = [make_inputs(data, dtype, nbytes, n_frames, n_plain) for _ in range(slots)]
    plain = range(n_frames, n)
    outs = [cupy.empty(nbytes, np.uint8) for _ in range(slots)]
    count = nbytes // dtype.itemsize
    frames = [cupy.empty(codec.bound(count, dtype), np.uint8) for _ in range(slots)]
    status = cupy.zeros(1, np.uint32)
    # Values alone say nothing of their sum; frames do.
    like = None if n_frames else framed(draw(data, dtype, nbytes), dtype)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)

    def reduce(slot: int) -> None:
        gpu.decode_reduce("sum", inputs[slot], outs[slot], status, plain=plain, dtype=dtype)

    def reduce_encode(slot: int) -> None:
        gpu.decode_reduce_encode(
            "sum",
            inputs[slot],
            frames[slot],
            status,
            count=count,
            dtype=dtype,
            plain=plain,
            like=like,
        )

    with stream:
        reduce_encode(0)
        row = {
            "data": data,
            "dtype": dtype.name,
            "bytes": nbytes,
            "frames": n_frames,
            "plain": n_plain,
            "reduce_us": microseconds(reduce, slots),
            "reduce_encode_us": microseconds(reduce_encode, slots),
        }
        stream.synchronize()
    if int(status[0]):
        raise SystemExit(f"{data} {dtype.name}: expected status 0, found {int(status[0])}")
    row["ratio"] = codec.info(cupy.asnumpy(frames[0][:64])).frame_bytes / nbytes
    return row


def parse_arguments() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="normal")
    parser.add_argument("--dtype", nargs="+", default=["bf16", "fp32"], choices=DTYPES)
    parser.add_argument("--mib", nargs="+", type=int, default=[16, 256])
    parser.add_argument("--inputs", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure, print a line per case, and write the record."""
    arguments = parse_arguments()
    rows = []
    cases = [(1, 1), *((n, 0) for n in arguments.inputs), *((0, n) for n in arguments.inputs)]
    for name in arguments.dtype:
        for mib in arguments.mib:
            for frames, plain in cases:
                row = measure(arguments.data, DTYPES[name], mib * MIB, frames, plain)
                rows.append(row)
                times = [row[key] for key in ("reduce_us", "reduce_encode_us")]
                speeds = [(frames + plain) * row["bytes"] / time / 1e3 for time in times]
                print(
                    f"{name} {frames} frames and {plain} plain of {mib:4d} MiB,"
                    f" sum {times[0]:8.2f} us {speeds[0]:5.0f} GB/s,"
                    f" to a frame {times[1]:8.2f} us {speeds[1]:5.0f} GB/s",
                    flush=True,
                )
                cupy.get_default_memory_pool().free_all_blocks()
    if arguments.json is not None:
        record = {
            **provenance.record(),
            "command": " ".join(sys.argv),
            **machine(),
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
