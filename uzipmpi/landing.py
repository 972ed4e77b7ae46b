"""Where a message of either kind arrives: plain values, or the head of values in parts.

A receive is posted with the user's own memory where a head fits, so that plain values need no copy.
"""

from __future__ import annotations

import bisect
import threading
from typing import Any

import numpy as np
from mpi4py import MPI

from uzipmpi import buffers, derived
from uzipmpi.algorithms import places, sendrecv
from uzipmpi.algorithms.context import Record
from uzipmpi.algorithms.stream import Stream
from uzipmpi.cuda_aware import is_cuda_aware
from uzipmpi.errors import MismatchError
from uzipmpi.handle import Endpoint
from uzipmpi.head import HEAD_BYTES, Head
from uzipmpi.matching import Held
from uzipmpi.staging import message_pool
from uzipmpi.transports.transfer import Arrival
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = ["Landing", "land", "land_held"]


class Landing:
    """Where a message arrives.

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

    Attributes
    ----------
    head
        The head that arrived, if it was one.
    arrival
        The receive, once it is posted.
    reserved_at
        The address of the memory, if it is kept to this receive.
    """

    def __init__(
        self, end: Endpoint, tensor: Tensor, spec: Any = None, posted: Bytes | None = None
    ) -> None:
        self._end, self._tensor, self._derived = end, tensor, spec
        self.head: Head | None = None
        self.arrival: Arrival | None = None
        self._record = Record()
        self._seen: Bytes | None = None
        self.reserved_at: int | None = None
        if posted is None:
            apart = tensor.nbytes < HEAD_BYTES or (tensor.on_device and not is_cuda_aware())
            # Of memory for a GPU's values no more than a page is touched if a head comes.
            room = np.empty(max(tensor.nbytes, HEAD_BYTES), np.uint8) if apart else None
            posted = places.settled(tensor).memory if room is None else room
        self.posted = posted

    @property
    def spec(self) -> list[Any]:
        """What to post the receive with."""
        memory = self.posted
        if memory.size <= buffers.INT_MAX:
            return [memory, memory.size, MPI.BYTE]
        return buffers.plain_tensor(Tensor(memory, DType.BYTES))

    def reserve(self) -> None:
        """Keep the memory to this receive until :meth:`release`.

        Another one that is under way may have the same memory, as bandwidth tests do. Its values
        would then overwrite the head of this one: so this one is posted with scratch.
        """
        if self._derived is not None or self.posted is not self._tensor.memory:
            return
        if not _reserved.add(self, self.posted):
            self.posted = np.empty(self.posted.size, np.uint8)

    def release(self) -> None:
        """Leave the memory to others."""
        _reserved.remove(self)

    def protect_others(self) -> None:
        """Save the heads that have arrived where :meth:`settle` is about to write values."""
        if self._derived is None and self.posted is not self._tensor.memory:
            _reserved.protect(self._tensor.memory)

    def take(self, held: Held) -> Arrival:
        """Bring in a message that a probe has taken, in place of a posted receive."""
        if held.message is None:
            assert held.content is not None
            content = Tensor(held.content, DType.BYTES)
            places.copy(content, Tensor(self.posted[:HEAD_BYTES], DType.BYTES))
            status = MPI.Status()
            held.report(status, HEAD_BYTES)
            return Arrival.of(status, self.posted)
        if held.nbytes > self.posted.size:  # receive all, so that no MPI has to truncate
            self.posted = np.empty(held.nbytes, np.uint8)
        return Arrival(held.message.Irecv(self.spec), self.posted)

    def look(self, status: MPI.Status) -> None:
        """Save what may be a head: the memory may be written to from now on."""
        if self._seen is None and status.Get_count(MPI.BYTE) == HEAD_BYTES:
            self._seen = places.on_host(Tensor(self.posted[:HEAD_BYTES], DType.BYTES)).memory.copy()

    def parts(self, status: MPI.Status) -> Stream | None:
        """Look at what arrived; return the stream that brings the values if it was a head.

        Raises
        ------
        FormatError
            If it was a damaged head.
        """
        self.look(status)
        if self._seen is None or not self._end.handle.framed:
            return None
        head = self.head = Head.unpack(self._seen)
        if head is None:
            return None
        context = self._end.context(head.tag, pool=message_pool(self._end, [self._tensor]))
        self._record = context.record
        source = status.Get_source()
        if head.nbytes > self._tensor.nbytes or self._mismatch:
            return sendrecv.discard(context, head.nbytes, source, head.tag, head.parts)
        memory = self._tensor.memory if self._tensor.on_device else self.posted
        place = Tensor(memory[: head.nbytes], head.dtype)
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
        MismatchError
            With ``verify``, if they are of another type than the buffer.
        """
        nbytes = self.head.nbytes if self.head else status.Get_elements(MPI.BYTE)
        if nbytes > self._tensor.nbytes:
            self._end.mpi.Call_errhandler(MPI.ERR_TRUNCATE)  # may end the program
            raise MPI.Exception(MPI.ERR_TRUNCATE)
        if self._mismatch:
            raise MismatchError(self._mismatch)
        # The parts of a message for a GPU went there; all else is where the receive was posted.
        in_place = self.head is not None and self._tensor.on_device
        if self.posted is not self._tensor.memory and not in_place:
            arrived = Tensor(self.posted[:nbytes], DType.BYTES)
            places.copy(arrived, Tensor(self._tensor.memory[:nbytes], DType.BYTES))
        if self.head:
            status.Set_elements(MPI.BYTE, nbytes)
        if self._derived is not None:
            derived.unpack(Tensor(self._tensor.memory[:nbytes], self._tensor.dtype), self._derived)

    @property
    def _mismatch(self) -> str:
        """What is wrong with the data type that was sent, if anything is to be."""
        if self.head is None or not self._end.config.verify:
            return ""
        sent, expected = self.head.dtype, self._tensor.dtype
        if sent is expected or DType.BYTES in (sent, expected):
            return ""
        return (
            f"rank {self._end.handle.rank}: expected a message of {expected.name}, "
            f"found one of {sent.name}"
        )


def land(end: Endpoint, buf: Any) -> Landing | None:
    """Return where a message arrives, None if only plain messages do or the buffer is wrong."""
    if not end.handle.framed and not buffers.on_device(buf):
        return None
    tensor = buffers.block(buf, writable=True)
    if tensor is not None:
        return Landing(end, tensor)
    return Landing(end, derived.pack(buf), buf) if buffers.is_derived(buf) else None


def land_held(end: Endpoint, held: Held, buf: Any) -> Landing:
    """Return where a message of known size arrives, whatever the buffer is.

    Raises
    ------
    TypeError, BufferError, ValueError
        If mpi4py does not take the buffer.
    """
    landing = land(end, buf)
    if landing is not None:
        return landing
    derived.check(buf)
    return Landing(end, Tensor(np.empty(held.nbytes, np.uint8), DType.BYTES), buf)


class Reservations:
    """The memory of receives that are under way: disjoint ranges, in order of address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, tuple[int, Landing]] = {}  # by start: where it stops, and whose
        self._lock = threading.Lock()

    def add(self, landing: Landing, memory: Bytes) -> bool:
        """Reserve memory; return whether that was possible, as none of it was reserved."""
        start = buffers.address(memory)
        stop = start + memory.size
        with self._lock:
            if self._within(start, stop):
                return False
            bisect.insort(self._starts, start)
            self._ranges[start] = stop, landing
        landing.reserved_at = start
        return True

    def remove(self, landing: Landing) -> None:
        """Forget a reservation, if there is one."""
        start = landing.reserved_at
        if start is None:
            return
        with self._lock:
            del self._starts[bisect.bisect_left(self._starts, start)]
            del self._ranges[start]
        landing.reserved_at = None

    def protect(self, memory: Bytes) -> None:
        """Let receives whose memory is about to be overwritten look at what has arrived there.

        It asks MPI about their requests: only the progress engine may do that.
        """
        if not memory.size:
            return
        start = buffers.address(memory)
        with self._lock:
            landings = self._within(start, start + memory.size)
        for landing in landings:
            arrival = landing.arrival
            if arrival is not None and arrival.poll() and arrival.status is not None:
                landing.look(arrival.status)

    def _within(self, start: int, stop: int) -> list[Landing]:
        """Return the receives that share a range of memory."""
        last = bisect.bisect_left(self._starts, stop)
        landings = []
        while last and (found := self._ranges[self._starts[last - 1]])[0] > start:
            landings.append(found[1])
            last -= 1
        return landings


_reserved = Reservations()
