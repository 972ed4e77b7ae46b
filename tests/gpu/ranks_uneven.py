"""Ranks that disagree about whether MPI takes GPU memory: their calls still meet."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import emulated_module
import numpy as np
from mpi4py import MPI

rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
os.environ["UZIPMPI_CUDA_AWARE"] = str(rank % 2)
emulated_module.install(Path(sys.argv[1]))

import uzipmpi  # noqa: E402
from uzipmpi.kernels import device  # noqa: E402

COUNT = 50_000


def main() -> None:
    comm = uzipmpi.Comm(MPI.COMM_WORLD.Dup(), compress="always", min_bytes=0, allreduce="two_shot")
    stream = device.Stream(0)
    memory = device.allocate(4 * COUNT, 0)
    mine = np.full(COUNT, rank, np.float32)  # lives until it was copied
    stream.copy(memory, mine.view(np.uint8))
    stream.synchronize()
    comm.Allreduce(MPI.IN_PLACE, [memory, "float32"])
    total = np.empty(COUNT, np.float32)
    stream.copy(total.view(np.uint8), memory)
    stream.synchronize()
    assert (total == size * (size - 1) // 2).all()
    comm.Free()


if __name__ == "__main__":
    main()
