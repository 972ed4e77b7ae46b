"""Iallreduce with SUM, alone and beside a computation, as osu_iallreduce."""

from __future__ import annotations

from case import Side
from collective import Overlapped
from harness import main
from mpi4py import MPI
from osu_allreduce import Allreduce


class Iallreduce(Overlapped, Allreduce):
    """Iallreduce with SUM. What plain MPI cannot add, it adds as fp32: more bytes."""

    title = "Non-blocking Allreduce Latency Test"
    operation = "Iallreduce"

    def begin(self, side: Side) -> MPI.Request:
        return side.comm.Iallreduce(side.send, side.recv)


if __name__ == "__main__":
    main(Iallreduce)
