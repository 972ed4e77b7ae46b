"""What a benchmark is: one operation on messages of one size, and how its times become figures."""

from __future__ import annotations

import abc
import argparse
from dataclasses import dataclass, field
from typing import Any, ClassVar

import datasets
import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from uzipmpi import Comm

__all__ = ["Array", "Case", "Side", "algorithms", "same_bits"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Side:
    """One of the two communicators compared, with the buffers that it moves.

    Parameters
    ----------
    comm, send, recv
        The communicator, what this rank sends, and where it receives.
    requests
        Persistent requests that every iteration starts.
    """

    comm: MPI.Intracomm
    send: Array
    recv: Array
    requests: list[MPI.Prequest] = field(default_factory=list)


class Case(abc.ABC):
    """One operation on messages of one size. The figure is a latency unless a case says otherwise.

    Parameters
    ----------
    options
        The command line.
    size
        Bytes, counted as OSU counts them for this operation.
    """

    title: ClassVar[str]
    # The method timed, as statistics name it, and the option that picks its algorithm.
    operation: ClassVar[str]
    algorithm_option: ClassVar[str]
    # OSU's columns between the size and the validation, and those with --full.
    columns: ClassVar[tuple[str, ...]] = ("Avg Latency(us)",)
    full_columns: ClassVar[tuple[str, ...]] = (
        "Avg Latency(us)",
        "Min Latency(us)",
        "Max Latency(us)",
        "Iterations",
    )
    # The figures, by unit, that the baseline's stand beside. The first one gives the speed-up.
    compared: ClassVar[dict[str, str]] = {"us": "Avg Latency(us)"}
    max_bytes: ClassVar[int] = 1 << 20
    n_ranks: ClassVar[int | None] = None
    least_ranks: ClassVar[int] = 1

    def __init__(self, options: argparse.Namespace, size: int) -> None:
        self.options = options
        self.size = size
        self.dtype = datasets.DTYPES[options.dtype]
        self.count = size // self.dtype.itemsize
        self.rank, self.n = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

    @classmethod  # noqa: B027  # most have none
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options that only this kind of benchmark has."""

    @classmethod
    def remarks(cls, options: argparse.Namespace) -> list[str]:
        """Return the lines that OSU prints between title and table."""
        return []

    @property
    def timed_ranks(self) -> slice:
        """The ranks whose clocks count: OSU's average, minimum and maximum are over them."""
        return slice(None)

    @abc.abstractmethod
    def buffers(self) -> tuple[Array, Array]:
        """Return what this rank sends, and where it receives."""

    @abc.abstractmethod
    def run(self, side: Side, n_iterations: int) -> float:
        """Return the seconds that one iteration took on this rank."""

    @abc.abstractmethod
    def is_right(self, side: Side) -> bool:
        """Tell whether the last iteration left the right values on this rank."""

    def parts(self, side: Side, n_iterations: int) -> tuple[float, ...]:
        """Return the seconds of an iteration on this rank, by part if a case has several."""
        return (self.run(side, n_iterations),)

    def persistent(self, side: Side) -> list[MPI.Prequest]:
        """Return the persistent requests that iterations start, for ``side.requests``."""
        return []

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

    def figures(self, times: Array) -> dict[str, float]:
        """Convert times to what the columns show.

        Parameters
        ----------
        times
            Seconds: a row for each timed rank, a column for each part.
        """
        latencies = times[:, 0] * 1e6
        return {
            "Avg Latency(us)": float(latencies.mean()),
            "Min Latency(us)": float(latencies.min()),
            "Max Latency(us)": float(latencies.max()),
        }


def same_bits(left: Array, right: Array) -> bool:
    """Compare bytes: as values, NaN would differ from itself and -0 equal +0."""
    return np.array_equal(left.view(np.uint8), right.view(np.uint8))


def algorithms(comm: MPI.Intracomm, operation: str) -> tuple[str, ...]:
    """Return what ran the operation since the last reset; empty where it was left to MPI."""
    return tuple(sorted(comm.stats[operation].algorithms)) if isinstance(comm, Comm) else ()
