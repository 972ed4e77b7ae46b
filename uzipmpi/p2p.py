"""Point to point: a compressed message is a head among the user's messages, and parts beside them.

The sender decides by itself. The head goes out at the time of the call, so MPI's order of messages
holds; the parts follow on the private duplicate with a tag that the head names. Everything else is
a plain message. So a receive posts memory for either: the user's own, or, where that cannot hold
a head, a little scratch. On a communicator that never compresses nothing of this happens.

All modes of sending look the same on the wire. The parts of a synchronous send are sent
synchronously, which completes when a receive was started, as a probe leaves parts alone. The head
of a ready send goes in standard mode. A buffered send has to fit the user's buffer: it stays plain.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from uzipmpi import buffers, derived, selection
from uzipmpi.algorithms import sendrecv
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.stream import Stream, drive
from uzipmpi.handle import Endpoint
from uzipmpi.head import HEAD_BYTES, Head, starts_like_a_head
from uzipmpi.landing import Landing, land, land_held
from uzipmpi.matching import Held
from uzipmpi.progress import Operation, Outcome, Stages, both
from uzipmpi.transports.transfer import Arrival, Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = [
    "Direction",
    "arrived",
    "bsend",
    "codec_of",
    "exchange",
    "exchange_in_place",
    "ibsend",
    "iexchange",
    "iexchange_in_place",
    "irecv",
    "irecv_held",
    "irecv_object",
    "isend",
    "recv",
    "recv_held",
    "recv_short",
    "send",
    "stays_plain",
]

SYNCHRONOUS = ("Ssend", "Issend")


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


def send(end: Endpoint, buf: Any, dest: int, tag: int, mode: str = "Send") -> None:
    """Send and return when the buffer may be used again; ``mode`` is mpi4py's method."""
    started = time.perf_counter()
    tensor = outgoing_values(end, buf, dest)
    if tensor is None:
        getattr(end.mpi, mode)(buffers.plain(buf), dest, tag)
        return
    sending = prepare(end, tensor, dest, mode)
    if isinstance(sending, str):
        getattr(end.mpi, mode)(buffers.plain_tensor(tensor), dest, tag)
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
        request = getattr(end.mpi, mode)(buffers.plain_tensor(tensor), dest, tag)
        count_plain(end, mode, tensor.nbytes, started, sending)
        return request
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
        end.mpi.Bsend(buffers.message(buf), dest, tag)


def ibsend(end: Endpoint, buf: Any, dest: int, tag: int) -> MPI.Request:
    """Begin what :func:`bsend` does."""
    if end.handle.framed and (values := like_a_head(end, buf, dest)) is not None:
        return isend(end, values.copy(), dest, tag)
    return end.mpi.Ibsend(buffers.message(buf), dest, tag)


def recv(end: Endpoint, buf: Any, source: int, tag: int, status: MPI.Status | None) -> None:
    """Receive, and return when the values are in place."""
    started = time.perf_counter()
    landing = None if source == MPI.PROC_NULL else land(end, buf)
    status = MPI.Status() if status is None else status
    landing = arrive(end, landing, Direction(buf, source, tag), status)
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


def recv_held(end: Endpoint, held: Held, landing: Landing, status: MPI.Status | None) -> None:
    """Receive a message that was matched by a probe."""
    started = time.perf_counter()
    status = MPI.Status() if status is None else status
    landing.take(held).wait_into(status)
    finish(end, landing, status, "Recv", started)


def irecv(end: Endpoint, buf: Any, source: int, tag: int) -> MPI.Request:
    """Begin to receive; complete when the values are in place."""
    landing = None if source == MPI.PROC_NULL else land(end, buf)
    if landing is None:
        found = match(end, known_to_mpi(end, buf, source), source, tag)
        if not isinstance(found, Held):
            return found
        return irecv_held(end, found, land_held(end, found, buf))
    landing.reserve()
    try:
        found = match(end, landing.spec, source, tag)
    except BaseException:
        landing.release()
        raise
    if isinstance(found, Held):
        return irecv_held(end, found, landing)
    return bring_in(end, landing, Arrival(found, landing.posted), cancellable=True)


def irecv_held(end: Endpoint, held: Held, landing: Landing) -> MPI.Request:
    """Begin to receive a message that was matched by a probe."""
    if landing.reserved_at is None:
        landing.reserve()
    return bring_in(end, landing, landing.take(held), cancellable=False)


def irecv_object(end: Endpoint, held: Held) -> MPI.Request:
    """Begin to receive the object that a matched message holds."""
    pickled = np.empty(held.nbytes, np.uint8)
    received = Outcome(irecv_held(end, held, land_held(end, held, pickled)))
    operation = Operation(held.source, held.tag, held.nbytes)

    def stages() -> Stages:
        yield received
        operation.value = MPI.pickle.loads(pickled) if pickled.size else None

    operation.begin(stages())
    return operation.request


def bring_in(
    end: Endpoint, landing: Landing, arrival: Arrival, *, cancellable: bool
) -> MPI.Request:
    """Return the request of a receive: wait for what arrives, then for its parts."""
    started = time.perf_counter()
    landing.arrival = arrival
    operation = Operation()
    operation.cancellable = arrival if cancellable else None

    def stages() -> Stages:
        try:
            yield arrival
            status = arrival.status
            assert status is not None  # it has succeeded
            operation.cancellable = None
            operation.source, operation.tag = status.source, status.tag
            operation.cancelled = status.Is_cancelled()
            if operation.cancelled:
                return
            parts = landing.parts(status)
            if parts is not None:
                yield parts
            landing.protect_others()
            landing.settle(status)
            operation.nbytes = status.Get_elements(MPI.BYTE)
        finally:
            landing.release()
        count_received(end, "Irecv", landing, operation.nbytes, started)

    return operation.begin(stages())


