"""Bandwidth and message rate of many pairs at once, as osu_mbw_mr."""

from __future__ import annotations

import argparse
from typing import ClassVar

from case import Array
from harness import main
from mpi4py import MPI
from window import Window


class MultipleBandwidth(Window):
    """Windows of nonblocking sends from rank r to rank r + P/2, each answered with 4 bytes."""

    title = "Multiple Bandwidth / Message Rate Test"
    columns: ClassVar[tuple[str, ...]] = ("MB/s", "Messages/s")
    full_columns: ClassVar[tuple[str, ...]] = columns
    compared: ClassVar[dict[str, str]] = {"MB/s": "MB/s"}
    least_ranks = 2

    @classmethod
    def remarks(cls, options: argparse.Namespace) -> list[str]:
        n_pairs = MPI.COMM_WORLD.size // 2
        return [f"# [ pairs: {n_pairs} ] [ window size: {options.window_size} ]"]

    def figures(self, times: Array) -> dict[str, float]:
        (bandwidth,) = super().figures(times).values()
        return {"MB/s": bandwidth, "Messages/s": bandwidth * 1e6 / self.size}


if __name__ == "__main__":
    main(MultipleBandwidth)
