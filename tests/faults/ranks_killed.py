"""The last rank is killed in the middle of an operation; the others are in it and never get out.

ranks_killed.py Send | Ibcast | Bcast_init | ...
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import uzipmpi
from uzipmpi.transports.mpi_host import MpiHost

COUNT = 60_000
# Past the two frames that are under way at once: the third begins when the first has arrived.
FATAL_TRANSFER = 3

comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=0, chunk_bytes=8192)
rank, size = comm.rank, comm.size
victim = size - 1
values = np.random.default_rng(rank).normal(0, 1, COUNT * size).astype(np.float32)
mine, other = values[:COUNT], np.empty(COUNT, np.float32)
everything = np.empty(COUNT * size, np.float32)


def collective(name: str) -> tuple[Any, ...]:
    """Return a collective's arguments."""
    root = rank == 0
    return {
        "Bcast": (mine,),
        "Gather": (mine, everything if root else None),
        "Scatter": (values if root else None, other),
        "Allgather": (mine, everything),
        "Alltoall": (values, everything),
        "Allreduce": (mine, other),
        "Reduce": (mine, other if root else None),
        "Reduce_scatter": (values, other, [COUNT] * size),
    }[name]


def message(name: str) -> None:
    """Run the half of rank 0 as named, and the victim's half blocking."""
    if rank not in (0, victim):
        return
    peer = victim - rank
    if name == "Sendrecv":
        comm.Sendrecv(mine, peer, 0, other, peer, 0)
    elif ("send" in name.lower()) == (rank == 0):
        send(name if rank == 0 else "Send", peer)
    else:
        receive(name if rank == 0 else "Recv", peer)


def send(name: str, peer: int) -> None:
    match name:
        case "Send" | "Ssend" | "Rsend":
            getattr(comm, name)(mine, peer)
        case "Isend" | "Issend":
            getattr(comm, name)(mine, peer).Wait()
        case "Send_init":
            wait_for_round(comm.Send_init(mine, peer))


def receive(name: str, peer: int) -> None:
    match name:
        case "Recv":
            comm.Recv(other, peer)
        case "Irecv":
            comm.Irecv(other, peer).Wait()
        case "Waitall":
            uzipmpi.Request.Waitall([comm.Irecv(other, peer)])
        case "MPI.Waitall":
            MPI.Request.Waitall([comm.Irecv(other, peer)])
        case "Probe":
            comm.Probe(peer)
            comm.Recv(other, peer)
        case "Mprobe":
            comm.Mprobe(peer).Recv(other)
        case "Recv_init":
            wait_for_round(comm.Recv_init(other, peer))


def wait_for_round(request: MPI.Prequest) -> None:
    request.Start()
    request.Wait()


def run(name: str) -> None:
    """Run the operation once."""
    base = name.removesuffix("_init")
    if base[0] == "I" and base[1:].capitalize() in COLLECTIVES:
        getattr(comm, base)(*collective(base[1:].capitalize())).Wait()
    elif base not in COLLECTIVES:
        message(name)
    elif name != base:
        wait_for_round(getattr(comm, name)(*collective(base)))
    else:
        getattr(comm, name)(*collective(base))


COLLECTIVES = (
    "Bcast",
    "Gather",
    "Scatter",
    "Allgather",
    "Alltoall",
    "Allreduce",
    "Reduce",
    "Reduce_scatter",
)


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
    name = sys.argv[1]
    run(name)  # the last one that everybody survives
    comm.Barrier()
    if rank == victim and "robe" in name:
        die(name)
    if rank == victim:
        count: list[int] = []
        for method in ("isend", "irecv"):
            setattr(MpiHost, method, fatal(getattr(MpiHost, method), count, name))
    run(name)
    comm.Barrier()
    os.write(1, b"survived\n")


if __name__ == "__main__":
    main()