def match(end: Endpoint, spec: Any, source: int, tag: int) -> Held | MPI.Request:
    """Post a receive, unless a message that it matches is held."""
    matching = end.handle.matching
    if not matching.active or source == MPI.PROC_NULL:
        return end.mpi.Irecv(spec, source, tag)
    return matching.receive(source, tag, lambda: end.mpi.Irecv(spec, source, tag))


def known_to_mpi(end: Endpoint, buf: Any, source: int) -> Any:
    """Return what mpi4py receives into; it complains before a held message is taken."""
    if end.handle.matching.active and source != MPI.PROC_NULL:
        derived.check(buf)
    return buffers.message(buf)


def arrive(
    end: Endpoint, landing: Landing | None, receiving: Direction, status: MPI.Status
) -> Landing | None:
    """Wait until a message of either kind has arrived; return where."""
    buf, source, tag = receiving
    spec = known_to_mpi(end, buf, source) if landing is None else landing.spec
    if not end.handle.matching.active or source == MPI.PROC_NULL:
        end.mpi.Recv(spec, source, tag, status)
        return landing
    found = match(end, spec, source, tag)
    if isinstance(found, Held):
        landing = landing or land_held(end, found, buf)
        landing.take(found).wait_into(status)
    else:
        found.Wait(status)
    return landing


def exchange(
    end: Endpoint, sending: Direction, receiving: Direction, status: MPI.Status | None
) -> None:
    """Send and receive at once; the head, if there is one, takes the place of the values."""
    started = time.perf_counter()
    status = MPI.Status() if status is None else status
    tensor = outgoing_values(end, sending.buf, sending.peer)
    landing = None if receiving.peer == MPI.PROC_NULL else land(end, receiving.buf)
    outgoing = "" if tensor is None else prepare(end, tensor, sending.peer, "Sendrecv")
    if isinstance(outgoing, Sending):
        message: Any = [outgoing.head, MPI.BYTE]
    else:
        message = buffers.plain(sending.buf) if tensor is None else buffers.plain_tensor(tensor)
    if end.handle.matching.active:
        request = end.mpi.Isend(message, *sending[1:])
        try:
            landing = arrive(end, landing, receiving, status)
        finally:
            request.Wait()
    else:
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
    exchange(end, copied(sending), receiving, status)


def iexchange(end: Endpoint, sending: Direction, receiving: Direction) -> MPI.Request:
    """Begin to send and to receive; the status is the receive's."""
    received = irecv(end, *receiving)
    try:
        sent = isend(end, *sending)
    except BaseException:
        received.Cancel()
        received.Wait()
        raise
    return both(received, sent)


def iexchange_in_place(end: Endpoint, sending: Direction, receiving: Direction) -> MPI.Request:
    """Begin to exchange the content of one buffer."""
    return iexchange(end, copied(sending), receiving)


def copied(sending: Direction) -> Direction:
    """Return a copy of what is sent, as something else is received in its place."""
    if sending.peer == MPI.PROC_NULL:
        return sending
    tensor = buffers.block(sending.buf)
    if tensor is None:
        return sending._replace(buf=derived.pack(sending.buf).array)
    return sending._replace(buf=Tensor(tensor.memory.copy(), tensor.dtype).array)


def outgoing_values(end: Endpoint, buf: Any, dest: int) -> Tensor | None:
    """Return what may go in parts; None if mpi4py is to send the buffer, or to complain."""
    if dest == MPI.PROC_NULL:
        return None
    tensor = buffers.block(buf)
    if tensor is None and end.handle.framed and derived.nbytes(buf) == HEAD_BYTES:
        return derived.pack(buf)  # it may look like a head
    return tensor


def like_a_head(end: Endpoint, buf: Any, dest: int) -> Bytes | None:
    """Return the bytes of values which as a plain message would be taken for a head."""
    tensor = outgoing_values(end, buf, dest)
    if tensor is None or tensor.nbytes != HEAD_BYTES or not starts_like_a_head(tensor.memory):
        return None
    return tensor.memory


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


def prepare(end: Endpoint, tensor: Tensor, dest: int, mode: str) -> Sending | str:
    """Return what to send in parts, or why the values go as a plain message."""
    if not 0 <= dest < end.handle.size:
        return "no such rank"  # MPI says so
    algorithm, reason = selection.message(end, tensor, dest)
    synchronous = mode in SYNCHRONOUS
    if not algorithm:
        # A probe receives a message that is as long as a head, which completes its send.
        if not (synchronous and end.handle.framed and tensor.nbytes == HEAD_BYTES):
            return reason
        algorithm = "whole"
    tag = end.handle.message_tag(dest)
    context = end.context(tag)
    if synchronous:
        context = dataclasses.replace(context, transport=context.transport.synchronous())
    parts, stream = sendrecv.outgoing(context, tensor, dest, tag, algorithm)
    head = Head(tensor.dtype, tensor.nbytes, tag, parts).pack()
    return Sending(head, stream, context, algorithm, tensor.nbytes)


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
