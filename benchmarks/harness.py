"""Measure one MPI operation through uzipmpi and through plain mpi4py, side by side in one run.

A benchmark is a :class:`~case.Case` and ``main(TheCase)``. This module owns warm-up, interleaving,
medians and validation; report.py the options, OSU's columns and JSON. README.md defines every
number printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import report
from case import Array, Case, Side, algorithms
from gpu_arrays import GpuArray, gpu_of_rank
from mpi4py import MPI

from uzipmpi import Comm
from uzipmpi.stats import Stats, Totals

__all__ = ["Measured", "main"]

# The two sides take turns in blocks of iterations: a disturbance meets both.
N_BLOCKS = 25
MAX_ITERATIONS = 10_000
PROBES = 3


@dataclass
class Measured:
    """What one size gave, the same on all ranks.

    Attributes
    ----------
    ours, plain
        The figures of the two sides by column; from medians over blocks, each the mean of its
        iterations.
    """

    iterations: int
    ours: dict[str, float]
    plain: dict[str, float]
    quartiles: dict[str, tuple[float, float]]
    ratio: float
    algorithms: tuple[str, ...]
    valid: bool | None


def measure(case: Case, ours: Side, plain: Side, stats: Stats) -> Measured:
    """Time both sides in turns; the result is the same on all ranks."""
    options = case.options
    warm_up(case, (ours, plain))
    iterations = options.iterations or choose_iterations(case, (ours, plain))
    n_blocks = min(iterations, N_BLOCKS)
    stats.reset()
    samples = interleave(case, (ours, plain), n_blocks, max(1, iterations // n_blocks))
    ratio = wire_ratio(stats[case.operation])
    figures = [case.figures(gather_medians(case, times)) for times in samples]
    return Measured(
        iterations,
        figures[0],
        figures[1],
        {name: quartiles(times) for name, times in zip(("ours", "plain"), samples, strict=True)},
        ratio,
        algorithms(ours.comm, case.operation),
        validate(case, (ours, plain)) if options.validation else None,
    )


def warm_up(case: Case, sides: tuple[Side, Side]) -> None:
    """Run the warm-up iterations, or as many of OSU's default as fit a tenth of the time."""
    options = case.options
    for side in sides:
        if options.warmup is not None:
            if options.warmup:
                case.parts(side, options.warmup)
            continue
        first = slowest(case.parts(side, 1))
        case.parts(side, clamp(options.seconds / 10 / first, 1, 100))


def choose_iterations(case: Case, sides: tuple[Side, Side]) -> int:
    """Return how many iterations of both sides fit ``--seconds``."""
    each = [min(slowest(case.parts(side, 1)) for _ in range(PROBES)) for side in sides]
    return clamp(case.options.seconds / sum(each), 5, MAX_ITERATIONS)


def clamp(value: float, low: int, high: int) -> int:
    return int(min(max(value, low), high))


def slowest(parts: tuple[float, ...]) -> float:
    """Return the longest time of any rank, so that all ranks decide alike."""
    return float(max(MPI.COMM_WORLD.allreduce(sum(parts), MPI.MAX), 1e-9))


def interleave(
    case: Case, sides: tuple[Side, Side], n_blocks: int, n_iterations: int
) -> tuple[Array, Array]:
    """Time blocks of the two sides in the order A B, B A, A B, ...; a row of parts for each."""
    samples: tuple[list[tuple[float, ...]], list[tuple[float, ...]]] = ([], [])
    for block in range(n_blocks):
        for which in (0, 1) if block % 2 == 0 else (1, 0):
            MPI.COMM_WORLD.Barrier()
            samples[which].append(case.parts(sides[which], n_iterations))
    return np.array(samples[0]), np.array(samples[1])


def gather_medians(case: Case, times: Array) -> Array:
    """Return the median of each part, a row for each rank whose clock counts."""
    medians = MPI.COMM_WORLD.allgather(np.median(times, axis=0))
    return np.array(medians[case.timed_ranks])


