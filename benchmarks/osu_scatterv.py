"""Latency of Scatterv from rank 0, as osu_scatterv."""

from __future__ import annotations

from case import Side
from harness import main
from osu_scatter import Scatter


class Scatterv(Scatter):
    """Scatterv with equal counts from rank 0; the size is that of the message to one rank."""

    title = "Scatterv Latency Test"
    operation = "Scatterv"

    def call(self, side: Side) -> None:
        counts = [side.recv.size] * self.n
        side.comm.Scatterv([side.send, counts] if self.rank == 0 else None, side.recv)


if __name__ == "__main__":
    main(Scatterv)
