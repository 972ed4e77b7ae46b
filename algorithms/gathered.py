"""Reductions of small tensors in types that MPI lacks: its own gather, and a fold on each rank.

MPI moves the bytes uncompressed, in as few steps as it knows. Every rank folds all contributions
in rank order, so a result is the same everywhere. A contribution ends with the word of the call and
the data type, so ranks that disagree notice. Scratch: P + 1 tensors.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from mpi4py import MPI

from uzipmpi.algorithms import places
from uzipmpi.algorithms.call import TRAILER_BYTES, describe, pack_trailer, unpack_trailer
from uzipmpi.algorithms.channel import Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import shards
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream
from uzipmpi.errors import MismatchError
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import DType, Tensor

__all__ = ["allreduce", "reduce", "reduce_scatter"]


@register("allreduce", name="gathered", in_call_order=True)
def allreduce(context: Context, send: Tensor, recv: Tensor, op: Operator) -> Stream:
    """Reduce ``send`` over all ranks to ``recv``, which may be the same memory."""
    gathering = Gathering(context, send)

    def steps() -> Waits:
        yield from places.fold(context, op, (yield from gathering.tensors()), recv)

    return Stream(steps())


@register("reduce", name="gathered", in_call_order=True)
def reduce(context: Context, send: Tensor, recv: Tensor | None, op: Operator, root: int) -> Stream:
    """Reduce ``send`` over all ranks to the root's ``recv``."""
    gathering = Gathering(context, send, root)

    def steps() -> Waits:
        tensors = yield from gathering.tensors()
        if recv is not None:
            yield from places.fold(context, op, tensors, recv)

    return Stream(steps())


@register("reduce_scatter", name="gathered", in_call_order=True)
def reduce_scatter(
    context: Context, send: Tensor, recv: Tensor, counts: Sequence[int], op: Operator
) -> Stream:
    """Reduce ``send`` over all ranks; rank r gets the r-th of ``counts`` consecutive shards."""
    gathering = Gathering(context, send)

    def steps() -> Waits:
        tensors = yield from gathering.tensors()
        mine = [shards(whole, counts)[context.rank] for whole in tensors]
        yield from places.fold(context, op, mine, recv)

    return Stream(steps())


class Gathering:
    """The tensors of all ranks on their way to all, or to a root.

    Parameters
    ----------
    context
        The call. If it blocks, the tensors are here when this is made.
    send
        This rank's tensor.
    root
        Who gets them; None: all.
    """

    def __init__(self, context: Context, send: Tensor, root: int | None = None) -> None:
        self._context, self._dtype = context, send.dtype
        row_bytes = send.nbytes + TRAILER_BYTES
        self._row = np.empty(row_bytes, np.uint8)
        self._failure: Exception | None = None
        try:
            self._row[: send.nbytes] = places.on_host(send).memory
            pack_trailer(self._row, send.nbytes, context.call, send.dtype)
        except MPI.Exception as error:  # the other ranks gather, and find no trailer
            self._failure = error
            self._row[send.nbytes :] = 0
        n_rows = context.size if root in (None, context.rank) else 0
        # Zeros are no trailer: a rank with fewer values is noticed.
        self._rows = np.zeros((n_rows, row_bytes), np.uint8)
        arguments = [self._row, MPI.BYTE], [self._rows, MPI.BYTE]
        comm, self._transfer = context.transport.comm, None
        if context.blocking:
            comm.Allgather(*arguments) if root is None else comm.Gather(*arguments, root)
        elif root is None:
            self._transfer = Transfer(comm.Iallgather(*arguments))
        else:
            self._transfer = Transfer(comm.Igather(*arguments, root))
        n_dests = context.size - 1 if root is None else 1
        context.record.value_bytes += send.nbytes * n_dests
        context.record.wire_bytes += row_bytes * n_dests

    def tensors(self) -> Generator[Transfer | None, None, list[Tensor]]:
        """Wait for the tensors of all ranks, and return them in rank order."""
        if self._transfer is not None:
            yield self._transfer
        if self._failure is not None:
            raise self._failure
        value_bytes = self._row.size - TRAILER_BYTES
        expected = (self._context.call, int(self._dtype))
        for rank, row in enumerate(self._rows):
            found = unpack_trailer(row, value_bytes)
            if found != expected:
                raise MismatchError(self._complaint(rank, found))
        return [Tensor(row[:value_bytes], self._dtype) for row in self._rows]

    def _complaint(self, other: int, found: tuple[int, int] | None) -> str:
        count = (self._row.size - TRAILER_BYTES) // self._dtype.itemsize
        mine = f"{count} values of {self._dtype.numpy.name}"
        theirs = "another number of bytes"
        if found is not None:
            call, dtype = found
            mine += f" to {describe(self._context.call)}"
            theirs = f"values of {DType(dtype).numpy.name} to {describe(call)}"
        return f"rank {self._context.rank} gave {mine}, rank {other} gave {theirs}"
