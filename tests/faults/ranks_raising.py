"""The last rank raises in its own code, an operation under way; the others wait for it.

ranks_raising.py Allreduce | Irecv | ...: what the others are in
"""

from __future__ import annotations

import os
import sys

os.environ |= {"UZIPMPI_COMPRESS": "always", "UZIPMPI_MIN_BYTES": "0"}

from mpi4py import MPI
from operations import Operations

import uzipmpi


def main() -> None:
    world = MPI.COMM_WORLD  # a wrapper already, if this runs under python -m uzipmpi
    comm = world if isinstance(world, uzipmpi.Comm) else uzipmpi.Comm(world)
    operations = Operations(comm)
    (name,) = sys.argv[1:]
    operations.run(name)
    comm.Barrier()
    if comm.rank == comm.size - 1:
        comm.Irecv(operations.all, 0, 7)
        raise RuntimeError("a user's error")
    operations.run(name)
    os.write(1, b"went on\n")


if __name__ == "__main__":
    main()
