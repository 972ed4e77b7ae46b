"""Latency of Gatherv to rank 0, as osu_gatherv."""

from __future__ import annotations

from case import Side
from harness import main
from osu_gather import Gather


class Gatherv(Gather):
    """Gatherv with equal counts to rank 0; the size is that of one rank's message."""

    title = "Gatherv Latency Test"
    operation = "Gatherv"

    def call(self, side: Side) -> None:
        counts = [side.send.size] * self.n
        side.comm.Gatherv(side.send, [side.recv, counts] if self.rank == 0 else None)


if __name__ == "__main__":
    main(Gatherv)
