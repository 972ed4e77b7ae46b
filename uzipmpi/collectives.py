"""Collectives: arguments to tensors, the choice of an algorithm, and the call.

The choice depends on nothing but what all ranks know. A buffer with a derived datatype is packed
by the rank that has it, and travels as bytes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from uzipmpi import buffers, derived, selection
from uzipmpi.algorithms import operators, registry
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.stream import drive
from uzipmpi.handle import Endpoint
from uzipmpi.p2p import codec_of
from uzipmpi.selection import Facts
from uzipmpi.typing import DType, Tensor

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "bcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_block",
    "scatter",
]


class Call:
    """One call of a collective.

    Parameters
    ----------
    end
        The communicator.
    method
        Name of mpi4py's method.
    arguments
        What it was called with: buffers first, as ``n_buffers`` says.
    """

    def __init__(self, end: Endpoint, method: str, n_buffers: int, *arguments: Any) -> None:
        self._end, self._method = end, method
        self._buffers, self._others = arguments[:n_buffers], arguments[n_buffers:]
        self._started = time.perf_counter()

    def plain(self, value_bytes: int = 0, why: str = "") -> None:
        """Let MPI do it."""
        specs = [buffers.plain(spec) for spec in self._buffers]
        getattr(self._end.mpi, self._method)(*specs, *self._others)
        self._count(value_bytes, value_bytes, "mpi", "", why)

    def run(
        self,
        facts: Facts,
        value_bytes: int,
        arguments: Callable[[], Sequence[Any]],
        received: Operand | None = None,
    ) -> bool:
        """Choose an algorithm and run it; return whether it was one of ours.

        ``arguments`` makes its arguments then, and it leaves values in ``received``.
        """
        end = self._end
        choice = selection.choose(end, facts)
        if choice.algorithm == selection.PLAIN:
            self.plain(value_bytes, choice.fallback)
            return False
        if choice.fallback:
            end = end._replace(config=dataclasses.replace(end.config, codec="raw"))
        context = end.context(end.handle.collective_tag())
        drive([registry.find(facts.operation, choice.algorithm).run(context, *arguments())])
        if received is not None:
            received.unpack()
        record = context.record
        self._count(
            record.value_bytes,
            record.wire_bytes,
            choice.algorithm,
            codec_of(context),
            choice.fallback,
        )
        return True

    def _count(self, values: int, wire: int, algorithm: str, codec: str, why: str) -> None:
        self._end.handle.stats.add(
            self._method,
            values,
            wire,
            time.perf_counter() - self._started,
            algorithm=algorithm,
            codec=codec,
            fallback=why,
        )


class Operand:
    """A buffer argument as tensors: one, or one for each rank.

    Parameters
    ----------
    tensors
        The memory.
    specs
        Where to unpack the tensors, if a datatype is derived.
    """

    def __init__(self, tensors: Sequence[Tensor], specs: Sequence[Any] = ()) -> None:
        self.tensors = tensors
        self._specs = specs

    @property
    def nbytes(self) -> int:
        """Bytes in all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def unpack(self) -> None:
        """Put received values in their place."""
        for tensor, spec in zip(self.tensors, self._specs, strict=False):
            derived.unpack(tensor, spec)


def whole(spec: Any, *, writable: bool = False) -> Operand | None:
    """Return a block specification as one tensor; None if MPI should judge it."""
    tensor = buffers.block(spec, writable=writable)
    if tensor is not None:
        return Operand([tensor])
    if buffers.is_derived(spec):
        return Operand([derived.pack(spec)], [spec])
    _check_host(spec)
    return None


def each(spec: Any, n: int, *, vector: bool, writable: bool = False) -> Operand | None:
    """Return a specification as one tensor for each rank; None if MPI should judge it."""
    if vector:
        tensors = buffers.blocks(spec, n, writable=writable)
    else:
        all_ = buffers.block(spec, writable=writable, n_blocks=n)
        tensors = None if all_ is None else split(all_, n)
    if tensors is not None:
        return Operand(tensors)
    specs = buffers.pieces(spec, n, vector=vector) if buffers.is_derived(spec) else None
    if specs:
        return Operand([derived.pack(piece) for piece in specs], specs)
    _check_host(spec)
    return None


def split(tensor: Tensor, n: int) -> list[Tensor]:
    """Cut a tensor into ``n`` equal parts; of bytes, whatever the size of its entries."""
    size = tensor.nbytes // n
    return [Tensor(tensor.memory[i * size : (i + 1) * size], tensor.dtype) for i in range(n)]


def _check_host(spec: Any) -> None:
    """Complain about what is not MPI's to judge: other ranks would wait for this one in vain."""
    if buffers.on_device(spec):
        raise TypeError("expected a buffer in host memory, found one in the memory of a GPU")


