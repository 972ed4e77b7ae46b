"""Measure ratio and speed of the GPU codec from cold memory, beside a copy on the same device.

    python benchmarks/codec_throughput_gpu.py --dtype bf16 --data normal uniform --json FILE

README.md defines every number printed.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import datasets
import numpy as np
import provenance

from uzipmpi.kernels import codec, gpu
from uzipmpi.typing import Bytes, DType

DTYPES = {
    "bf16": DType.BFLOAT16,
    "fp16": DType.FLOAT16,
    "fp32": DType.FLOAT32,
    "fp64": DType.FLOAT64,
    "e4m3": DType.FLOAT8_E4M3FN,
    "e5m2": DType.FLOAT8_E5M2,
}
MIB = 1 << 20
POOL_BYTES = 768 * MIB  # the slots of a case together: several times the second-level cache
MOST_SLOTS = 64
REPLAYS = 7
DRAWN_BYTES = 64 * MIB  # longer tensors repeat this many, which no sample notices

Array = Any


@functools.cache
def draw_once(data: str, dtype: DType, nbytes: int) -> Bytes:
    """Return the bytes of a data set."""
    drawn = datasets.make(data, dtype, nbytes // dtype.itemsize, seed=1)
    return np.ascontiguousarray(drawn).reshape(-1).view(np.uint8)


def draw(data: str, dtype: DType, nbytes: int) -> Array:
    """Return the bytes of a data set in GPU memory."""
    host = draw_once(data, dtype, min(nbytes, DRAWN_BYTES))
    return cupy.tile(cupy.asarray(host), -(-nbytes // host.nbytes))[:nbytes]


def microseconds(stream: Any, call: Callable[[int], None], slots: int) -> float:
    """Return the median time of a call, as one of ``slots`` launches in a captured graph."""
    stream.begin_capture()
    for slot in range(slots):
        call(slot)
    graph = stream.end_capture()
    graph.launch(stream)
    times = []
    for _ in range(REPLAYS):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        graph.launch(stream)
        stop.record(stream)
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop) * 1e3 / slots)
    return statistics.median(times)


def measure(
    data: str, dtype: DType, nbytes: int, codec_name: str, menu: int, max_blocks: int
) -> dict[str, Any]:
    """Measure one case: every slot has buffers of its own, and is checked before and after."""
    source = draw(data, dtype, nbytes)
    slots = max(2, min(MOST_SLOTS, POOL_BYTES // nbytes))
    values = [source.copy() for _ in range(slots)]
    frames = [cupy.empty(codec.bound(nbytes // dtype.itemsize, dtype), np.uint8) for _ in values]
    outs = [cupy.empty(nbytes, np.uint8) for _ in values]
    status = cupy.zeros(1, np.uint32)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)

    def encode(slot: int) -> None:
        gpu.encode(
            values[slot],
            frames[slot],
            dtype=dtype,
            codec=codec_name,
            menu=menu,
            max_blocks=max_blocks,
        )

    with stream:
        encode(0)
        encoding = microseconds(stream, encode, slots)
        sizes = [codec.info(cupy.asnumpy(frame[:64])).frame_bytes for frame in frames]

        def decode(slot: int) -> None:
            gpu.decode(
                frames[slot][: sizes[slot]], outs[slot], status, dtype=dtype, max_blocks=max_blocks
            )

        decoding = microseconds(stream, decode, slots)
        stream.synchronize()
    if int(status[0]) or not all(bool((out == source).all()) for out in outs):
        raise SystemExit(f"{data} {dtype.name} {nbytes}: the values that came back are others")
    return {
        "data": data,
        "dtype": dtype.name,
        "bytes": nbytes,
        "codec": codec_name,
        "menu": menu,
        "max_blocks": max_blocks,
        "ratio": sizes[0] / nbytes,
        "encode_us": encoding,
        "decode_us": decoding,
    }


def measure_copy(nbytes: int) -> float:
    """Return the microseconds of a copy on the device, from cold memory."""
    slots = max(2, min(MOST_SLOTS, POOL_BYTES // nbytes))
    pairs = [(cupy.ones(nbytes, np.uint8), cupy.empty(nbytes, np.uint8)) for _ in range(slots)]
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)

    def copy(slot: int) -> None:
        source, target = pairs[slot]
        target.data.copy_from_device_async(source.data, nbytes, stream)

    with stream:
        return microseconds(stream, copy, slots)


def parse_arguments() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", nargs="+", default=["normal"], choices=sorted(datasets.DATASETS))
    parser.add_argument("--dtype", nargs="+", default=["bf16"], choices=DTYPES)
    parser.add_argument("--mib", nargs="+", type=int, default=[1, 4, 16, 256, 1024])
    parser.add_argument("--menu", nargs="+", type=int, default=[-1], help="-1: chosen by a sample")
    parser.add_argument("--codec", default="tier", choices=["auto", "tier", "ans", "raw"])
    parser.add_argument("--max-blocks", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure, print a line per case, and write the record."""
    arguments = parse_arguments()
    rows: list[dict[str, Any]] = []
    for mib in arguments.mib:
        time = measure_copy(mib * MIB)
        rows.append({"data": "copy", "bytes": mib * MIB, "encode_us": time})
        print(f"copy {mib:5d} MiB {time:9.2f} us {mib * MIB / time / 1e3:7.0f} GB/s", flush=True)
        for data in arguments.data:
            for name in arguments.dtype:
                for menu in arguments.menu:
                    row = measure(
                        data,
                        DTYPES[name],
                        mib * MIB,
                        arguments.codec,
                        menu,
                        arguments.max_blocks,
                    )
                    rows.append(row)
                    speeds = [row["bytes"] / row[key] / 1e3 for key in ("encode_us", "decode_us")]
                    print(
                        f"{data:8s} {name} {mib:5d} MiB menu {menu:2d} ratio {row['ratio']:.4f}"
                        f" encode {row['encode_us']:8.2f} us {speeds[0]:5.0f} GB/s"
                        f" decode {row['decode_us']:8.2f} us {speeds[1]:5.0f} GB/s",
                        flush=True,
                    )
                    cupy.get_default_memory_pool().free_all_blocks()
    if arguments.json is not None:
        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        record = {
            **provenance.record(),
            "command": " ".join(sys.argv),
            "gpu": properties["name"].decode(),
            "driver": cupy.cuda.runtime.driverGetVersion(),
            "cupy": cupy.__version__,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
