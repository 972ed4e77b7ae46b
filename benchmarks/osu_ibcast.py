"""Ibcast from rank 0, alone and beside a computation, as osu_ibcast."""

from __future__ import annotations

from case import Side
from collective import Overlapped
from harness import main
from mpi4py import MPI
from osu_bcast import Bcast


class Ibcast(Overlapped, Bcast):
    """Ibcast from rank 0; the size is that of the message."""

    title = "Non-Blocking Broadcast Latency Test"
    operation = "Ibcast"

    def begin(self, side: Side) -> MPI.Request:
        return side.comm.Ibcast(side.recv, 0)


if __name__ == "__main__":
    main(Ibcast)
