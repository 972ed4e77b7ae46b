"""A program that UZIPMPI_STATS=1 reports on; the argument says how it ends."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from mpi4py import MPI

import uzipmpi

ending = sys.argv[1]
last = MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1
if ending == "silent" and last:
    del os.environ["UZIPMPI_STATS"]
comm = uzipmpi.Comm(MPI.COMM_WORLD.Dup(), compress="always", min_bytes=1024)
values = np.zeros(100_000, np.float32)
comm.Allreduce(values, np.empty_like(values))
comm.Bcast(np.zeros(3))
half = comm.Split(comm.rank % 2)
half.Sendrecv_replace(values, half.rank)
half.Free()
comm.Free()
if ending == "finalize":
    MPI.Finalize()
elif ending == "late":
    time.sleep(2 * last)
elif ending == "raise" and last:
    raise RuntimeError("on purpose")
elif ending == "raise":
    time.sleep(60)
elif ending == "status" and last:
    sys.exit(3)
elif ending == "fork":
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
