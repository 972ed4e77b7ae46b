"""Reductions of small tensors in types that MPI lacks: its own gather, and a fold on each rank.

MPI moves the bytes uncompressed, in as few steps as it knows. Every rank folds all contributions
in rank order, so a result is the same everywhere. Scratch: P tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import shards
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.registry import register
from uzipmpi.typing import Tensor

__all__ = ["allreduce", "reduce", "reduce_scatter"]


@register("allreduce", name="gathered")
def allreduce(context: Context, send: Tensor, recv: Tensor, op: Operator) -> None:
    """Reduce ``send`` over all ranks to ``recv``, which may be the same memory."""
    op.fold(collect(context, send), recv)


@register("reduce", name="gathered")
def reduce(context: Context, send: Tensor, recv: Tensor | None, op: Operator, root: int) -> None:
    """Reduce ``send`` over all ranks to the root's ``recv``."""
    gathered = np.empty((context.size if recv else 0, send.nbytes), np.uint8)
    count(context, send, 1)
    context.transport.comm.Gather([send.memory, MPI.BYTE], [gathered, MPI.BYTE], root)
    if recv is not None:
        op.fold([Tensor(row, send.dtype) for row in gathered], recv)


@register("reduce_scatter", name="gathered")
def reduce_scatter(
    context: Context, send: Tensor, recv: Tensor, counts: Sequence[int], op: Operator
) -> None:
    """Reduce ``send`` over all ranks; rank r gets the r-th of ``counts`` consecutive shards."""
    op.fold([shards(whole, counts)[context.rank] for whole in collect(context, send)], recv)


def collect(context: Context, send: Tensor) -> list[Tensor]:
    """Return the tensors of all ranks, in rank order."""
    gathered = np.empty((context.size, send.nbytes), np.uint8)
    count(context, send, context.size - 1)
    context.transport.comm.Allgather([send.memory, MPI.BYTE], [gathered, MPI.BYTE])
    return [Tensor(row, send.dtype) for row in gathered]


def count(context: Context, send: Tensor, n_dests: int) -> None:
    """Enter what goes to ``n_dests`` ranks, as it is, in the record of the call."""
    context.record.value_bytes += send.nbytes * n_dests
    context.record.wire_bytes += send.nbytes * n_dests
