"""Rounds of a persistent Allreduce with SUM, as osu_allreduce_persistent."""

from __future__ import annotations

from case import Side
from collective import Persistent
from harness import main
from mpi4py import MPI
from osu_allreduce import Allreduce


class PersistentAllreduce(Persistent, Allreduce):
    """Persistent Allreduce with SUM. What plain MPI cannot add, it adds as fp32: more bytes."""

    title = "Allreduce Persistent Latency Test"
    operation = "Allreduce_init"

    def init(self, side: Side) -> MPI.Prequest:
        return side.comm.Allreduce_init(side.send, side.recv)


if __name__ == "__main__":
    main(PersistentAllreduce)
