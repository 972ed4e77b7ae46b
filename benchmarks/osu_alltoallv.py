"""Latency of Alltoallv, as osu_alltoallv."""

from __future__ import annotations

from case import Side
from harness import main
from osu_alltoall import Alltoall


class Alltoallv(Alltoall):
    """Alltoallv with equal counts; the size is that of the message from one rank to one other."""

    title = "All-to-Allv Personalized Exchange Latency Test"
    operation = "Alltoallv"

    def call(self, side: Side) -> None:
        counts = [side.send.size // self.n] * self.n
        side.comm.Alltoallv([side.send, counts], [side.recv, counts])


if __name__ == "__main__":
    main(Alltoallv)