def bcast(end: Endpoint, buf: Any, root: int) -> None:
    """Broadcast; the root encodes once and frames are forwarded."""
    call = Call(end, "Bcast", 1, buf, root)
    if _left_to_mpi(end, buf) or not 0 <= root < end.handle.size:
        return call.plain()
    is_root = end.handle.rank == root
    operand = whole(buf, writable=not is_root)
    if operand is None:
        return call.plain()
    facts = _facts(end, "bcast", operand.nbytes)
    value_bytes, received = (operand.nbytes, None) if is_root else (0, operand)
    call.run(facts, value_bytes, lambda: (operand.tensors[0], root), received)


def allgather(end: Endpoint, sendbuf: Any, recvbuf: Any, *, vector: bool) -> None:
    """Gather on all ranks; each encodes once and frames are forwarded."""
    call = Call(end, "Allgatherv" if vector else "Allgather", 2, sendbuf, recvbuf)
    if _left_to_mpi(end, recvbuf):
        return call.plain()
    recv = each(recvbuf, end.handle.size, vector=vector, writable=True)
    in_place = buffers.is_in_place(sendbuf)
    send = recv if in_place else whole(sendbuf)
    if send is None or recv is None:
        return call.plain()
    own = recv.tensors[end.handle.rank] if in_place else send.tensors[0]
    _same_size(own, recv.tensors[end.handle.rank])
    facts = _facts(end, "allgather", recv.nbytes)
    call.run(facts, own.nbytes, lambda: (own, recv.tensors), recv)


def gather(end: Endpoint, sendbuf: Any, recvbuf: Any, root: int, *, vector: bool) -> None:
    """Gather on the root."""
    call = Call(end, "Gatherv" if vector else "Gather", 2, sendbuf, recvbuf, root)
    is_root = end.handle.rank == root
    leading = recvbuf if is_root else sendbuf
    if _left_to_mpi(end, leading, vector=vector) or not 0 <= root < end.handle.size:
        return call.plain()
    recv = each(recvbuf, end.handle.size, vector=vector, writable=True) if is_root else None
    in_place = is_root and buffers.is_in_place(sendbuf)
    send = recv if in_place else whole(sendbuf)
    if send is None or (is_root and recv is None):
        return call.plain()
    own = send.tensors[root if in_place else 0]
    recvs = recv.tensors if recv else None
    if recvs is not None:
        _same_size(own, recvs[root])
    facts = _facts(end, "gather", None if vector else own.nbytes)
    call.run(facts, 0 if is_root else own.nbytes, lambda: (own, recvs, root), recv)


def scatter(end: Endpoint, sendbuf: Any, recvbuf: Any, root: int, *, vector: bool) -> None:
    """Scatter from the root."""
    call = Call(end, "Scatterv" if vector else "Scatter", 2, sendbuf, recvbuf, root)
    is_root = end.handle.rank == root
    leading = sendbuf if is_root else recvbuf
    if _left_to_mpi(end, leading, vector=vector) or not 0 <= root < end.handle.size:
        return call.plain()
    send = each(sendbuf, end.handle.size, vector=vector) if is_root else None
    in_place = is_root and buffers.is_in_place(recvbuf)
    recv = send if in_place else whole(recvbuf, writable=True)
    if recv is None or (is_root and send is None):
        return call.plain()
    own = recv.tensors[root if in_place else 0]
    sends = send.tensors if send else None
    if sends is not None:
        _same_size(sends[root], own)
    facts = _facts(end, "scatter", None if vector else own.nbytes)
    value_bytes = send.nbytes - own.nbytes if send else 0
    call.run(facts, value_bytes, lambda: (sends, own, root), None if in_place else recv)


def alltoall(end: Endpoint, sendbuf: Any, recvbuf: Any, *, vector: bool) -> None:
    """Exchange with all ranks; in place, what is sent is copied first."""
    call = Call(end, "Alltoallv" if vector else "Alltoall", 2, sendbuf, recvbuf)
    if _left_to_mpi(end, recvbuf, vector=vector):
        return call.plain()
    size, rank = end.handle.size, end.handle.rank
    recv = each(recvbuf, size, vector=vector, writable=True)
    in_place = buffers.is_in_place(sendbuf)
    send = recv if in_place else each(sendbuf, size, vector=vector)
    if send is None or recv is None:
        return call.plain()
    _same_size(send.tensors[rank], recv.tensors[rank])

    def arguments() -> Sequence[Any]:
        sends = send.tensors
        if in_place:
            sends = [Tensor(tensor.memory.copy(), tensor.dtype) for tensor in sends]
        return sends, recv.tensors

    facts = _facts(end, "alltoall", None if vector else send.nbytes)
    call.run(facts, send.nbytes - send.tensors[rank].nbytes, arguments, recv)


def allreduce(end: Endpoint, sendbuf: Any, recvbuf: Any, op: Any) -> None:
    """Reduce on all ranks."""
    sendbuf = _in_place_if_same(sendbuf, recvbuf)
    call = Call(end, "Allreduce", 2, sendbuf, recvbuf, op)
    recv = buffers.block(recvbuf, writable=True)
    send = recv if buffers.is_in_place(sendbuf) else buffers.block(sendbuf)
    if send is None or recv is None:
        return call.plain()
    operator = _operator(op, send)
    _alike(send, recv, recv.count)
    facts = _facts(end, "allreduce", send.nbytes, send.dtype, operator)
    call.run(facts, send.nbytes, lambda: (send, recv, operator))


