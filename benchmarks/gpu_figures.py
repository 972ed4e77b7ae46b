"""GPU tensors through the communicator beside our own ``raw`` on the same way, two ranks.

    mpirun -np 2 python benchmarks/gpu_figures.py algorithms --json FILE
    mpirun -np 2 python benchmarks/gpu_figures.py dtypes --json FILE
    mpirun -np 2 python benchmarks/gpu_figures.py weights --json FILE
    mpirun -np 2 python benchmarks/gpu_figures.py limits --json FILE
    python benchmarks/gpu_figures.py plot FILE...

README.md says what each is and defines the numbers. Needs a GPU per rank and no other library.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import provenance
from gpu_arrays import GpuArray, gpu_of_rank
from mpi4py import MPI

import uzipmpi
from uzipmpi.kernels import device_codec
from uzipmpi.transports.mpi_host import MpiHost
from uzipmpi.typing import DType

MB = 1 << 20
BLOCK = 1 << 21  # values that are drawn; a tensor is as many of these as it has room for
ROUNDS = 7
CALLS = 3
WEIGHT_BYTES = 214_000_000
STEPS = 8
STAGING_BYTES = 164_000_000
UNBOUNDED = 1 << 40

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()


class Row(NamedTuple):
    """One operation under some options on one tensor."""

    label: str
    operation: str
    dtype: str
    data: str
    nbytes: int
    microseconds: float
    raw_microseconds: float
    ratio: float

    @property
    def speedup(self) -> float:
        """The time that ``raw`` takes over ours."""
        return self.raw_microseconds / self.microseconds


class Pair:
    """What a rank sends, and where it receives."""

    def __init__(self, data: str, dtype: DType, nbytes: int) -> None:
        self.dtype, self.data, self.nbytes = dtype, data, nbytes
        count = nbytes // dtype.itemsize
        self.blocks = [datasets.make(data, dtype, min(BLOCK, count), seed=r) for r in range(size)]
        gpu = gpu_of_rank()
        self._sent = GpuArray.of(np.resize(self.blocks[rank], count), gpu)
        self._received = GpuArray.of(np.zeros(count, dtype.numpy), gpu)

    @property
    def sent(self) -> Any:
        """As a communicator takes it."""
        return [self._sent, self.dtype.numpy.name]

    @property
    def received(self) -> Any:
        """As a communicator takes it."""
        return [self._received, self.dtype.numpy.name]

    def replace(self, block: np.ndarray) -> None:
        """Send other values from now on."""
        self.blocks[rank] = block
        self._sent.put(np.resize(block, self._sent.size))

    def holds(self, block: np.ndarray) -> bool:
        """Whether what was received repeats a block, bit for bit."""
        found, wanted = self._received.get().view(np.uint8), block.view(np.uint8)
        starts = range(0, found.size, wanted.size)
        parts = (found[start : start + wanted.size] for start in starts)
        return all(np.array_equal(part, wanted[: part.size]) for part in parts)


def send(comm: uzipmpi.Comm, pair: Pair) -> None:
    """Go there and come back: two messages."""
    for turn in range(2):
        if rank == turn:
            comm.Send(pair.sent, 1 - rank)
        else:
            comm.Recv(pair.received, 1 - rank)


def allreduce(comm: uzipmpi.Comm, pair: Pair) -> None:
    comm.Allreduce(pair.sent, pair.received)


OPERATIONS: dict[str, Callable[[uzipmpi.Comm, Pair], None]] = {"send": send, "allreduce": allreduce}
MESSAGES = {"send": 2, "allreduce": 1}


def check(comm: uzipmpi.Comm, operation: str, pair: Pair) -> None:
    """Stop unless what arrives has the bits that it should have."""
    OPERATIONS[operation](comm, pair)
    if operation == "send":
        wanted = pair.blocks[1 - rank]
    else:
        wide = np.float64 if pair.dtype is DType.FLOAT64 else np.float32
        total = pair.blocks[0].astype(wide) + pair.blocks[1].astype(wide)
        wanted = total.astype(pair.dtype.numpy)
    if not pair.holds(wanted):
        raise SystemExit(f"{operation} of {pair.nbytes} bytes, {pair.data}: others came")


def seconds(comm: uzipmpi.Comm, operation: str, pair: Pair) -> float:
    """Return the time of a message, or a call, on the slower rank."""
    world.Barrier()
    start = time.perf_counter()
    for _ in range(CALLS):
        OPERATIONS[operation](comm, pair)
    elapsed: float = world.allreduce(time.perf_counter() - start, MPI.MAX)
    return elapsed / CALLS / MESSAGES[operation]


def connected(options: argparse.Namespace, **more: Any) -> uzipmpi.Comm:
    """Return a communicator that compresses on the way that was asked for."""
    asked: dict[str, Any] = {"transport": options.transport, "compress": "always", "min_bytes": 0}
    if options.chunk_mb:
        asked["chunk_bytes"] = int(options.chunk_mb * MB)
    return uzipmpi.Comm(world.Dup(), **{**asked, **more})


def compared(
    options: argparse.Namespace,
    comms: dict[str, uzipmpi.Comm],
    operation: str,
    pair: Pair,
    raw: Sequence[str] = ("raw",),
) -> Iterator[Row]:
    """Measure an operation on each communicator, in turns, and beside the one that is its raw.

    Parameters
    ----------
    comms
        By what the row is called.
    raw
        Which of them are raw: one for all, or one for each of the others in their order.
    """
    times: dict[str, list[float]] = {label: [] for label in comms}
    for comm in comms.values():
        check(comm, operation, pair)
        seconds(comm, operation, pair)
        comm.stats.reset()
    for _ in range(options.rounds):
        for label, comm in comms.items():
            times[label].append(seconds(comm, operation, pair) * 1e6)
    medians = {label: statistics.median(values) for label, values in times.items()}
    others = [label for label in comms if label not in raw]
    beside = dict(zip(others, raw if len(raw) > 1 else [raw[0]] * len(others), strict=True))
    for label, comm in comms.items():
        totals = comm.stats["Allreduce" if operation == "allreduce" else "Send"]
        yield Row(
            label,
            operation,
            pair.dtype.numpy.name,
            pair.data,
            pair.nbytes,
            medians[label],
            medians[beside.get(label, label)],
            totals.ratio,
        )


def algorithms(options: argparse.Namespace) -> Iterator[Row]:
    """Messages whole, split, in chunks and by an MPI that can; sums by three algorithms."""
    names = {"send": ("whole", "split", "chunked"), "allreduce": ("one_shot", "two_shot", "ring")}
    for operation in options.operations:
        option = "p2p" if operation == "send" else operation
        comms = {name: connected(options, **{option: name}) for name in names[operation]}
        comms["raw"] = connected(options, codec="raw")
        if operation == "send" and options.transport == "mpi-device":
            comms["MPI"] = connected(options, compress="never")
        for megabytes in options.mb or (1, 4, 16, 64, 256):
            pair = Pair(options.data, DType.BFLOAT16, int(megabytes * MB))
            yield from compared(options, comms, operation, pair)


def dtypes(options: argparse.Namespace) -> Iterator[Row]:
    """All types; 8-bit ones of N(0, 1), as N(0, 0.02) leaves them few values."""
    comms = {"auto": connected(options), "raw": connected(options, codec="raw")}
    for dtype in DType:
        if dtype is DType.BYTES:
            continue
        data = "unit_normal" if dtype.itemsize == 1 else options.data
        for megabytes in options.mb or (64,):
            pair = Pair(data, dtype, int(megabytes * MB))
            for operation in options.operations:
                yield from compared(options, comms, operation, pair)


def weights(options: argparse.Namespace) -> Iterator[Row]:
    """A tensor of weights, sent after each step of an optimiser that moves them a little."""
    comms = {"auto": connected(options), "raw": connected(options, codec="raw")}
    nbytes = int(options.mb[0] * MB) if options.mb else WEIGHT_BYTES
    pair = Pair(options.data, DType.BFLOAT16, nbytes)
    exact = [block.astype(np.float32) for block in pair.blocks]
    generator = np.random.default_rng(0)
    for step in range(STEPS):
        for place, values in enumerate(exact):
            values += generator.standard_normal(values.size, np.float32) * 1e-3 - values * 1e-2
            pair.blocks[place] = values.astype(DType.BFLOAT16.numpy)
        pair.replace(pair.blocks[rank])
        for row in compared(options, comms, "send", pair):
            yield row._replace(label=f"{row.label}, step {step}")


def limits(options: argparse.Namespace) -> Iterator[Row]:
    """Parts of the multiprocessors; as much GPU memory for frames as the default, and as wanted."""
    settings: dict[str, dict[str, Any]] = {}
    for part in (100, 75, 50):
        settings[f"{part}% of SMs"] = {"max_sms": 0 if part == 100 else options.sms * part // 100}
    settings["164 MB"] = {"max_staging_bytes": STAGING_BYTES}
    settings["unbounded"] = {"max_staging_bytes": UNBOUNDED}
    comms = {name: connected(options, **more) for name, more in settings.items()}
    raws = [f"raw, {name}" for name in settings]
    for name, more in zip(raws, settings.values(), strict=True):
        comms[name] = connected(options, codec="raw", **more)
    for megabytes in options.mb or (64, 256):
        pair = Pair(options.data, DType.BFLOAT16, int(megabytes * MB))
        for operation in options.operations:
            yield from compared(options, comms, operation, pair, raws)


class Leaving:
    """Notes when the last frame of a message begins to be made, and what has left until then."""

    def __init__(self) -> None:
        self.left_bytes = self.left_before_last = 0
        self._send_all, self._encode = MpiHost.send_all, device_codec.encode

    def __enter__(self) -> Leaving:
        leaving = self

        def send_all(transport: MpiHost, memory: Any, dests: Sequence[int], tag: int) -> Any:
            leaving.left_bytes += memory.size
            return leaving._send_all(transport, memory, dests, tag)

        def encode(*arguments: Any, **more: Any) -> None:
            leaving.left_before_last = leaving.left_bytes
            leaving._encode(*arguments, **more)

        MpiHost.send_all, device_codec.encode = send_all, encode  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        MpiHost.send_all = self._send_all  # type: ignore[method-assign]
        device_codec.encode = self._encode


def leaving(options: argparse.Namespace) -> dict[str, float]:
    """Return which part of a message's bytes is sent before the last values are coded, by size."""
    comm, found = connected(options, p2p="split"), {}
    for megabytes in options.mb or (1, 4, 16, 64, 256):
        pair = Pair(options.data, DType.BFLOAT16, int(megabytes * MB))
        with Leaving() as seen:
            send(comm, pair)
        found[f"{megabytes:g}"] = seen.left_before_last / max(seen.left_bytes, 1)
    return found


