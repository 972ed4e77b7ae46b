"""Point-to-point latency: half of a round trip between two ranks, as osu_latency."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from case import Array, Case, Side, same_bits
from harness import main
from mpi4py import MPI


class Latency(Case):
    """Half of a round trip between two ranks."""

    title = "Latency Test"
    full_columns: ClassVar[tuple[str, ...]] = ("Avg Latency(us)", "Iterations")
    operation = "Send"
    algorithm_option = "p2p"
    max_bytes = 1 << 22
    n_ranks = 2
    timed_ranks = slice(0, 1)

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(self.rank)
        return send, np.empty_like(send)

    def run(self, side: Side, n_iterations: int) -> float:
        comm, send, recv = side.comm, side.send, side.recv
        start = MPI.Wtime()
        if self.rank == 0:
            for _ in range(n_iterations):
                comm.Send(send, 1, 1)
                comm.Recv(recv, 1, 1)
        else:
            for _ in range(n_iterations):
                comm.Recv(recv, 0, 1)
                comm.Send(send, 0, 1)
        return (MPI.Wtime() - start) / (2 * n_iterations)

    def is_right(self, side: Side) -> bool:
        return same_bits(side.recv, self.tensor(1 - self.rank))


if __name__ == "__main__":
    main(Latency)