def reduce(end: Endpoint, sendbuf: Any, recvbuf: Any, op: Any, root: int) -> None:
    """Reduce on the root."""
    is_root = end.handle.rank == root
    sendbuf = _in_place_if_same(sendbuf, recvbuf) if is_root else sendbuf
    call = Call(end, "Reduce", 2, sendbuf, recvbuf, op, root)
    recv = buffers.block(recvbuf, writable=True) if is_root else None
    send = recv if is_root and buffers.is_in_place(sendbuf) else buffers.block(sendbuf)
    if send is None or (is_root and recv is None) or not 0 <= root < end.handle.size:
        return call.plain()
    operator = _operator(op, send)
    if recv is not None:
        _alike(send, recv, recv.count)
    facts = _facts(end, "reduce", send.nbytes, send.dtype, operator)
    call.run(facts, send.nbytes, lambda: (send, recv, operator, root))


def reduce_scatter(end: Endpoint, sendbuf: Any, recvbuf: Any, recvcounts: Any, op: Any) -> None:
    """Reduce, and give rank r the r-th of ``recvcounts`` values."""
    sendbuf = _in_place_if_same(sendbuf, recvbuf)
    call = Call(end, "Reduce_scatter", 2, sendbuf, recvbuf, recvcounts, op)
    recv = buffers.block(recvbuf, writable=True)
    in_place = buffers.is_in_place(sendbuf)
    send = recv if in_place else buffers.block(sendbuf)
    if send is None or recv is None or (in_place and recvcounts is None):
        return call.plain()
    if recvcounts is None:
        counts = end.handle.private.allgather(recv.count)
    else:
        counts = [int(count) for count in recvcounts]
    if len(counts) != end.handle.size:
        return call.plain()
    own = _shard(recv, counts, end.handle.rank, in_place=in_place)
    _alike(send, own, sum(counts), counts[end.handle.rank])
    _scattered(end, call, send, own, counts, op, in_place=in_place)


def reduce_scatter_block(end: Endpoint, sendbuf: Any, recvbuf: Any, op: Any) -> None:
    """Reduce, and give every rank as many of the values."""
    size = end.handle.size
    sendbuf = _in_place_if_same(sendbuf, recvbuf)
    call = Call(end, "Reduce_scatter_block", 2, sendbuf, recvbuf, op)
    in_place = buffers.is_in_place(sendbuf)
    recv = buffers.block(recvbuf, writable=True, n_blocks=size if in_place else 1)
    send = recv if in_place else buffers.block(sendbuf, n_blocks=size)
    if send is None or recv is None:
        return call.plain()
    counts = [send.count // size] * size
    own = _shard(recv, counts, end.handle.rank, in_place=in_place)
    _alike(send, own, sum(counts), counts[0])
    _scattered(end, call, send, own, counts, op, in_place=in_place)


def _scattered(
    end: Endpoint,
    call: Call,
    send: Tensor,
    own: Tensor,
    counts: Sequence[int],
    op: Any,
    *,
    in_place: bool,
) -> None:
    operator = _operator(op, send)
    facts = _facts(end, "reduce_scatter", send.nbytes, send.dtype, operator)
    # In place, the result lies among the contributions, over those to other shards.
    apart = Tensor(np.empty_like(own.memory), own.dtype) if in_place else own
    if call.run(facts, send.nbytes, lambda: (send, apart, counts, operator)) and in_place:
        np.copyto(own.memory, apart.memory)


def _shard(recv: Tensor, counts: Sequence[int], rank: int, *, in_place: bool) -> Tensor:
    """Return where this rank's shard goes: in place, the start of the buffer that held all."""
    return recv[: counts[rank]] if in_place else recv


def _facts(
    end: Endpoint,
    operation: str,
    nbytes: int | None,
    dtype: DType | None = None,
    op: Operator | None = None,
) -> Facts:
    return Facts(operation, end.handle.size, nbytes, end.config.min_bytes, dtype, op)


def _left_to_mpi(end: Endpoint, spec: Any, *, vector: bool = False) -> bool:
    """Whether a collective that only moves values is MPI's whatever its buffers are.

    It is where nothing is compressed, unless counts may pass what MPI takes: no rank then has a
    smaller buffer than that.
    """
    if selection.compressing(end):
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
    operator = operators.of(op)
    if operator is not None and send.dtype is DType.BYTES and not isinstance(op, MPI.Op):
        raise TypeError(f"{operator.name}: expected one of the six float types, found another type")
    return operator


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


def _same_size(send: Tensor, recv: Tensor) -> None:
    """Complain if a rank would send itself another size than it receives."""
    if send.nbytes != recv.nbytes:
        raise MPI.Exception(MPI.ERR_TRUNCATE)
