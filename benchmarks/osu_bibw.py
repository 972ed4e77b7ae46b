"""Point-to-point bandwidth, both ways at once, as osu_bibw."""

from __future__ import annotations

from case import Side
from harness import main
from mpi4py import MPI
from window import Window


class BidirectionalBandwidth(Window):
    """Windows of nonblocking sends between rank 0 and rank 1, both ways at once."""

    title = "Bi-Directional Bandwidth Test"
    n_ranks = 2
    n_directions = 2
    receives = True

    def run(self, side: Side, n_iterations: int) -> float:
        start = MPI.Wtime()
        for _ in range(n_iterations):
            receives = self.begin_receives(side)
            self.wait(side, self.begin_sends(side))
            self.wait(side, receives)
        return (MPI.Wtime() - start) / n_iterations


if __name__ == "__main__":
    main(BidirectionalBandwidth)
