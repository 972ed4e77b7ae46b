"""Latency of Reduce with SUM to rank 0, as osu_reduce."""

from __future__ import annotations

import numpy as np
from case import Array, Side
from harness import main
from reduction import Reduction


class Reduce(Reduction):
    """Reduce with SUM to rank 0. What plain MPI cannot add, it adds as fp32: more bytes."""

    title = "Reduce Latency Test"
    operation = "Reduce"
    algorithm_option = "reduce"

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(self.rank)
        return send, np.empty(send.size if self.rank == 0 else 0, send.dtype)

    def call(self, side: Side) -> None:
        side.comm.Reduce(side.send, side.recv if self.rank == 0 else None)

    def part(self) -> slice:
        return slice(None) if self.rank == 0 else slice(0)


if __name__ == "__main__":
    main(Reduce)
