"""A benchmark whose receiver finds one bit flipped."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from harness import Side, main
from osu_latency import Latency


class FlippedLatency(Latency):
    """Latency with one wrong bit on rank 1."""

    def run(self, side: Side, n_iterations: int) -> float:
        seconds = super().run(side, n_iterations)
        if self.rank == 1:
            side.recv.view(np.uint8)[0] ^= 1
        return seconds


if __name__ == "__main__":
    main(FlippedLatency)
