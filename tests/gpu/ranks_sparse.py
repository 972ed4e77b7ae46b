"""Sums of tensors that are mostly zeros stay small on their way, whichever algorithm makes them.

ranks_sparse.py MODULE: on the emulated GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import emulated_module
import numpy as np
from mpi4py import MPI

import uzipmpi
from uzipmpi.typing import DType

emulated_module.install(Path(sys.argv[1]))
from device_buffer import DeviceBuffer  # noqa: E402

NBYTES = 384 << 10
PRESENT = 0.05  # of the values; the others are zeros
# With a mask of 1 bit in 16 and values of a few more than 8.
MOST = 0.25
rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


def drawn(seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(NBYTES // 2, np.float32) * 0.02
    values[generator.random(values.size) >= PRESENT] = 0
    return values.astype(DType.BFLOAT16.numpy)


def main() -> None:
    expected = sum(drawn(seed).astype(np.float32) for seed in range(size))
    for algorithm in ("ring", "two_shot"):
        comm = uzipmpi.Comm(MPI.COMM_WORLD.Dup(), allreduce=algorithm, compress="always")
        out = DeviceBuffer(np.empty_like(drawn(0)))
        comm.Allreduce(DeviceBuffer(drawn(rank)), out)
        np.testing.assert_allclose(out.get().astype(np.float32), expected, rtol=0.01)
        totals = comm.stats["Allreduce"]
        ratio = totals.frame_bytes / totals.coded_bytes
        assert ratio < MOST, f"{algorithm}: expected at most {MOST}, found {ratio:.3f}"
        if rank == 0:
            print(f"{algorithm}: stays small, {ratio:.3f}")
        comm.Free()


main()