FIGURES = {"algorithms": algorithms, "dtypes": dtypes, "weights": weights, "limits": limits}


def plot(path: Path) -> None:
    """Draw the speed of values against the size of a tensor, or against what it is, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    record = json.loads(path.read_text())
    rows = [Row(**row) for row in record["rows"]]
    across = {"dtypes": "dtype", "weights": "step"}.get(record["figure"], "MB")
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    curves: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        label, _, step = row.label.partition(", step ")
        place = {"dtype": row.dtype, "step": step}.get(across, f"{row.nbytes / MB:g}")
        speed = row.nbytes / row.microseconds / 1e3
        curves.setdefault(f"{row.operation}, {label}", []).append((place, speed))
    for label, points in curves.items():
        style = "--" if "raw" in label else "-"
        axes.plot(*zip(*points, strict=True), style, marker="o", label=label)
    axes.set_xlabel(across)
    axes.set_ylabel("GB/s of values")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{record['figure']}, {record['transport']}, two ranks")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path.with_suffix(".png"), dpi=150)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", choices=[*FIGURES, "plot"])
    parser.add_argument("files", nargs="*", type=Path, help="what to plot")
    parser.add_argument("--transport", default="mpi-host")
    parser.add_argument("--chunk-mb", type=float, default=0, help="0: the default")
    parser.add_argument("--data", default="normal", choices=datasets.DATASETS)
    parser.add_argument("--mb", nargs="+", type=float, help="sizes; each figure has its own")
    parser.add_argument("--operations", nargs="+", default=list(OPERATIONS), choices=OPERATIONS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sms", type=int, default=132, help="multiprocessors of the GPU")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.figure == "plot":
        for path in options.files:
            plot(path)
        return
    if size != 2:
        raise SystemExit(f"expected two ranks, found {size}")
    found = []
    for row in FIGURES[options.figure](options):
        found.append(row)
        if rank == 0:
            speed = row.nbytes / row.microseconds / 1e3
            print(
                f"{row.operation:10}{row.label:18}{row.dtype:15}{row.nbytes / MB:7.4g} MB "
                f"{row.microseconds:9.1f} us {speed:6.1f} GB/s {row.speedup:5.2f} x raw, "
                f"ratio {row.ratio:.3f}",
                flush=True,
            )
    left = leaving(options) if options.figure == "algorithms" else {}
    if rank == 0:
        if left:
            parts = ", ".join(f"{100 * part:.0f}% of {name} MB" for name, part in left.items())
            print(f"sent before the last values are coded: {parts}")
        if options.json:
            record = {
                **provenance.record(),
                "figure": options.figure,
                "transport": options.transport,
                "command": " ".join(sys.argv),
                "sent_before_last_coded": left,
                "rows": [row._asdict() for row in found],
            }
            options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
