"""Point to point: a compressed message is a head among the user's messages, and parts beside them.

The sender decides by itself. The head goes out at the time of the call, so MPI's order of messages
holds; the parts follow on the private duplicate with a tag that the head names. Everything else is
a plain message. So a receive posts memory for either: the user's own, or, where that cannot hold
a head, a little scratch. On a communicator that never compresses nothing of this happens.

:mod:`uzipmpi.sending` and :mod:`uzipmpi.receiving` are the two halves; here are the calls that do
both at once.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from mpi4py import MPI

from uzipmpi import buffers, derived
from uzipmpi.algorithms import places
from uzipmpi.algorithms.stream import drive
from uzipmpi.handle import Endpoint
from uzipmpi.landing import Landing, land
from uzipmpi.progress import both
from uzipmpi.receiving import arrive, finish, irecv, known_to_mpi
from uzipmpi.sending import Sending, count, count_plain, isend, outgoing_values, prepare
from uzipmpi.staging import reachable
from uzipmpi.typing import DType, Tensor

__all__ = ["Direction", "exchange", "exchange_in_place", "iexchange", "iexchange_in_place"]


class Direction(NamedTuple):
    """One half of an exchange: a buffer, a rank and a tag."""

    buf: Any
    peer: int
    tag: int


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
        message = plainly(sending.buf, tensor)
    streams = [outgoing.stream] if isinstance(outgoing, Sending) else []
    try:
        landing = swap(end, sending._replace(buf=message), landing, receiving, status)
    except MPI.Exception as error:
        if error.Get_error_class() == MPI.ERR_TRUNCATE:
            drive(streams)  # the head has left, so the peer waits for the parts
        raise
    finish(end, landing, status, "Sendrecv", started, streams)
    if isinstance(outgoing, Sending):
        count(end, "Sendrecv", outgoing, started)
    elif tensor is not None:
        count_plain(end, "Sendrecv", tensor.nbytes, started, outgoing)


def plainly(buf: Any, tensor: Tensor | None) -> Any:
    """Return what MPI sends as it is: a buffer, or the values in it that are known."""
    return buffers.plain(buf) if tensor is None else buffers.plain_tensor(reachable(tensor))


def swap(
    end: Endpoint,
    sending: Direction,
    landing: Landing | None,
    receiving: Direction,
    status: MPI.Status,
) -> Landing | None:
    """Exchange messages of either kind; return where the one that came has landed."""
    if not end.handle.matching.active:
        place = buffers.message(receiving.buf) if landing is None else landing.spec
        end.mpi.Sendrecv(*sending, place, *receiving[1:], status)
        return landing
    if landing is None:
        known_to_mpi(end, receiving.buf, receiving.peer)
    request = end.mpi.Isend(*sending)
    try:
        return arrive(end, landing, *receiving, status)
    finally:
        request.Wait()


def exchange_in_place(
    end: Endpoint, sending: Direction, receiving: Direction, status: MPI.Status | None
) -> None:
    """Exchange the content of one buffer, of which the outgoing values are copied first."""
    if end.handle.framed or buffers.on_device(sending.buf):
        exchange(end, copied(sending), receiving, status)
    else:
        end.mpi.Sendrecv_replace(buffers.message(sending.buf), *sending[1:], *receiving[1:], status)


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
    apart = places.copy_of(tensor)
    if apart.on_device and apart.dtype is not DType.BYTES:
        return sending._replace(buf=[apart.memory, apart.dtype.numpy.name])
    return sending._replace(buf=apart.memory if apart.on_device else apart.array)
