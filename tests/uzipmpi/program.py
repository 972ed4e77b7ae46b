"""A program that knows nothing of uzipmpi; the argument says what it does."""

from __future__ import annotations

import pickle
import sys
import time
from typing import Any

import mpi4py
import numpy as np


def communicate() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    values = np.full(100_000, comm.rank, np.float32)
    total = np.empty_like(values)
    comm.Allreduce(values, total)
    assert (total == comm.size * (comm.size - 1) / 2).all()
    request = comm.Isend(values, (comm.rank + 1) % comm.size)
    comm.Recv(total, (comm.rank - 1) % comm.size)
    MPI.Request.Waitall([request])
    assert (total == (comm.rank - 1) % comm.size).all()
    assert comm.bcast(sys.argv, 0) == sys.argv
    MPI.COMM_SELF.Allreduce(values, total)
    for copied in (comm, MPI.Intracomm(comm)):
        assert pickle.loads(pickle.dumps(copied)) == comm
    assert pickle.loads(pickle.dumps(comm)) is comm
    complete(comm)
    comm.free()
    MPI.COMM_SELF.free()
    assert comm.allreduce(1) == comm.size
    if comm.rank == 0:
        kinds = f"{type(comm).__module__} {type(MPI.COMM_SELF).__name__}"
        print(f"{kinds} {' '.join(sys.argv[1:])} {__name__}")


def complete(comm: Any) -> None:
    """Use mpi4py's classes of requests and messages by their names."""
    from mpi4py import MPI

    peer = (comm.rank + 1) % comm.size
    values, received = np.ones(5000), np.zeros(5000)
    sending = comm.Send_init(values, peer)
    receiving = comm.Recv_init(received)
    for request in (sending, receiving, comm.Barrier_init()):
        assert isinstance(request, MPI.Prequest)
        assert isinstance(request, MPI.Request)
        request.Free()
    requests = [comm.Send_init(values, peer), comm.Recv_init(received)]
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall([*requests, MPI.REQUEST_NULL])
    assert received.all()
    for request in requests:
        request.Free()
    request = comm.Isend(values, peer)
    assert isinstance(request, MPI.Request)
    message = MPI.Message.Probe(comm)
    assert isinstance(message, MPI.Message)
    assert isinstance(MPI.MESSAGE_NULL, MPI.Message)
    received[:] = 0
    MPI.Message.Recv(message, received)
    request.wait()
    assert received.all()
    plain = MPI.Intracomm(comm).Dup()
    request = plain.Isend(values, peer)
    MPI.Message.Recv(plain.Mprobe(), received)
    MPI.Request.Wait(request)
    plain.Free()


def initialise() -> None:
    mpi4py.rc.initialize = False
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    assert not MPI.Is_initialized()
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    values = np.ones(100_000, np.float32)
    comm.Bcast(values)
    print(f"{type(comm).__module__} {comm is MPI.COMM_WORLD}")
    MPI.Finalize()


def serialise() -> None:
    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    values = np.ones(100_000, np.float32)
    MPI.COMM_WORLD.Bcast(values)
    print(f"level {MPI.Query_thread() == MPI.THREAD_SERIALIZED}")


def fail() -> None:
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        raise RuntimeError("on purpose")
    time.sleep(60)


def leave() -> None:
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        sys.exit(7)
    time.sleep(60)


globals()[sys.argv[1]]()
