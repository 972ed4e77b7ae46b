"""Ialltoall, alone and beside a computation, as osu_ialltoall."""

from __future__ import annotations

from case import Side
from collective import Overlapped
from harness import main
from mpi4py import MPI
from osu_alltoall import Alltoall


class Ialltoall(Overlapped, Alltoall):
    """Ialltoall; the size is that of the message from one rank to one other."""

    title = "Non-blocking All-to-All Latency Test"
    operation = "Ialltoall"

    def begin(self, side: Side) -> MPI.Request:
        return side.comm.Ialltoall(side.send, side.recv)


if __name__ == "__main__":
    main(Ialltoall)
