"""A benchmark, named as the first argument, of which one rank finds one bit flipped."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from case import Case, Side
from harness import main


def flipping(case_type: type[Case]) -> type[Case]:
    """Return the benchmark with a bit flipped in what the last rank that receives has received."""

    class Flipping(case_type):  # type: ignore[misc, valid-type]
        def parts(self, side: Side, n_iterations: int) -> tuple[float, ...]:
            seconds = super().parts(side, n_iterations)
            received = side.recv.reshape(-1).view(np.uint8)
            ranks = MPI.COMM_WORLD.allgather(received.size > 0)
            if self.rank == max(rank for rank, any_ in enumerate(ranks) if any_):
                received[-1] ^= 0x40  # of the exponent: sums differ by more than rounding
            return seconds

    return Flipping


if __name__ == "__main__":
    module = importlib.import_module(sys.argv.pop(1))
    (case_type,) = (
        each
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__
    )
    main(flipping(case_type))
