"""Latency of Allgather, as osu_allgather."""

from __future__ import annotations

import numpy as np
from case import Array, Side, same_bits
from collective import Collective
from harness import main


class Allgather(Collective):
    """Allgather; the size is that of one rank's message."""

    title = "Allgather Latency Test"
    operation = "Allgather"
    algorithm_option = "allgather"

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(self.rank)
        return send, np.empty(send.size * self.n, send.dtype)

    def call(self, side: Side) -> None:
        side.comm.Allgather(side.send, side.recv)

    def is_right(self, side: Side) -> bool:
        parts = np.split(side.recv, self.n)
        return all(same_bits(part, self.tensor(rank)) for rank, part in enumerate(parts))


if __name__ == "__main__":
    main(Allgather)
