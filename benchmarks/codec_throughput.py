"""Measure ratio and speed of the codecs beside peers, on one core or a GPU, from memory.

    python benchmarks/codec_throughput.py --dtype bf16 --data normal uniform minilm --json FILE
    python benchmarks/codec_throughput.py -d cuda -m 1048576 1073741824 --json FILE

README.md defines every number printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import provenance
from peers import PEERS, Measured, MissingPeerError, Peer, open_peer

import uzipmpi
from uzipmpi.kernels import codec
from uzipmpi.typing import Bytes, DType

EXPONENT_BITS = {"bf16": 8, "fp16": 5, "fp32": 8, "fp64": 11}
# The buffers' sum in last-level caches: used in turn, each is read from memory.
CACHES = 4
DEFAULT_CACHE_BYTES = 32 << 20
Clock = Callable[[], float]
# CPU time of the whole process: neither other programs nor threads of a peer change the figures.
CLOCKS: dict[str, Clock] = {"cpu": time.process_time, "wall": time.perf_counter}
SIZE_WIDTH, FIELD_WIDTH = 11, 14
COLUMNS = (
    "Ratio",
    "Floor",
    "Encode(us)",
    "Decode(us)",
    "Encode(GB/s)",
    "Decode(GB/s)",
    "Encode/memcpy",
    "Decode/memcpy",
)


@dataclass
class Pool:
    """Buffers of one size: the values, room for frames, and room for what is decoded."""

    values: list[Bytes]
    frames: list[Bytes]
    decoded: list[Bytes]

    @classmethod
    def of(cls, tensors: Bytes, size: int, dtype: DType) -> Pool:
        """Cut one array of values into buffers, and map room for the results beforehand."""
        n = tensors.size // size
        bound = codec.bound(size // dtype.itemsize, dtype)
        room, decoded = np.ones(n * bound, np.uint8), np.ones(n * size, np.uint8)
        return cls(cut(tensors, size), cut(room, bound), cut(decoded, size))


def cut(memory: Bytes, size: int) -> list[Bytes]:
    return [memory[start : start + size] for start in range(0, memory.size, size)]


@dataclass
class Case:
    """What was measured of ``n`` tensors of ``nbytes`` together; one of them, or a part of it."""

    measured: dict[str, Measured]
    nbytes: int
    n: int
    sample: Bytes


def run_round(peer: Peer, pool: Pool, clock: Clock, measured: Measured | None = None) -> None:
    """Encode all buffers, then decode all; by then the first frame has left the cache."""
    start = clock()
    frames = [peer.encode(*pair) for pair in zip(pool.values, pool.frames, strict=True)]
    middle = clock()
    results = [peer.decode(*pair) for pair in zip(frames, pool.decoded, strict=True)]
    end = clock()
    if measured is None:
        return
    measured.encode.append(middle - start)
    measured.decode.append(end - middle)
    measured.frame_bytes = sum(len(frame) for frame in frames)
    for values, result in zip(pool.values, results, strict=True):
        same = np.array_equal(values, np.frombuffer(result, np.uint8))
        measured.lossless = measured.lossless and same
    for decoded in pool.decoded:  # nothing of this round may pass for the next one's result
        decoded[...] = 0xA5


def measure(peers: dict[str, Peer], pool: Pool, n_rounds: int, clock: Clock) -> dict[str, Measured]:
    """Time all codecs in turn, round after round, so that a disturbance meets all of them."""
    measured = {name: Measured([], []) for name in peers}
    for peer in peers.values():
        run_round(peer, pool, clock)
    for _ in range(n_rounds):
        for name, peer in peers.items():
            run_round(peer, pool, clock, measured[name])
    return measured


def entropy(symbols: np.ndarray[Any, Any]) -> float:
    """Return the order-0 entropy in bits."""
    counts = np.bincount(symbols)
    shares = counts[counts > 0] / symbols.size
    return float(-(shares * np.log2(shares)).sum())


def floor_ratio(values: Bytes, name: str) -> float:
    """Return the ratio of an ideal code for the exponents alone; of whole bytes for fp8."""
    itemsize = datasets.DTYPES[name].itemsize
    if itemsize == 1:
        return entropy(values) / 8
    bits, exponent_bits = 8 * itemsize, EXPONENT_BITS[name]
    words = values.view(f"<u{itemsize}")
    exponents = words >> (bits - 1 - exponent_bits) & ((1 << exponent_bits) - 1)
    return (entropy(exponents.astype(np.uint16)) + bits - exponent_bits) / bits


def cache_bytes() -> int:
    """Return the size of the last-level cache."""
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [int(path.read_text().rstrip("K\n")) << 10 for path in folder.glob("index*/size")]
    return max(sizes, default=DEFAULT_CACHE_BYTES)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add = parser.add_argument
    add("-m", "--message-size", nargs="+", metavar="[MIN:]MAX", default=[str(64 << 20)],
        help="bytes, doubling from MIN; MAX alone is one size (default %(default)s)")  # fmt: skip
    add("-i", "--iterations", type=int, default=7, help="rounds (default %(default)s)")
    add("-d", "--device", choices=("cpu", "cuda"), default="cpu", help="where the codec runs")
    add("--dtype", nargs="+", choices=datasets.DTYPES, default=["bf16"])
    add("--data", nargs="+", choices=datasets.DATASETS, default=["normal", "uniform", "minilm"])
    add("--codec", nargs="+", help="what to measure (default: all there is)")
    add("--simd", choices=codec.SIMD_PATHS, help="instruction set of ours (default: the best)")
    add("--clock", choices=CLOCKS, default="cpu", help="what a second is (default %(default)s)")
    add("--multiprocessors", type=int, default=0, help="of the GPU; default: all of them")
    add("--json", metavar="FILE", type=Path, help="write rows and provenance")
    return parser.parse_args()


def message_sizes(texts: list[str]) -> Iterator[int]:
    """Yield sizes from MIN to MAX, doubling, of each range."""
    for text in texts:
        low, _, high = text.rpartition(":")
        size, last = int(low or high), int(high)
        while size <= last:
            yield size
            size *= 2


def open_peers(names: list[str], dtype: DType) -> dict[str, Peer]:
    """Return the codecs that can take part, memcpy first; say which cannot, and why."""
    peers = {}
    for name in dict.fromkeys(["memcpy", *names]):
        try:
            peers[name] = open_peer(name, dtype)
        except MissingPeerError as reason:
            print(f"# {name} is left out: {reason}")
    return peers


def rows_of(case: Case, dtype: str) -> Iterator[dict[str, Any]]:
    """Yield what is printed for each codec, and what only JSON shows."""
    total, n, measured = case.nbytes, case.n, case.measured
    floor = floor_ratio(case.sample, dtype)
    best_copy = min(measured["memcpy"].encode + measured["memcpy"].decode)
    for name, result in measured.items():
        encode, decode = min(result.encode), min(result.decode)
        yield {
            "Codec": name,
            "Ratio": result.frame_bytes / total,
            "Floor": floor,
            "Encode(us)": encode / n * 1e6,
            "Decode(us)": decode / n * 1e6,
            "Encode(GB/s)": total / encode / 1e9,
            "Decode(GB/s)": total / decode / 1e9,
            "Encode/memcpy": best_copy / encode,
            "Decode/memcpy": best_copy / decode,
            "Lossless": result.lossless,
            "Median encode(GB/s)": total / statistics.median(result.encode) / 1e9,
            "Median decode(GB/s)": total / statistics.median(result.decode) / 1e9,
        }


def print_row(size: int, row: dict[str, Any]) -> None:
    cells = "".join(f"{row[column]:>{FIELD_WIDTH}.4f}" for column in COLUMNS)
    verdict = "" if row["Lossless"] else "  NOT LOSSLESS"
    print(f"{size:<{SIZE_WIDTH}}{row['Codec']:>{FIELD_WIDTH}}{cells}{verdict}", flush=True)


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure every dtype, data set and size; yield the rows."""
    measure_case = measure_on_gpu if options.device == "cuda" else measure_on_core
    for dtype in options.dtype:
        for data in options.data:
            print(f"\n# {dtype}, {data}")
            titles = "".join(f"{title:>{FIELD_WIDTH}}" for title in ("Codec", *COLUMNS))
            print(f"{'# Size':<{SIZE_WIDTH}}{titles}")
            for size in message_sizes(options.message_size):
                case = measure_case(options, data, datasets.DTYPES[dtype], size)
                for row in rows_of(case, dtype):
                    print_row(size, row)
                    yield {"Dtype": dtype, "Data": data, "Size": size, **row}


