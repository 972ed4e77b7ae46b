"""Point-to-point bandwidth: windows of non-blocking sends, acknowledged, as osu_bw."""

from __future__ import annotations

import numpy as np
from harness import Array, Case, Side, main, same_bits
from mpi4py import MPI


class Bandwidth(Case):
    """Windows of non-blocking sends from rank 0 to rank 1, each acknowledged with 4 bytes."""

    title = "Bandwidth Test"
    column = "Bandwidth (MB/s)"
    operation = "Isend"
    algorithm_option = "p2p"
    max_bytes = 1 << 22
    n_ranks = 2
    is_bandwidth = True
    timed_ranks = slice(0, 1)

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(self.rank)
        # OSU's -b multiple: MPI forbids what its default does, receives that share a buffer.
        return send, np.empty((self.options.window_size, send.size), send.dtype)

    def run(self, side: Side, n_iterations: int) -> float:
        comm, n_messages = side.comm, self.options.window_size
        acknowledgement = np.zeros(4, np.uint8)
        start = MPI.Wtime()
        for _ in range(n_iterations):
            if self.rank == 0:
                MPI.Request.Waitall([comm.Isend(side.send, 1, 100) for _ in range(n_messages)])
                comm.Recv(acknowledgement, 1, 101)
            else:
                MPI.Request.Waitall([comm.Irecv(part, 0, 100) for part in side.recv])
                comm.Send(acknowledgement, 0, 101)
        return (MPI.Wtime() - start) / n_iterations

    def figure(self, seconds: float) -> float:
        n_messages: int = self.options.window_size
        return self.size * n_messages / seconds / 1e6

    def is_right(self, side: Side) -> bool:
        expected = self.tensor(0)
        return self.rank == 0 or all(same_bits(part, expected) for part in side.recv)


if __name__ == "__main__":
    main(Bandwidth)
