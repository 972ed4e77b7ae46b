"""Latency of Allgatherv, as osu_allgatherv."""

from __future__ import annotations

from case import Side
from harness import main
from osu_allgather import Allgather


class Allgatherv(Allgather):
    """Allgatherv with equal counts; the size is that of one rank's message."""

    title = "Allgatherv Latency Test"
    operation = "Allgatherv"

    def call(self, side: Side) -> None:
        side.comm.Allgatherv(side.send, [side.recv, [side.send.size] * self.n])


if __name__ == "__main__":
    main(Allgatherv)
