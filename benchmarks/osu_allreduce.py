"""Latency of Allreduce with SUM, as osu_allreduce."""

from __future__ import annotations

import hashlib

import numpy as np
from case import Array, Side
from harness import main
from mpi4py import MPI
from reduction import Reduction


class Allreduce(Reduction):
    """Allreduce with SUM. What plain MPI cannot add, it adds as fp32: more bytes."""

    title = "Allreduce Latency Test"
    operation = "Allreduce"
    algorithm_option = "allreduce"

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(self.rank)
        return send, np.empty_like(send)

    def call(self, side: Side) -> None:
        side.comm.Allreduce(side.send, side.recv)

    def is_right(self, side: Side) -> bool:
        """Whatever the order, all ranks must have the same bits."""
        # Only that a value is NaN has to agree.
        alike = np.where(np.isnan(side.recv), np.float32(np.nan), side.recv)
        digests = MPI.COMM_WORLD.allgather(hashlib.sha256(alike.tobytes()).digest())
        return super().is_right(side) and len(set(digests)) == 1


if __name__ == "__main__":
    main(Allreduce)
