"""Sending: a message goes as it is, or as a head among the user's messages with parts beside it.

All modes look the same on the wire. The parts of a synchronous send are sent synchronously, which
completes when a receive was started, as a probe leaves parts alone. The head of a ready send goes
in standard mode. A buffered send has to fit the user's buffer: it stays plain.
"""

from __future__ import annotations

import dataclasses
import operator
import time
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from uzipmpi import buffers, derived, selection
from uzipmpi.algorithms import places, sendrecv
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.stream import Stream, drive
from uzipmpi.handle import Endpoint
from uzipmpi.head import HEAD_BYTES, Head, starts_like_a_head
from uzipmpi.progress import Kept, Operation, Stages
from uzipmpi.staging import Staged, message_pool, reachable
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = [
    "Sending",
    "bsend",
    "codec_of",
    "count",
    "count_plain",
    "ibsend",
    "isend",
    "outgoing_values",
    "prepare",
    "send",
    "stays_plain",
]

SYNCHRONOUS = ("Ssend", "Issend")


@dataclass(frozen=True)
class Sending:
    """A message that goes in parts: its head, and the stream of the rest."""

    head: Bytes
    stream: Stream
    context: Context
    algorithm: str
    nbytes: int


def send(end: Endpoint, buf: Any, dest: int, tag: int, mode: str = "Send") -> None:
    """Send and return when the buffer may be used again; ``mode`` is mpi4py's method."""
    started = time.perf_counter()
    tensor = outgoing_values(end, buf, dest)
    if tensor is None:
        getattr(end.mpi, mode)(buffers.plain(buf), dest, tag)
        return
    sending = prepare(end, tensor, dest, mode)
    if isinstance(sending, str):
        getattr(end.mpi, mode)(buffers.plain_tensor(reachable(tensor)), dest, tag)
        count_plain(end, mode, tensor.nbytes, started, sending)
        return
    end.mpi.Send([sending.head, MPI.BYTE], dest, tag)
    drive([sending.stream])
    count(end, mode, sending, started)


def isend(end: Endpoint, buf: Any, dest: int, tag: int, mode: str = "Isend") -> MPI.Request:
    """Begin to send; the head leaves now."""
    if mode == "Ibsend":
        return ibsend(end, buf, dest, tag)
    started = time.perf_counter()
    tensor = outgoing_values(end, buf, dest)
    if tensor is None:
        request: MPI.Request = getattr(end.mpi, mode)(buffers.plain(buf), dest, tag)
        return request
    sending = prepare(end, tensor, dest, mode)
    if isinstance(sending, str):
        message = buffers.plain_tensor(reachable(tensor))
        request = getattr(end.mpi, mode)(message, dest, tag)
        count_plain(end, mode, tensor.nbytes, started, sending)
        return Kept(request) if end.handle.framed else request
    head = Transfer(end.mpi.Isend([sending.head, MPI.BYTE], dest, tag), sending.head)
    operation = Operation(end.handle.rank, tag, sending.nbytes)

    def stages() -> Stages:
        yield sending.stream
        yield head
        count(end, mode, sending, started)

    return operation.begin(stages())


def bsend(end: Endpoint, buf: Any, dest: int, tag: int) -> None:
    """Send plainly through the user's attached buffer; what looks like a head goes in parts."""
    if end.handle.framed and (values := like_a_head(end, buf, dest)) is not None:
        isend(end, values.copy(), dest, tag)
    else:
        end.mpi.Bsend(buffers.message(Staged(buf).spec), dest, tag)


def ibsend(end: Endpoint, buf: Any, dest: int, tag: int) -> MPI.Request:
    """Begin what :func:`bsend` does."""
    if end.handle.framed and (values := like_a_head(end, buf, dest)) is not None:
        return isend(end, values.copy(), dest, tag)
    return end.mpi.Ibsend(buffers.message(Staged(buf).spec), dest, tag)


def stays_plain(end: Endpoint, buf: Any, dest: int, mode: str) -> bool:
    """Whether a message is plain, whatever the values in the buffer will be."""
    if not end.handle.framed:
        return True
    tensor = outgoing_values(end, buf, dest)
    if tensor is None:
        return True
    if tensor.nbytes == HEAD_BYTES:
        return False
    return mode == "Ibsend" or bool(selection.always_plain(end, tensor, dest))


def outgoing_values(end: Endpoint, buf: Any, dest: int) -> Tensor | None:
    """Return what may go in parts; None if mpi4py is to send the buffer, or to complain."""
    if dest == MPI.PROC_NULL and not buffers.on_device(buf):
        return None
    tensor = buffers.block(buf)
    if tensor is None and end.handle.framed and derived.nbytes(buf) == HEAD_BYTES:
        return derived.pack(buf)  # it may look like a head
    return tensor


def like_a_head(end: Endpoint, buf: Any, dest: int) -> Bytes | None:
    """Return the bytes of values which as a plain message would be taken for a head."""
    tensor = outgoing_values(end, buf, dest)
    if tensor is None or tensor.nbytes != HEAD_BYTES:
        return None
    memory = places.on_host(tensor).memory
    return memory if starts_like_a_head(memory) else None


def prepare(end: Endpoint, tensor: Tensor, dest: int, mode: str) -> Sending | str:
    """Return what to send in parts, or why the values go as a plain message."""
    if not 0 <= operator.index(dest) < end.handle.size:
        return "no such rank"  # MPI says so
    algorithm, reason = selection.message(end, tensor, dest)
    synchronous = mode in SYNCHRONOUS
    if not algorithm:
        # A probe receives a message that is as long as a head, which completes its send.
        if not (synchronous and end.handle.framed and tensor.nbytes == HEAD_BYTES):
            return reason
        algorithm = "whole"
    tag = end.handle.message_tag(dest)
    context = end.context(tag, pool=message_pool(end, [tensor]))
    if synchronous:
        context = dataclasses.replace(context, transport=context.transport.synchronous())
    parts, stream = sendrecv.outgoing(context, tensor, dest, tag, algorithm)
    head = Head(tensor.dtype, tensor.nbytes, tag, parts).pack()
    return Sending(head, stream, context, parts.algorithm, tensor.nbytes)


def count(end: Endpoint, operation: str, sending: Sending, started: float) -> None:
    """Enter a message that went in parts in the statistics."""
    record = sending.context.record
    end.handle.stats.add(
        operation,
        sending.nbytes,
        record.wire_bytes + HEAD_BYTES,
        time.perf_counter() - started,
        algorithm=sending.algorithm,
        codec=codec_of(sending.context),
        transport=sending.context.pool.transport,
    )


def count_plain(end: Endpoint, operation: str, nbytes: int, started: float, why: str) -> None:
    """Enter a plain message in the statistics, and why it was not compressed."""
    seconds = time.perf_counter() - started
    end.handle.stats.add(operation, nbytes, nbytes, seconds, algorithm="plain", fallback=why)


def codec_of(context: Context) -> str:
    """Return the codec of the frames that a call made."""
    record = context.record
    return "raw" if record.frames and record.frames == record.raw_frames else context.config.codec