def quartiles(times: Array) -> tuple[float, float]:
    """Return the first and third quartile of this rank's blocks, in seconds."""
    low, high = np.percentile(times.sum(axis=1), (25, 75))
    return float(low), float(high)


def validate(case: Case, sides: tuple[Side, Side]) -> bool:
    """Run one more iteration into a cleared buffer on each side, and check it on every rank."""
    valid = True
    for side in sides:
        cleared = on_host(side)
        case.clear(cleared)
        if isinstance(side.recv, GpuArray):
            side.recv.put(cleared.recv)
        MPI.COMM_WORLD.Barrier()
        case.parts(side, 1)
        valid = case.is_right(on_host(side)) and valid
    return bool(MPI.COMM_WORLD.allreduce(valid, MPI.LAND))


def on_host(side: Side) -> Side:
    """Return a side with its buffers in host memory: the same ones, or copies of a GPU's."""
    if not isinstance(side.recv, GpuArray):
        return side
    send, recv = side.send.get(), side.recv.get()
    return dataclasses.replace(side, send=recv if side.send is side.recv else send, recv=recv)


def on_device(send: Array, recv: Array) -> tuple[Any, Any]:
    """Return copies of buffers in GPU memory; one that is both stays one."""
    gpu = gpu_of_rank()
    sent = GpuArray.of(send, gpu)
    return sent, sent if recv is send else GpuArray.of(recv, gpu)


def wire_ratio(totals: Totals) -> float:
    """Return bytes on the wire over bytes of values, of all ranks; 1 where nothing was sent."""
    values = MPI.COMM_WORLD.allreduce(totals.value_bytes)
    wire = MPI.COMM_WORLD.allreduce(totals.wire_bytes)
    return float(wire / values) if values else 1.0


def communicators(options: argparse.Namespace, case_type: type[Case]) -> tuple[Comm, MPI.Intracomm]:
    """Return uzipmpi's communicator, and the one it is compared with."""
    given: dict[str, Any] = {
        "codec": options.codec,
        "compress": options.compress,
        "transport": options.transport,
    }
    given[case_type.algorithm_option] = options.algo
    given = {name: value for name, value in given.items() if value is not None}
    ours = Comm(MPI.COMM_WORLD, **given)
    if options.baseline == "mpi":
        if not options.device:
            return ours, MPI.COMM_WORLD
        # Plain MPI, but where it takes no GPU memory; there values go by host memory.
        return ours, Comm(MPI.COMM_WORLD.Dup(), compress="never", transport="mpi-host")
    return ours, Comm(MPI.COMM_WORLD.Dup(), **{**given, "codec": "raw"})


def main(case_type: type[Case]) -> None:
    """Run a benchmark from the command line; exits with 1 where validation fails, as OSU does."""
    options = report.parse(case_type)
    world = MPI.COMM_WORLD
    if case_type.n_ranks not in (None, world.size):
        raise SystemExit(f"expected {case_type.n_ranks} ranks, found {world.size}")
    if world.size < case_type.least_ranks:
        raise SystemExit(f"expected at least {case_type.least_ranks} ranks, found {world.size}")
    ours, baseline = communicators(options, case_type)
    table = report.Table(case_type, options)
    for size in report.message_sizes(options):
        case = case_type(options, size)
        send, recv = case.buffers()
        plain = send, recv
        if options.device:
            send, recv = plain = on_device(send, recv)
        elif options.baseline == "mpi":
            plain = case.plain_buffers(send, recv)
        sides = Side(ours, send, recv), Side(baseline, *plain)
        for side in sides:
            side.requests.extend(case.persistent(side))
        measured = measure(case, *sides, ours.stats)
        for side in sides:
            while side.requests:
                side.requests.pop().Free()
        table.add(size, measured)
        if measured.valid is False:
            name = Path(sys.argv[0]).name
            table.say(f"DATA VALIDATION ERROR: {name} exited with status 1 on message size {size}.")
            raise SystemExit(1)
