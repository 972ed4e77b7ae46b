"""What each collective's arguments mean: tensors for an algorithm, and what all ranks know.

A function of the public ones turns arguments into a :class:`~uzipmpi.call.Call`; whether that is
done at once, begun or made persistent is its caller's affair.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI

from uzipmpi import buffers, selection
from uzipmpi.algorithms import operators, places
from uzipmpi.algorithms.operators import Operator
from uzipmpi.call import Call, Work
from uzipmpi.errors import MismatchError
from uzipmpi.handle import Endpoint
from uzipmpi.operands import each, whole
from uzipmpi.refusal import Arguments
from uzipmpi.selection import Facts
from uzipmpi.typing import DType, Tensor

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "bcast",
    "exscan",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_block",
    "scan",
    "scatter",
]


def bcast(end: Endpoint, buf: Any, root: int) -> Call:
    """Broadcast; the root encodes once and frames are forwarded."""
    return Call(end, "Bcast", Arguments("bcast", buf, root=_index(root)), _bcast)


def gather(end: Endpoint, sendbuf: Any, recvbuf: Any, root: int, *, vector: bool) -> Call:
    """Gather on the root."""
    given = Arguments("gather", sendbuf, recvbuf, _index(root), vector=vector)
    return Call(end, "Gatherv" if vector else "Gather", given, _gather)


def scatter(end: Endpoint, sendbuf: Any, recvbuf: Any, root: int, *, vector: bool) -> Call:
    """Scatter from the root."""
    given = Arguments("scatter", sendbuf, recvbuf, _index(root), vector=vector)
    return Call(end, "Scatterv" if vector else "Scatter", given, _scatter)


def allgather(end: Endpoint, sendbuf: Any, recvbuf: Any, *, vector: bool) -> Call:
    """Gather on all ranks; each encodes once and frames are forwarded."""
    given = Arguments("allgather", sendbuf, recvbuf, vector=vector)
    return Call(end, "Allgatherv" if vector else "Allgather", given, _allgather)


def alltoall(end: Endpoint, sendbuf: Any, recvbuf: Any, *, vector: bool) -> Call:
    """Exchange with all ranks; in place, what is sent is copied first."""
    given = Arguments("alltoall", sendbuf, recvbuf, vector=vector)
    return Call(end, "Alltoallv" if vector else "Alltoall", given, _alltoall)


def allreduce(end: Endpoint, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """Reduce on all ranks."""
    sendbuf = _in_place_if_same(sendbuf, recvbuf)
    return Call(end, "Allreduce", Arguments("allreduce", sendbuf, recvbuf, op=op), _on_all)


def reduce(end: Endpoint, sendbuf: Any, recvbuf: Any, op: Any, root: int) -> Call:
    """Reduce on the root."""
    if end.handle.rank == root:
        sendbuf = _in_place_if_same(sendbuf, recvbuf)
    given = Arguments("reduce", sendbuf, recvbuf, _index(root), op)
    return Call(end, "Reduce", given, _reduce)


def reduce_scatter(
    end: Endpoint, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: Any
) -> Call:
    """Reduce, and give rank r the r-th of ``recvcounts`` values."""
    sendbuf = _in_place_if_same(sendbuf, recvbuf)
    given = Arguments("reduce_scatter", sendbuf, recvbuf, None, op, recvcounts, vector=True)
    return Call(end, "Reduce_scatter", given, _reduce_scatter)


def reduce_scatter_block(end: Endpoint, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """Reduce, and give every rank as many of the values."""
    sendbuf = _in_place_if_same(sendbuf, recvbuf)
    given = Arguments("reduce_scatter", sendbuf, recvbuf, op=op)
    return Call(end, "Reduce_scatter_block", given, _reduce_scatter_block)


def scan(end: Endpoint, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """Reduce over the ranks up to this one; AVG divides by their number."""
    sendbuf = _in_place_if_same(sendbuf, recvbuf)
    return Call(end, "Scan", Arguments("scan", sendbuf, recvbuf, op=op), _on_all)


def exscan(end: Endpoint, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """Reduce over the ranks before this one; nothing is received on the first."""
    sendbuf = _in_place_if_same(sendbuf, recvbuf)
    return Call(end, "Exscan", Arguments("exscan", sendbuf, recvbuf, op=op), _on_all)


def _bcast(end: Endpoint, given: Arguments) -> Work | None:
    buf, root = given.sendbuf, given.root
    if _left_to_mpi(end, buf) or not _is_rank(end, root):
        return None
    is_root = end.handle.rank == root
    operand = whole(buf, writable=not is_root)
    if operand is None:
        return None

    def arguments() -> Sequence[Any]:
        operand.pack()
        return operand.tensors[0], root

    facts = _facts(end, given, operand.nbytes)
    if is_root:
        return Work(facts, operand.nbytes, arguments)
    return Work(facts, 0, arguments, operand.unpack)


def _allgather(end: Endpoint, given: Arguments) -> Work | None:
    rank, size = end.handle.rank, end.handle.size
    if _left_to_mpi(end, given.recvbuf):
        return None
    recv = each(given.recvbuf, size, vector=given.vector, writable=True)
    in_place = buffers.is_in_place(given.sendbuf)
    send = recv if in_place else whole(given.sendbuf)
    if send is None or recv is None:
        return None
    own = send.tensors[rank if in_place else 0]
    _same_size(end, own, recv.tensors[rank])

    def arguments() -> Sequence[Any]:
        send.pack()
        return own, recv.tensors

    return Work(_facts(end, given, recv.nbytes), own.nbytes, arguments, recv.unpack)


def _gather(end: Endpoint, given: Arguments) -> Work | None:
    root, size = given.root, end.handle.size
    is_root = end.handle.rank == root
    leading = given.recvbuf if is_root else given.sendbuf
    if _left_to_mpi(end, leading, vector=given.vector) or not _is_rank(end, root):
        return None
    recv = each(given.recvbuf, size, vector=given.vector, writable=True) if is_root else None
    in_place = is_root and buffers.is_in_place(given.sendbuf)
    send = recv if in_place else whole(given.sendbuf)
    if send is None or root is None or (is_root and recv is None):
        return None
    own = send.tensors[root if in_place else 0]
    recvs = recv.tensors if recv else None
    if recvs is not None:
        _same_size(end, own, recvs[root])

    def arguments() -> Sequence[Any]:
        send.pack()
        return own, recvs, root

    facts = _facts(end, given, None if given.vector else own.nbytes)
    if recv is None:
        return Work(facts, own.nbytes, arguments)
    return Work(facts, 0, arguments, recv.unpack)


def _scatter(end: Endpoint, given: Arguments) -> Work | None:
    root, size = given.root, end.handle.size
    is_root = end.handle.rank == root
    leading = given.sendbuf if is_root else given.recvbuf
    if _left_to_mpi(end, leading, vector=given.vector) or not _is_rank(end, root):
        return None
    send = each(given.sendbuf, size, vector=given.vector) if is_root else None
    in_place = is_root and buffers.is_in_place(given.recvbuf)
    recv = send if in_place else whole(given.recvbuf, writable=True)
    if recv is None or root is None or (is_root and send is None):
        return None
    own = recv.tensors[root if in_place else 0]
    if send is not None:
        _same_size(end, send.tensors[root], own)

    def arguments() -> Sequence[Any]:
        if send is None:
            return None, own, root
        send.pack()
        return send.tensors, own, root

    facts = _facts(end, given, None if given.vector else own.nbytes)
    value_bytes = send.nbytes - own.nbytes if send else 0
    if in_place:
        return Work(facts, value_bytes, arguments)
    return Work(facts, value_bytes, arguments, recv.unpack)


def _alltoall(end: Endpoint, given: Arguments) -> Work | None:
    rank, size = end.handle.rank, end.handle.size
    if _left_to_mpi(end, given.recvbuf, vector=given.vector):
        return None
    recv = each(given.recvbuf, size, vector=given.vector, writable=True)
    in_place = buffers.is_in_place(given.sendbuf)
    send = recv if in_place else each(given.sendbuf, size, vector=given.vector)
    if send is None or recv is None:
        return None
    own = send.tensors[rank]
    _same_size(end, own, recv.tensors[rank])

    def arguments() -> Sequence[Any]:
        send.pack()
        sends = send.tensors
        if in_place:
            sends = [places.copy_of(tensor) for tensor in sends]
        return sends, recv.tensors

    facts = _facts(end, given, None if given.vector else send.nbytes)
    return Work(facts, send.nbytes - own.nbytes, arguments, recv.unpack, copies=in_place)


def _on_all(end: Endpoint, given: Arguments) -> Work | None:
    """Understand a reduction that every rank gives to and gets."""
    recv = buffers.block(given.recvbuf, writable=True)
    in_place = buffers.is_in_place(given.sendbuf)
    send = recv if in_place else buffers.block(given.sendbuf)
    if send is None or recv is None:
        return None
    op = _operator(given.op, send)
    _alike(send, recv, recv.count)
    facts = _facts(end, given, send.nbytes, send.dtype, op)
    return Work(facts, send.nbytes, lambda: (send, recv, op))


def _reduce(end: Endpoint, given: Arguments) -> Work | None:
    root = given.root
    is_root = end.handle.rank == root
    recv = buffers.block(given.recvbuf, writable=True) if is_root else None
    in_place = is_root and buffers.is_in_place(given.sendbuf)
    send = recv if in_place else buffers.block(given.sendbuf)
    if send is None or (is_root and recv is None) or not _is_rank(end, root):
        return None
    op = _operator(given.op, send)
    if recv is not None:
        _alike(send, recv, recv.count)
    facts = _facts(end, given, send.nbytes, send.dtype, op)
    return Work(facts, send.nbytes, lambda: (send, recv, op, root))


def _reduce_scatter(end: Endpoint, given: Arguments) -> Work | None:
    in_place = buffers.is_in_place(given.sendbuf)
    counts = given.counts
    if counts is None and not in_place:
        counts = _gathered_counts(end, given.recvbuf)
    recv = buffers.block(given.recvbuf, writable=True)
    send = recv if in_place else buffers.block(given.sendbuf)
    if send is None or recv is None or counts is None:
        return None
    counts = [int(count) for count in counts]
    if len(counts) != end.handle.size:
        return None
    own = _shard(recv, counts, end.handle.rank, in_place=in_place)
    _alike(send, own, sum(counts), counts[end.handle.rank])
    return _scattered(end, given, send, own, counts)


def _reduce_scatter_block(end: Endpoint, given: Arguments) -> Work | None:
    size = end.handle.size
    in_place = buffers.is_in_place(given.sendbuf)
    recv = buffers.block(given.recvbuf, writable=True, n_blocks=size if in_place else 1)
    send = recv if in_place else buffers.block(given.sendbuf, n_blocks=size)
    if send is None or recv is None:
        return None
    counts = [send.count // size] * size
    own = _shard(recv, counts, end.handle.rank, in_place=in_place)
    _alike(send, own, sum(counts), counts[0])
    return _scattered(end, given, send, own, counts)


def _scattered(
    end: Endpoint, given: Arguments, send: Tensor, own: Tensor, counts: Sequence[int]
) -> Work:
    op = _operator(given.op, send)
    facts = _facts(end, given, send.nbytes, send.dtype, op)
    if not buffers.is_in_place(given.sendbuf):
        return Work(facts, send.nbytes, lambda: (send, own, counts, op))
    # In place, the result lies among the contributions, over those to other shards.
    apart = Tensor(places.room(own.nbytes, like=own), own.dtype)
    return Work(
        facts,
        send.nbytes,
        lambda: (send, apart, counts, op),
        lambda: places.copy(apart, own),
        copies=True,
    )


def _gathered_counts(end: Endpoint, recvbuf: Any) -> Sequence[int] | None:
    """Return what all ranks receive; collective. None if this rank's buffer is wrong, or strange.

    Raises
    ------
    MismatchError
        If only other ranks' buffers are: they raise what is wrong with them.
    """
    mine = None
    with suppress(Exception):  # the other ranks wait for this one here
        recv = buffers.block(recvbuf, writable=True)
        mine = None if recv is None else recv.count
    counts = end.handle.private.allgather(mine)
    if mine is not None and None in counts:
        raise MismatchError(
            f"rank {end.handle.rank}: expected receive buffers on all ranks, "
            f"found none that can be used on rank {counts.index(None)}"
        )
    return None if mine is None else counts


def _shard(recv: Tensor, counts: Sequence[int], rank: int, *, in_place: bool) -> Tensor:
    """Return where this rank's shard goes: in place, the start of the buffer that held all."""
    return recv[: counts[rank]] if in_place else recv


