"""Latency of Gather to rank 0, as osu_gather."""

from __future__ import annotations

import numpy as np
from case import Array, Side
from harness import main
from osu_allgather import Allgather


class Gather(Allgather):
    """Gather to rank 0; the size is that of one rank's message."""

    title = "Gather Latency Test"
    operation = "Gather"
    algorithm_option = "gather"

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(self.rank)
        return send, np.empty(send.size * self.n if self.rank == 0 else 0, send.dtype)

    def call(self, side: Side) -> None:
        side.comm.Gather(side.send, side.recv if self.rank == 0 else None)

    def is_right(self, side: Side) -> bool:
        return self.rank != 0 or super().is_right(side)


if __name__ == "__main__":
    main(Gather)
