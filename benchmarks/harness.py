"""Measure one MPI operation through uzipmpi and through plain mpi4py, side by side in one run.

A benchmark is a :class:`Case` and ``main(TheCase)``. This module owns warm-up, interleaving,
medians and validation; report.py the options, OSU's columns and JSON. README.md defines every
number printed.
"""

from __future__ import annotations

import abc
import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import numpy.typing as npt
import report
from mpi4py import MPI

from uzipmpi import Comm
from uzipmpi.stats import Stats, Totals

Array = npt.NDArray[Any]

# The two sides take turns in blocks of iterations: a disturbance meets both.
N_BLOCKS = 25
MAX_ITERATIONS = 10_000
PROBES = 3


@dataclass(frozen=True)
class Side:
    """One of the two communicators compared, with the buffers that it moves."""

    comm: MPI.Intracomm
    send: Array
    recv: Array


class Case(abc.ABC):
    """One operation on messages of one size.

    Parameters
    ----------
    options
        The command line.
    size
        Bytes, counted as OSU counts them for this operation.
    """

    title: ClassVar[str]
    column: ClassVar[str]
    # The method timed, as statistics name it, and the option that picks its algorithm.
    operation: ClassVar[str]
    algorithm_option: ClassVar[str]
    max_bytes: ClassVar[int] = 1 << 20
    n_ranks: ClassVar[int | None] = None
    is_bandwidth: ClassVar[bool] = False
    # The ranks whose clocks count: OSU's average, minimum and maximum are over them.
    timed_ranks: ClassVar[slice] = slice(None)

    def __init__(self, options: argparse.Namespace, size: int) -> None:
        self.options = options
        self.size = size
        self.dtype = report.DTYPES[options.dtype]
        self.count = size // self.dtype.itemsize
        self.rank, self.n = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

    @abc.abstractmethod
    def buffers(self) -> tuple[Array, Array]:
        """Return what this rank sends, and where it receives."""

    @abc.abstractmethod
    def run(self, side: Side, n_iterations: int) -> float:
        """Return the seconds that one iteration took on this rank."""

    @abc.abstractmethod
    def is_right(self, side: Side) -> bool:
        """Tell whether the last iteration left the right values on this rank."""

    def clear(self, side: Side) -> None:
        """Overwrite what the next iteration is to receive."""
        side.recv.view(np.uint8)[...] = 0xA5

    def plain_buffers(self, send: Array, recv: Array) -> tuple[Array, Array]:
        """Return the buffers of plain mpi4py: the same memory as bytes, for it lacks some types."""
        return send.view(np.uint8), recv.view(np.uint8)

    def tensor(self, rank: int, count: int | None = None) -> Array:
        """Return the values that a rank contributes, the same wherever they are made."""
        n = self.count if count is None else count
        return datasets.make(self.options.data, self.dtype, n, seed=rank)

    def figure(self, seconds: float) -> float:
        """Convert the time of an iteration to what the column shows."""
        return seconds * 1e6


def same_bits(left: Array, right: Array) -> bool:
    """Compare bytes: as values, NaN would differ from itself and -0 equal +0."""
    return np.array_equal(left.view(np.uint8), right.view(np.uint8))


def time_collective(comm: MPI.Intracomm, n_iterations: int, call: Callable[[], object]) -> float:
    """Time a collective as OSU does: each iteration by itself, a barrier between them."""
    total = 0.0
    for _ in range(n_iterations):
        start = MPI.Wtime()
        call()
        total += MPI.Wtime() - start
        comm.Barrier()
    return total / n_iterations


