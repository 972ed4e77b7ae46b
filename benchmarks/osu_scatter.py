"""Latency of Scatter from rank 0, as osu_scatter."""

from __future__ import annotations

import numpy as np
from case import Array, Side, same_bits
from collective import Collective
from harness import main


class Scatter(Collective):
    """Scatter from rank 0; the size is that of the message to one rank."""

    title = "Scatter Latency Test"
    operation = "Scatter"
    algorithm_option = "scatter"

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(0, self.count * self.n if self.rank == 0 else 0)
        return send, np.empty(self.count, send.dtype)

    def call(self, side: Side) -> None:
        side.comm.Scatter(side.send if self.rank == 0 else None, side.recv)

    def is_right(self, side: Side) -> bool:
        sent = self.tensor(0, self.count * self.n)
        return same_bits(side.recv, np.split(sent, self.n)[self.rank])


if __name__ == "__main__":
    main(Scatter)
