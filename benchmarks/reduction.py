"""Reductions with SUM: what plain MPI is given, and when a result is right."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from case import Array, Side, algorithms
from collective import Collective

from uzipmpi.typing import DType

__all__ = ["Reduction"]

# What these fold has one value: rank order, and one rounding at the end.
RANK_ORDER = {"two_shot", "one_shot", "gathered", "direct"}
LACKED_BY_MPI = (DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)


class Reduction(Collective):
    """A reduction with SUM. What plain MPI cannot add, it adds as fp32: more bytes."""

    def plain_buffers(self, send: Array, recv: Array) -> tuple[Array, Array]:
        if self.dtype not in LACKED_BY_MPI:
            return send, recv
        return send.astype(np.float32), np.empty(recv.size, np.float32)

    def part(self) -> slice:
        """The values of the result that this rank receives."""
        return slice(None)

    def is_right(self, side: Side) -> bool:
        """Compare with the rank-order fold, or where another order was used within rounding."""
        if self.is_rank_order(side):
            return same_values(side.recv, self.rank_order_sum()[self.part()])
        return self.is_within_rounding(side.recv)

    def is_rank_order(self, side: Side) -> bool:
        """Whether the result has one value only."""
        used = algorithms(side.comm, self.operation)
        return bool(used) and set(used) <= RANK_ORDER

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
            inputs = (self.tensor(rank)[self.part()] for rank in range(self.n))
            tensors = [values.astype(np.float64) for values in inputs]
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
