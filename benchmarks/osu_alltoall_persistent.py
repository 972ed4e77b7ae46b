"""Rounds of a persistent Alltoall, as osu_alltoall_persistent."""

from __future__ import annotations

from case import Side
from collective import Persistent
from harness import main
from mpi4py import MPI
from osu_alltoall import Alltoall


class PersistentAlltoall(Persistent, Alltoall):
    """Persistent Alltoall; the size is that of the message from one rank to one other."""

    title = "All-to-All Personalized Exchange Persistent Latency Test"
    operation = "Alltoall_init"

    def init(self, side: Side) -> MPI.Prequest:
        return side.comm.Alltoall_init(side.send, side.recv)


if __name__ == "__main__":
    main(PersistentAlltoall)