def _index(root: Any) -> Any:
    """Return a root as Python's integer, which NumPy's are not; mpi4py judges all else."""
    with suppress(TypeError):
        return operator.index(root)
    return root


def _is_rank(end: Endpoint, root: int | None) -> bool:
    return isinstance(root, int) and 0 <= root < end.handle.size


def _facts(
    end: Endpoint,
    given: Arguments,
    nbytes: int | None,
    dtype: DType | None = None,
    op: Operator | None = None,
) -> Facts:
    size, min_bytes = end.handle.size, end.config.min_bytes
    return Facts(given.operation, size, nbytes, min_bytes, dtype, op, given.root)


def _left_to_mpi(end: Endpoint, spec: Any, *, vector: bool = False) -> bool:
    """Whether a collective that only moves values is MPI's whatever its buffers are.

    It is where nothing is compressed, unless counts may pass what MPI takes: no rank then has a
    smaller buffer than that.
    """
    if selection.compressing(end) or end.handle.may_link:
        return False
    if selection.LARGE_COUNTS or vector:
        return True
    buffer = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    return isinstance(buffer, np.ndarray) and buffer.nbytes <= buffers.INT_MAX


def _in_place_if_same(sendbuf: Any, recvbuf: Any) -> Any:
    """Return "in place" for a send buffer that is the receive buffer, as mpi4py 4.2 does."""
    if sendbuf is None or sendbuf is recvbuf:
        return MPI.IN_PLACE
    if isinstance(sendbuf, np.ndarray) and isinstance(recvbuf, np.ndarray):
        same = sendbuf.ctypes.data == recvbuf.ctypes.data and sendbuf.nbytes == recvbuf.nbytes > 0
        return MPI.IN_PLACE if same else sendbuf
    return sendbuf


