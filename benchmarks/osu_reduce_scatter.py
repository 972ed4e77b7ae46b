"""Latency of Reduce_scatter with SUM, as osu_reduce_scatter."""

from __future__ import annotations

import numpy as np
from case import Array, Side
from harness import main
from reduction import Reduction


class ReduceScatter(Reduction):
    """Reduce_scatter with SUM; the size is that of the send buffer."""

    title = "Reduce_scatter Latency Test"
    operation = "Reduce_scatter"
    algorithm_option = "reduce_scatter"

    @property
    def counts(self) -> list[int]:
        """Values of each rank's part: what does not divide evenly goes to the first ranks."""
        portion, remainder = divmod(self.count, self.n)
        return [portion + (rank < remainder) for rank in range(self.n)]

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(self.rank)
        return send, np.empty(self.counts[self.rank], send.dtype)

    def call(self, side: Side) -> None:
        side.comm.Reduce_scatter(side.send, side.recv, self.counts)

    def part(self) -> slice:
        start = sum(self.counts[: self.rank])
        return slice(start, start + self.counts[self.rank])


if __name__ == "__main__":
    main(ReduceScatter)
