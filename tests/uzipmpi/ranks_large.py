"""More than 2^31 values: Open MPI 5 refuses such counts, and we do not let it see them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from mpi4py import MPI

import uzipmpi

COUNT = 2**31 + 16
comm = uzipmpi.Comm(MPI.COMM_SELF)
values = np.zeros(COUNT, ml_dtypes.float8_e5m2)
values[-1], values[1 << 30] = 1, 2
received = np.zeros_like(values)


def check(nbytes: int = COUNT) -> None:
    assert nbytes == COUNT
    assert (float(received[-1]), float(received[1 << 30]), float(received[7])) == (1, 2, 0)
    received[-1] = received[1 << 30] = 0


status = MPI.Status()
for framed in (False, True):
    comm = uzipmpi.Comm(MPI.COMM_SELF.Dup(), compress="always" if framed else "never")
    request = comm.Irecv(received, 0)
    comm.Send(values, 0)
    request.Wait(status)
    check(status.Get_elements(MPI.BYTE))
    request = comm.Isend(values, 0)
    comm.Recv(received, 0, status=status)
    request.Wait()
    check(status.Get_elements(MPI.BYTE))
    comm.Sendrecv(values, 0, recvbuf=received, source=0)
    check()
    request = comm.Isend(values.view(np.uint8), 0)
    comm.Recv(received.view(np.uint8), 0)
    request.Wait()
    check()
    comm.Allreduce(values, received)
    check()
    comm.Bcast(values)
    comm.Allgather(values, received)
    check()
    comm.Alltoall(values, received)
    check()
    comm.Gather(values, received)
    check()
    print("framed" if framed else "plain", "passed", flush=True)
