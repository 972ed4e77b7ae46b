"""Collectives: blocking, persistent, and nonblocking beside a computation."""

from __future__ import annotations

import abc
import argparse
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from case import Array, Case, Side
from mpi4py import MPI

__all__ = ["Collective", "Overlapped", "Persistent"]


class Collective(Case):
    """A collective, each call timed by itself."""

    @abc.abstractmethod
    def call(self, side: Side) -> None:
        """Make the call that is timed."""

    def run(self, side: Side, n_iterations: int) -> float:
        """Time calls as OSU does, a barrier after each."""
        return time_apart(side, n_iterations, lambda: self.call(side))


class Persistent(Collective):
    """A collective that is made once; what is timed is a round of it."""

    @abc.abstractmethod
    def init(self, side: Side) -> MPI.Prequest:
        """Return the persistent request."""

    def persistent(self, side: Side) -> list[MPI.Prequest]:
        return [self.init(side)]

    def call(self, side: Side) -> None:
        side.requests[0].Start()
        side.requests[0].Wait()


class Overlapped(Collective):
    """A nonblocking collective: by itself, then beside a computation of the same length."""

    columns: ClassVar[tuple[str, ...]] = (
        "Overall(us)",
        "Compute(us)",
        "Pure Comm.(us)",
        "Overlap(%)",
    )
    full_columns: ClassVar[tuple[str, ...]] = (
        "Overall(us)",
        "Compute(us)",
        "Coll. Init(us)",
        "MPI_Test(us)",
        "MPI_Wait(us)",
        "Pure Comm.(us)",
        "Min Comm.(us)",
        "Max Comm.(us)",
        "Overlap(%)",
    )
    compared: ClassVar[dict[str, str]] = {"us": "Pure Comm.(us)", "%": "Overlap(%)"}

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        text = "calls of Test during the computation (default: none)"
        parser.add_argument("-t", "--num-test-calls", type=int, default=0, help=text)

    @classmethod
    def remarks(cls, options: argparse.Namespace) -> list[str]:
        return ["# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait", ""]

    @abc.abstractmethod
    def begin(self, side: Side) -> MPI.Request:
        """Begin the collective."""

    def call(self, side: Side) -> None:
        self.begin(side).Wait()

    def parts(self, side: Side, n_iterations: int) -> tuple[float, ...]:
        """Return the seconds of communication alone, compute, begin, Test and Wait."""
        pure = self.run(side, n_iterations)
        parts = np.zeros(4)
        for _ in range(n_iterations):
            parts += self.overlapped(side, pure)
            side.comm.Barrier()
        return (pure, *(parts / n_iterations))

    def overlapped(self, side: Side, seconds: float) -> tuple[float, float, float, float]:
        """Begin, compute, and wait; return the seconds of computing, beginning, Test and Wait."""
        start = MPI.Wtime()
        request = self.begin(side)
        begun = MPI.Wtime()
        in_test = compute_and_test(request, seconds, self.options.num_test_calls)
        computed = MPI.Wtime()
        request.Wait()
        end = MPI.Wtime()
        return computed - begun - in_test, begun - start, in_test, end - computed

    def figures(self, times: Array) -> dict[str, float]:
        microseconds = times * 1e6
        pure, compute, begin, test, wait = map(float, microseconds.mean(axis=0))
        overall = compute + begin + test + wait
        return {
            "Overall(us)": overall,
            "Compute(us)": compute,
            "Coll. Init(us)": begin,
            "MPI_Test(us)": test,
            "MPI_Wait(us)": wait,
            "Pure Comm.(us)": pure,
            "Min Comm.(us)": float(microseconds[:, 0].min()),
            "Max Comm.(us)": float(microseconds[:, 0].max()),
            "Overlap(%)": max(0.0, 100 - (overall - compute) / pure * 100),
        }


def time_apart(side: Side, n_iterations: int, call: Callable[[], object]) -> float:
    """Time each call by itself, with a barrier after it, and return the mean."""
    total = 0.0
    for _ in range(n_iterations):
        start = MPI.Wtime()
        call()
        total += MPI.Wtime() - start
        side.comm.Barrier()
    return total / n_iterations


def compute_and_test(request: MPI.Request, seconds: float, n_tests: int) -> float:
    """Compute for some seconds, with tests after equal parts of them; return the time in tests."""
    if n_tests == 0:
        compute(seconds)
    in_test = 0.0
    for _ in range(n_tests):
        compute(seconds / n_tests)
        start = MPI.Wtime()
        request.Test()
        in_test += MPI.Wtime() - start
    return in_test


# A few microseconds of work in which NumPy, like most of what programs compute with, leaves the
# interpreter to other threads.
FACTORS = np.full(1 << 14, 1.0, np.float32)
PRODUCTS = np.empty_like(FACTORS)


def compute(seconds: float) -> None:
    """Keep the core busy."""
    end = MPI.Wtime() + seconds
    while MPI.Wtime() < end:
        np.multiply(FACTORS, FACTORS, out=PRODUCTS)