def measure_on_core(options: argparse.Namespace, data: str, dtype: DType, size: int) -> Case:
    """Measure the codecs on a core of this machine."""
    peers = open_peers(options.codec or list(PEERS), dtype)
    pool = make_pool(data, dtype, size)
    measured = measure(peers, pool, options.iterations, CLOCKS[options.clock])
    total = sum(values.size for values in pool.values)
    return Case(measured, total, len(pool.values), pool.values[0])


def measure_on_gpu(options: argparse.Namespace, data: str, dtype: DType, size: int) -> Case:
    """Measure the codecs on the current GPU."""
    import peers_gpu  # CuPy is wanted here only

    slots = peers_gpu.make_slots(data, dtype, size)
    measured = peers_gpu.measure(options.codec, slots, options.iterations, options.multiprocessors)
    sample = peers_gpu.sample_of(slots)
    return Case(measured, size * len(slots.values), len(slots.values), sample)


def make_pool(data: str, dtype: DType, size: int) -> Pool:
    """Return buffers that together do not fit the cache, of different values."""
    n = max(2, -(-CACHES * cache_bytes() // size))
    tensors = datasets.make(data, dtype, n * (size // dtype.itemsize)).view(np.uint8)
    return Pool.of(tensors, size - size % dtype.itemsize, dtype)


def main() -> None:
    options = parse()
    if options.simd:
        codec.force_simd(options.simd)
    record: dict[str, Any] = {
        "benchmark": "codec_throughput",
        **provenance.record(),
        "simd": codec.simd_path(),
        "cache_bytes": cache_bytes(),
        "load": os.getloadavg()[0],
        "command": " ".join(sys.argv),
        "arguments": {name: str(value) for name, value in vars(options).items()},
    }
    if options.device == "cuda":
        import throughput_gpu

        record.update(throughput_gpu.machine())
        settings = f"{record['gpu']}, from memory"
    else:
        settings = f"{codec.simd_path()}, one core, {options.clock} time, from memory"
    print(f"# uzipmpi {uzipmpi.__version__}: {settings}")
    record["rows"] = list(run(options))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if not all(row["Lossless"] for row in record["rows"]):
        sys.exit("expected every codec to be lossless, found one that is not")


if __name__ == "__main__":
    main()
