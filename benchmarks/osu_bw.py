"""Point-to-point bandwidth: windows of nonblocking sends, each answered, as osu_bw."""

from __future__ import annotations

from harness import main
from window import Window


class Bandwidth(Window):
    """Windows of nonblocking sends from rank 0 to rank 1, each answered with 4 bytes."""

    title = "Bandwidth Test"
    n_ranks = 2


if __name__ == "__main__":
    main(Bandwidth)
