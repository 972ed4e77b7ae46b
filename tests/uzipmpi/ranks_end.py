"""A program that ends with requests under way; the argument says how it ends."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

import uzipmpi

comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=1024)
peer = 1 - comm.rank
unmatched = comm.Irecv(np.zeros(5000, np.float32), peer, 1)
comm.Isend(np.ones(500_000, np.float32), peer, 2)  # still to be sent when rank 1 ends
received = np.zeros(500_000, np.float32)
comm.Recv(received, peer, 2)
if not received.all():
    raise SystemExit("wrong values")
if sys.argv[1] == "finalize":
    MPI.Finalize()
elif sys.argv[1] == "raise":
    sys.exit(0)
