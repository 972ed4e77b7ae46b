"""The last rank is killed in the middle of an operation; the others are in it and never get out.

ranks_killed.py Send | Ibcast | Bcast_init | ...
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from operations import Operations

import uzipmpi
from uzipmpi.transports.mpi_host import MpiHost

# Past the two frames that are under way at once: the third begins when the first has arrived.
FATAL_TRANSFER = 3


def die(name: str) -> None:
    """Say so, past Python's buffers, and be gone."""
    os.write(1, f"dying in {name}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def fatal(method: Callable[..., Any], count: list[int], name: str) -> Callable[..., Any]:
    """Return a method of the transport that kills the process at the third transfer."""

    def transfer(*arguments: Any) -> Any:
        count.append(1)
        if len(count) == FATAL_TRANSFER:
            die(name)
        return method(*arguments)

    return transfer


def main() -> None:
    comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=0, chunk_bytes=8192)
    operations = Operations(comm)
    name = sys.argv[1]
    operations.run(name)  # the last one that everybody survives
    assert operations.is_right(name)
    comm.Barrier()
    if comm.rank == comm.size - 1:
        if "robe" in name:
            die(name)
        count: list[int] = []
        for method in ("isend", "irecv"):
            setattr(MpiHost, method, fatal(getattr(MpiHost, method), count, name))
    operations.run(name)
    comm.Barrier()
    os.write(1, b"survived\n")


if __name__ == "__main__":
    main()
