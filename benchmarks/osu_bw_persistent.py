"""Point-to-point bandwidth of persistent requests, as osu_bw_persistent."""

from __future__ import annotations

from case import Side
from harness import main
from mpi4py import MPI
from window import MESSAGE_TAG, Window


class PersistentBandwidth(Window):
    """Windows of persistent sends from rank 0 to rank 1, each answered with 4 bytes."""

    title = "Bandwidth Persistent Test"
    n_ranks = 2

    def persistent(self, side: Side) -> list[MPI.Prequest]:
        if self.sends:
            n_messages = range(self.options.window_size)
            return [side.comm.Send_init(side.send, self.peer, MESSAGE_TAG) for _ in n_messages]
        return [side.comm.Recv_init(part, self.peer, MESSAGE_TAG) for part in side.recv]

    def exchange(self, side: Side) -> None:
        # Each class of requests has its own: uzipmpi's takes mpi4py's as well.
        type(side.requests[0]).Startall(side.requests)
        self.wait(side, side.requests)


if __name__ == "__main__":
    main(PersistentBandwidth)
