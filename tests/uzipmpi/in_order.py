"""Runs the tests of a program on all ranks, each after the ranks have met."""

from __future__ import annotations

import time
from typing import Any

from mpi4py import MPI

__all__ = ["run_tests"]


def run_tests(names: dict[str, Any], comm: MPI.Intracomm) -> None:
    """Call what is named ``test_...``, in order, and say on rank 0 how long it took."""
    for name, test in list(names.items()):
        if name.startswith("test_"):
            started = time.monotonic()
            test()
            comm.Barrier()
            if comm.rank == 0:
                print(name, "passed", f"{time.monotonic() - started:.1f} s", flush=True)
