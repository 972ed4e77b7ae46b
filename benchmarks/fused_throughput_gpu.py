"""Measure the fused reductions of the GPU from cold memory, frames and plain values side by side.

    python benchmarks/fused_throughput_gpu.py --inputs 2 4 --mib 16 256 --json FILE

Speeds are bytes of values of all inputs per second.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import provenance
from codec_throughput_gpu import DTYPES, MIB, MOST_SLOTS, POOL_BYTES, draw, microseconds

from uzipmpi.kernels import codec, gpu
from uzipmpi.typing import DType

Array = Any


def make_inputs(data: str, dtype: DType, nbytes: int, n: int, *, framed: bool) -> list[Array]:
    """Return the inputs of one fold in GPU memory."""
    values = draw(data, dtype, nbytes)
    if not framed:
        return [values.copy() for _ in range(n)]
    frame = cupy.empty(codec.bound(nbytes // dtype.itemsize, dtype), np.uint8)
    gpu.encode(values, frame, dtype=dtype, codec="tier")
    size = codec.info(cupy.asnumpy(frame[:64])).frame_bytes
    return [frame[:size].copy() for _ in range(n)]


def measure(data: str, dtype: DType, nbytes: int, n: int, *, framed: bool) -> dict[str, Any]:
    """Time a sum with its result as values, and one with its result as a frame."""
    slots = max(2, min(MOST_SLOTS, POOL_BYTES // (n * nbytes)))
    inputs = [make_inputs(data, dtype, nbytes, n, framed=framed) for _ in range(slots)]
    plain = () if framed else range(n)
    outs = [cupy.empty(nbytes, np.uint8) for _ in range(slots)]
    count = nbytes // dtype.itemsize
    frames = [cupy.empty(codec.bound(count, dtype), np.uint8) for _ in range(slots)]
    status = cupy.zeros(1, np.uint32)
    like = make_inputs(data, dtype, nbytes, 1, framed=True)[0]
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
            "inputs": n,
            "framed": framed,
            "reduce_us": microseconds(stream, reduce, slots),
            "reduce_encode_us": microseconds(stream, reduce_encode, slots),
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
    parser.add_argument("--inputs", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure, print a line per case, and write the record."""
    arguments = parse_arguments()
    rows = []
    for name in arguments.dtype:
        for mib in arguments.mib:
            for n in arguments.inputs:
                for framed in (True, False):
                    row = measure(arguments.data, DTYPES[name], mib * MIB, n, framed=framed)
                    rows.append(row)
                    kind = "frames" if framed else "values"
                    times = [row[key] for key in ("reduce_us", "reduce_encode_us")]
                    speeds = [n * row["bytes"] / time / 1e3 for time in times]
                    print(
                        f"{name} {n} {kind} of {mib:4d} MiB, sum {times[0]:8.2f} us"
                        f" {speeds[0]:5.0f} GB/s, to a frame {times[1]:8.2f} us"
                        f" {speeds[1]:5.0f} GB/s",
                        flush=True,
                    )
                    cupy.get_default_memory_pool().free_all_blocks()
    if arguments.json is not None:
        record = {**provenance.record(), "command": " ".join(sys.argv), "rows": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
