"""Iallgather, alone and beside a computation, as osu_iallgather."""

from __future__ import annotations

from case import Side
from collective import Overlapped
from harness import main
from mpi4py import MPI
from osu_allgather import Allgather


class Iallgather(Overlapped, Allgather):
    """Iallgather; the size is that of one rank's message."""

    title = "Non-blocking Allgather Latency Test"
    operation = "Iallgather"

    def begin(self, side: Side) -> MPI.Request:
        return side.comm.Iallgather(side.send, side.recv)


if __name__ == "__main__":
    main(Iallgather)