def _operator(op: Any, send: Tensor) -> Operator | None:
    """Return the operator as ours; None if only MPI knows it."""
    ours = operators.of(op)
    if ours is not None and send.dtype is DType.BYTES and not isinstance(op, MPI.Op):
        raise TypeError(f"{ours.name}: expected one of the six float types, found another type")
    return ours


def _alike(send: Tensor, recv: Tensor, n_sent: int, n_received: int | None = None) -> None:
    """Complain about a reduction's buffers as mpi4py does; integers are left to mpi4py itself."""
    if send.dtype is not recv.dtype:
        raise ValueError("mismatch in send and receive MPI datatypes")
    if send.dtype is DType.BYTES:
        return
    if send.count != n_sent:
        raise ValueError(f"mismatch in send count {send.count} and receive count {n_sent}")
    if n_received is not None and recv.count != n_received:
        raise ValueError(
            f"mismatch in receive count {recv.count} and count {n_received} of its shard"
        )


def _same_size(end: Endpoint, send: Tensor, recv: Tensor) -> None:
    """Complain if a rank would send itself another size than it receives."""
    if send.nbytes != recv.nbytes:
        end.mpi.Call_errhandler(MPI.ERR_TRUNCATE)
        raise MPI.Exception(MPI.ERR_TRUNCATE)
