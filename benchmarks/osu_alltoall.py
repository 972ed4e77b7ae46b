"""Latency of Alltoall, as osu_alltoall."""

from __future__ import annotations

import numpy as np
from case import Array, Side, same_bits
from collective import Collective
from harness import main


class Alltoall(Collective):
    """Alltoall; the size is that of the message from one rank to one other."""

    title = "All-to-All Personalized Exchange Latency Test"
    operation = "Alltoall"
    algorithm_option = "alltoall"

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(self.rank, self.count * self.n)
        return send, np.empty_like(send)

    def call(self, side: Side) -> None:
        side.comm.Alltoall(side.send, side.recv)

    def is_right(self, side: Side) -> bool:
        for rank, part in enumerate(np.split(side.recv, self.n)):
            sent = self.tensor(rank, self.count * self.n)
            if not same_bits(part, np.split(sent, self.n)[self.rank]):
                return False
        return True


if __name__ == "__main__":
    main(Alltoall)
