"""Point to point: a compressed message is a head among the user's messages, and parts beside them.

The sender decides by itself. The head goes out at the time of the call, so MPI's order of messages
holds; the parts follow on the private duplicate with a tag that the head names. Everything else is
a plain message. So a receive posts memory for either: the user's own, or, where that cannot hold
a head, a little scratch. On a communicator that never compresses nothing of this happens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from uzipmpi import buffers, derived, selection
from uzipmpi.algorithms import sendrecv
from uzipmpi.algorithms.context import Context, Record
from uzipmpi.algorithms.stream import Stream, drive
from uzipmpi.handle import Endpoint
from uzipmpi.head import HEAD_BYTES, Head
from uzipmpi.progress import Operation, Stages
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = [
    "Direction",
    "arrived",
    "codec_of",
    "exchange",
    "exchange_in_place",
    "irecv",
    "isend",
    "recv",
    "recv_short",
    "send",
]


class Direction(NamedTuple):
    """One half of an exchange: a buffer, a rank and a tag."""

    buf: Any
    peer: int
    tag: int


@dataclass(frozen=True)
class Sending:
    """A message that goes in parts: its head, and the stream of the rest."""

    head: Bytes
    stream: Stream
    context: Context
    algorithm: str
    nbytes: int


def send(end: Endpoint, buf: Any, dest: int, tag: int) -> None:
    """Send and return when the buffer may be used again."""
    started = time.perf_counter()
    tensor = None if dest == MPI.PROC_NULL else buffers.block(buf)
    if tensor is None:
        end.mpi.Send(buffers.plain(buf), dest, tag)
        return
    sending = prepare(end, tensor, dest)
    if isinstance(sending, str):
        end.mpi.Send(buffers.plain_tensor(tensor), dest, tag)
        count_plain(end, "Send", tensor.nbytes, started, sending)
        return
    end.mpi.Send([sending.head, MPI.BYTE], dest, tag)
    drive([sending.stream])
    count(end, "Send", sending, started)


def isend(end: Endpoint, buf: Any, dest: int, tag: int) -> MPI.Request:
    """Begin to send; the head leaves now."""
    started = time.perf_counter()
    tensor = None if dest == MPI.PROC_NULL else buffers.block(buf)
    if tensor is None:
        return end.mpi.Isend(buffers.plain(buf), dest, tag)
    sending = prepare(end, tensor, dest)
    if isinstance(sending, str):
        request = end.mpi.Isend(buffers.plain_tensor(tensor), dest, tag)
        count_plain(end, "Isend", tensor.nbytes, started, sending)
        return request
    head = Transfer(end.mpi.Isend([sending.head, MPI.BYTE], dest, tag), sending.head)
    operation = Operation(end.handle.rank, tag, sending.nbytes)

    def stages() -> Stages:
        yield sending.stream
        yield head
        count(end, "Isend", sending, started)

    return operation.begin(stages())


def recv(end: Endpoint, buf: Any, source: int, tag: int, status: MPI.Status | None) -> None:
    """Receive, and return when the values are in place."""
    started = time.perf_counter()
    landing = None if source == MPI.PROC_NULL else land(end, buf)
    if landing is None:
        end.mpi.Recv(buffers.message(buf), source, tag, status)
        return
    status = MPI.Status() if status is None else status
    end.mpi.Recv(landing.spec, source, tag, status)
    finish(end, landing, status, "Recv", started)


def recv_short(
    end: Endpoint, buf: npt.NDArray[Any], source: int, tag: int, status: MPI.Status | None
) -> int:
    """Receive into an array that is smaller than a head: what :func:`recv` does, faster.

    Returns
    -------
    int
        Bytes received.
    """
    status = MPI.Status() if status is None else status
    scratch = bytearray(HEAD_BYTES)
    end.mpi.Recv(scratch, source, tag, status)
    nbytes = status.count
    if nbytes > buf.nbytes:
        landing = Landing(end, Tensor.of(buf), posted=np.frombuffer(scratch, np.uint8))
        finish(end, landing, status, "Recv", time.perf_counter())
    elif nbytes:
        buf.data.cast("B")[:nbytes] = memoryview(scratch)[:nbytes]
    return nbytes


def arrived(end: Endpoint, buf: npt.NDArray[Any], status: MPI.Status) -> None:
    """Go on with a message as long as a head that :meth:`Recv` found in a contiguous array."""
    landing = Landing(end, Tensor.of(buf))
    finish(end, landing, status, "Recv", time.perf_counter())


def irecv(end: Endpoint, buf: Any, source: int, tag: int) -> MPI.Request:
    """Begin to receive; complete when the values are in place."""
    started = time.perf_counter()
    landing = None if source == MPI.PROC_NULL else land(end, buf)
    if landing is None:
        return end.mpi.Irecv(buffers.message(buf), source, tag)
    arrival = Arrival(end.mpi.Irecv(landing.spec, source, tag), landing.posted)
    operation = Operation()
    operation.cancellable = arrival

    def stages() -> Stages:
        yield arrival
        status = arrival.status
        operation.cancellable = None
        operation.source, operation.tag = status.source, status.tag
        operation.cancelled = status.Is_cancelled()
        if not operation.cancelled:
            parts = landing.parts(status)
            if parts is not None:
                yield parts
            landing.settle(status)
            operation.nbytes = status.Get_elements(MPI.BYTE)
            count_received(end, "Irecv", landing, operation.nbytes, started)

    return operation.begin(stages())


def exchange(
    end: Endpoint, sending: Direction, receiving: Direction, status: MPI.Status | None
) -> None:
    """Send and receive at once; the head, if there is one, takes the place of the values."""
    started = time.perf_counter()
    status = MPI.Status() if status is None else status
    tensor = None if sending.peer == MPI.PROC_NULL else buffers.block(sending.buf)
    landing = None if receiving.peer == MPI.PROC_NULL else land(end, receiving.buf)
    outgoing = "" if tensor is None else prepare(end, tensor, sending.peer)
    if isinstance(outgoing, Sending):
        message: Any = [outgoing.head, MPI.BYTE]
    else:
        message = buffers.plain(sending.buf) if tensor is None else buffers.plain_tensor(tensor)
    place = buffers.message(receiving.buf) if landing is None else landing.spec
    end.mpi.Sendrecv(message, *sending[1:], place, *receiving[1:], status)
    streams = [outgoing.stream] if isinstance(outgoing, Sending) else []
    finish(end, landing, status, "Sendrecv", started, streams)
    if isinstance(outgoing, Sending):
        count(end, "Sendrecv", outgoing, started)
    elif tensor is not None:
        count_plain(end, "Sendrecv", tensor.nbytes, started, outgoing)


def exchange_in_place(
    end: Endpoint, sending: Direction, receiving: Direction, status: MPI.Status | None
) -> None:
    """Exchange the content of one buffer, of which the outgoing values are copied first."""
    buf = sending.buf
    if not end.handle.framed:
        end.mpi.Sendrecv_replace(buffers.plain(buf), *sending[1:], *receiving[1:], status)
        return
    if sending.peer == MPI.PROC_NULL:
        exchange(end, sending, receiving, status)
        return
    tensor = buffers.block(buf)
    values = derived.pack(buf) if tensor is None else Tensor(tensor.memory.copy(), tensor.dtype)
    exchange(end, sending._replace(buf=values.array), receiving, status)


def prepare(end: Endpoint, tensor: Tensor, dest: int) -> Sending | str:
    """Return what to send in parts, or why the values go as a plain message."""
    if not 0 <= dest < end.handle.size:
        return "no such rank"  # MPI says so
    algorithm, reason = selection.message(end, tensor, dest)
    if not algorithm:
        return reason
    tag = end.handle.message_tag(dest)
    context = end.context(tag)
    parts, stream = sendrecv.outgoing(context, tensor, dest, tag, algorithm)
    head = Head(tensor.dtype, tensor.nbytes, tag, parts).pack()
    return Sending(head, stream, context, algorithm, tensor.nbytes)


class Arrival(Transfer):
    """A receive that remembers its whole status."""

    status: MPI.Status

    def complete(self, status: MPI.Status) -> None:
        """Note that MPI completed the request with this status."""
        super().complete(status)
        self.status = status


class Landing:
    """Where a message of either kind arrives.

    Parameters
    ----------
    end
        The communicator.
    tensor
        Where the values go.
    spec
        The user's specification if its datatype is derived: ``tensor`` is staging memory then.
    posted
        The memory of the receive: the tensor's, or scratch where that is too short for a head.
    """

    def __init__(
        self, end: Endpoint, tensor: Tensor, spec: Any = None, posted: Bytes | None = None
    ) -> None:
        self._end, self._tensor, self._derived = end, tensor, spec
        self.head: Head | None = None
        self._record = Record()
        if posted is None:
            short = tensor.nbytes < HEAD_BYTES
            posted = np.empty(HEAD_BYTES, np.uint8) if short else tensor.memory
        self.posted = posted

    @property
    def spec(self) -> list[Any]:
        """What to post the receive with."""
        memory = self.posted
        if memory.size <= buffers.INT_MAX:
            return [memory, memory.size, MPI.BYTE]
        return buffers.plain_tensor(self._tensor)

    def parts(self, status: MPI.Status) -> Stream | None:
        """Look at what arrived; return the stream that brings the values if it was a head."""
        if status.Get_count(MPI.BYTE) != HEAD_BYTES:
            return None
        head = self.head = Head.unpack(self.posted[:HEAD_BYTES])
        if head is None:
            return None
        context = self._end.context(head.tag)
        self._record = context.record
        source = status.Get_source()
        if head.nbytes > self._tensor.nbytes:
            return sendrecv.discard(context, head.nbytes, source, head.tag, head.parts)
        place = Tensor(self._tensor.memory[: head.nbytes], head.dtype)
        return sendrecv.incoming(context, place, source, head.tag, head.parts)

    @property
    def wire_bytes(self) -> int:
        """Bytes that came in, if it was a head."""
        return HEAD_BYTES + self._record.received_bytes

    def settle(self, status: MPI.Status) -> None:
        """Put the values in their place once all have arrived, and their size into the status.

        Raises
        ------
        mpi4py.MPI.Exception
            ``MPI.ERR_TRUNCATE`` if there were more than the buffer holds.
        """
        capacity = self._tensor.nbytes
        nbytes = self.head.nbytes if self.head else status.Get_elements(MPI.BYTE)
        if nbytes > capacity:
            raise MPI.Exception(MPI.ERR_TRUNCATE)
        if self.head:
            status.Set_elements(MPI.BYTE, nbytes)
        elif self.posted is not self._tensor.memory:
            self._tensor.memory[:nbytes] = self.posted[:nbytes]
        if self._derived is not None:
            derived.unpack(Tensor(self._tensor.memory[:nbytes], self._tensor.dtype), self._derived)


def land(end: Endpoint, buf: Any) -> Landing | None:
    """Return where a message arrives, None if only plain messages do or the buffer is wrong."""
    if not end.handle.framed:
        return None
    tensor = buffers.block(buf, writable=True)
    if tensor is not None:
        return Landing(end, tensor)
    return Landing(end, derived.pack(buf), buf) if buffers.is_derived(buf) else None


def finish(
    end: Endpoint,
    landing: Landing | None,
    status: MPI.Status,
    operation: str,
    started: float,
    outgoing: Sequence[Stream] = (),
) -> None:
    """Bring in the parts of what has arrived, beside what goes out."""
    parts = None if landing is None else landing.parts(status)
    if outgoing or parts is not None:
        drive([*outgoing, *([] if parts is None else [parts])])
    if landing is not None:
        landing.settle(status)
        count_received(end, operation, landing, status.Get_elements(MPI.BYTE), started)


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
    )


def codec_of(context: Context) -> str:
    """Return the codec of the frames that a call made."""
    record = context.record
    return "raw" if record.frames and record.frames == record.raw_frames else context.config.codec


def count_plain(end: Endpoint, operation: str, nbytes: int, started: float, why: str) -> None:
    """Enter a plain message in the statistics, and why it was not compressed."""
    seconds = time.perf_counter() - started
    end.handle.stats.add(operation, nbytes, nbytes, seconds, algorithm="plain", fallback=why)


def count_received(
    end: Endpoint, operation: str, landing: Landing, nbytes: int, started: float
) -> None:
    """Enter what was received in the statistics."""
    if landing.head is None:
        end.handle.stats[operation].add_plain(nbytes)
        return
    seconds = time.perf_counter() - started
    algorithm = landing.head.parts.algorithm
    end.handle.stats.add(operation, nbytes, landing.wire_bytes, seconds, algorithm=algorithm)
