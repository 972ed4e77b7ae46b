"""Receiving: a receive posts memory for a message of either kind, and then looks what came.

Where messages were taken from MPI by a probe it looks there first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from uzipmpi import buffers, derived
from uzipmpi.algorithms.stream import Stream, drive
from uzipmpi.errors import FormatError
from uzipmpi.handle import Endpoint
from uzipmpi.head import HEAD_BYTES
from uzipmpi.landing import Landing, land, land_held
from uzipmpi.matching import Held
from uzipmpi.progress import Operation, Outcome, Stages, share
from uzipmpi.transports.transfer import Arrival
from uzipmpi.typing import Tensor

__all__ = [
    "arrive",
    "arrived",
    "finish",
    "irecv",
    "irecv_held",
    "irecv_object",
    "known_to_mpi",
    "recv",
    "recv_held",
    "recv_short",
]


def recv(end: Endpoint, buf: Any, source: int, tag: int, status: MPI.Status | None) -> None:
    """Receive, and return when the values are in place."""
    started = time.perf_counter()
    landing = None if source == MPI.PROC_NULL else land(end, buf)
    status = MPI.Status() if status is None else status
    landing = arrive(end, landing, buf, source, tag, status)
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

    share(operation.begin(stages()))
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
    end: Endpoint, landing: Landing | None, buf: Any, source: int, tag: int, status: MPI.Status
) -> Landing | None:
    """Wait until a message of either kind has arrived; return where."""
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


def finish(
    end: Endpoint,
    landing: Landing | None,
    status: MPI.Status,
    operation: str,
    started: float,
    outgoing: Sequence[Stream] = (),
) -> None:
    """Bring in the parts of what has arrived, beside what goes out."""
    try:
        parts = None if landing is None else landing.parts(status)
    except FormatError:
        drive(outgoing)  # a peer waits for it
        raise
    if outgoing or parts is not None:
        drive([*outgoing, *([] if parts is None else [parts])])
    if landing is not None:
        landing.settle(status)
        count_received(end, operation, landing, status.Get_elements(MPI.BYTE), started)


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
