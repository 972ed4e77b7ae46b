"""Latency of Bcast from rank 0, as osu_bcast."""

from __future__ import annotations

from case import Array, Side, same_bits
from collective import Collective
from harness import main


class Bcast(Collective):
    """Bcast from rank 0; the size is that of the message."""

    title = "Broadcast Latency Test"
    operation = "Bcast"
    algorithm_option = "bcast"

    def buffers(self) -> tuple[Array, Array]:
        message = self.tensor(self.rank)
        return message, message

    def call(self, side: Side) -> None:
        side.comm.Bcast(side.recv, 0)

    def clear(self, side: Side) -> None:
        if self.rank != 0:
            super().clear(side)

    def is_right(self, side: Side) -> bool:
        return same_bits(side.recv, self.tensor(0))


if __name__ == "__main__":
    main(Bcast)
