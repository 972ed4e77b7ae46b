"""Latency of Allreduce with SUM, as osu_allreduce."""

from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np
from harness import Array, Case, Side, algorithms, main, time_collective
from mpi4py import MPI

from uzipmpi.typing import DType

# What these fold has one value: rank order, and one rounding at the end.
RANK_ORDER = {"two_shot", "one_shot", "gathered"}
LACKED_BY_MPI = (DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)


class Allreduce(Case):
    """Allreduce with SUM. What plain MPI cannot add, it adds as fp32: more bytes."""

    title = "Allreduce Latency Test"
    column = "Avg Latency(us)"
    operation = "Allreduce"
    algorithm_option = "allreduce"

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(self.rank)
        return send, np.empty_like(send)

    def plain_buffers(self, send: Array, recv: Array) -> tuple[Array, Array]:
        if self.dtype not in LACKED_BY_MPI:
            return send, recv
        wide = send.astype(np.float32)
        return wide, np.empty_like(wide)

    def run(self, side: Side, n_iterations: int) -> float:
        return time_collective(
            side.comm, n_iterations, lambda: side.comm.Allreduce(side.send, side.recv)
        )

    def is_right(self, side: Side) -> bool:
        """Compare with the rank-order fold, or where another order was used within rounding."""
        used = algorithms(side.comm, self.operation)
        if used and set(used) <= RANK_ORDER:
            return same_values(side.recv, self.rank_order_sum())
        # Only that a value is NaN has to agree.
        alike = np.where(np.isnan(side.recv), np.float32(np.nan), side.recv)
        digests = MPI.COMM_WORLD.allgather(hashlib.sha256(alike.tobytes()).digest())
        return len(set(digests)) == 1 and self.is_within_rounding(side.recv)

    def rank_order_sum(self) -> Array:
        """Fold as NumPy does, from rank 0 up: 8- and 16-bit types in fp32, rounded once."""
        kind = np.float32 if self.dtype.itemsize < 4 else self.dtype.numpy
        with np.errstate(invalid="ignore", over="ignore"):
            total = self.tensor(0).astype(kind)
            for rank in range(1, self.n):
                total += self.tensor(rank).astype(kind)
            return total.astype(self.dtype.numpy)

    def is_within_rounding(self, found: Array) -> bool:
        """Allow one rounding of the largest partial sum for each rank."""
        with np.errstate(invalid="ignore", over="ignore"):
            tensors = [self.tensor(rank).astype(np.float64) for rank in range(self.n)]
            error = np.abs(found.astype(np.float64) - sum(tensors))
            limits: Any = ml_dtypes.finfo(found.dtype)  # type: ignore[no-untyped-call]
            magnitude: Array = sum(map(np.abs, tensors), np.zeros(1))
            allowed = self.n * (float(limits.eps) * magnitude + float(limits.smallest_subnormal))
        # Sums that may overflow, or hold NaN or infinity, have no bound.
        bounded = magnitude < float(limits.max)
        return bool(np.all(error[bounded] <= allowed[bounded]))


def same_values(left: Array, right: Array) -> bool:
    """Compare bit for bit, but for the payloads of NaN."""
    same = left.view(f"u{left.itemsize}") == right.view(f"u{left.itemsize}")
    return bool(np.all(same | (np.isnan(left) & np.isnan(right))))


if __name__ == "__main__":
    main(Allreduce)