@dataclass
class Measured:
    """Medians over blocks, each block the mean of its iterations: a figure for each timed rank."""

    iterations: int
    ours: list[float]
    plain: list[float]
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
    medians = [gather_over(case, statistics.median(times)) for times in samples]
    return Measured(
        iterations,
        medians[0],
        medians[1],
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
                case.run(side, options.warmup)
            continue
        first = slowest(case.run(side, 1))
        case.run(side, clamp(options.seconds / 10 / first, 1, 100))


def choose_iterations(case: Case, sides: tuple[Side, Side]) -> int:
    """Return how many iterations of both sides fit ``--seconds``."""
    each = [slowest(min(case.run(side, 1) for _ in range(PROBES))) for side in sides]
    return clamp(case.options.seconds / sum(each), 5, MAX_ITERATIONS)


def clamp(value: float, low: int, high: int) -> int:
    return int(min(max(value, low), high))


def slowest(seconds: float) -> float:
    """Return the longest time of any rank, so that all ranks decide alike."""
    return float(max(MPI.COMM_WORLD.allreduce(seconds, MPI.MAX), 1e-9))


def interleave(
    case: Case, sides: tuple[Side, Side], n_blocks: int, n_iterations: int
) -> tuple[list[float], list[float]]:
    """Time blocks of the two sides in the order A B, B A, A B, ..."""
    samples: tuple[list[float], list[float]] = ([], [])
    for block in range(n_blocks):
        for which in (0, 1) if block % 2 == 0 else (1, 0):
            MPI.COMM_WORLD.Barrier()
            samples[which].append(case.run(sides[which], n_iterations))
    return samples


def gather_over(case: Case, median: float) -> list[float]:
    """Return the figure of each rank whose clock counts."""
    figures: list[float] = MPI.COMM_WORLD.allgather(case.figure(median))
    return figures[case.timed_ranks]


def quartiles(times: list[float]) -> tuple[float, float]:
    """Return the first and third quartile of this rank's blocks, in seconds."""
    low, high = np.percentile(times, (25, 75))
    return float(low), float(high)


def validate(case: Case, sides: tuple[Side, Side]) -> bool:
    """Run one more iteration into a cleared buffer on each side, and check it on every rank."""
    valid = True
    for side in sides:
        case.clear(side)
        MPI.COMM_WORLD.Barrier()
        case.run(side, 1)
        valid = case.is_right(side) and valid
    return bool(MPI.COMM_WORLD.allreduce(valid, MPI.LAND))


def wire_ratio(totals: Totals) -> float:
    """Return bytes on the wire over bytes of values, of all ranks; 1 where nothing was sent."""
    values = MPI.COMM_WORLD.allreduce(totals.value_bytes)
    wire = MPI.COMM_WORLD.allreduce(totals.wire_bytes)
    return float(wire / values) if values else 1.0


def algorithms(comm: MPI.Intracomm, operation: str) -> tuple[str, ...]:
    """Return what ran the operation since the last reset; empty where it was left to MPI."""
    return tuple(sorted(comm.stats[operation].algorithms)) if isinstance(comm, Comm) else ()


def communicators(options: argparse.Namespace, case_type: type[Case]) -> tuple[Comm, MPI.Intracomm]:
    """Return uzipmpi's communicator, and the one it is compared with."""
    given: dict[str, Any] = {"codec": options.codec, "compress": options.compress}
    given[case_type.algorithm_option] = options.algo
    given = {name: value for name, value in given.items() if value is not None}
    ours = Comm(MPI.COMM_WORLD, **given)
    if options.baseline == "mpi":
        return ours, MPI.COMM_WORLD
    return ours, Comm(MPI.COMM_WORLD.Dup(), **{**given, "codec": "raw"})


def main(case_type: type[Case]) -> None:
    """Run a benchmark from the command line; exits with 1 where validation fails, as OSU does."""
    options = report.parse(case_type)
    world = MPI.COMM_WORLD
    if case_type.n_ranks not in (None, world.size):
        raise SystemExit(f"expected {case_type.n_ranks} ranks, found {world.size}")
    ours, baseline = communicators(options, case_type)
    table = report.Table(case_type, options)
    for size in report.message_sizes(options):
        case = case_type(options, size)
        send, recv = case.buffers()
        plain = case.plain_buffers(send, recv) if options.baseline == "mpi" else (send, recv)
        measured = measure(case, Side(ours, send, recv), Side(baseline, *plain), ours.stats)
        table.add(size, measured)
        if measured.valid is False:
            name = Path(sys.argv[0]).name
            table.say(f"DATA VALIDATION ERROR: {name} exited with status 1 on message size {size}.")
            raise SystemExit(1)
