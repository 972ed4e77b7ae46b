"""Messages of every flavour, from all ranks to all ranks, received in every way.

Any rank can make the values of any message again: the receiver compares bit for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from completion import complete, is_ours
from draws import Array, Draw, Pool, Values, as_bytes, check, check_same
from mpi4py import MPI

import uzipmpi

TAGS = (0, 1, 7, 30_000)
# A message into a buffer that is too small: Open MPI 5.0 writes behind the buffer when it is large.
MOST_TRUNCATED = 1024 if MPI.get_vendor()[0] == "Open MPI" else 1 << 16
# What the attached buffer can hold many of.
MOST_BUFFERED = 1 << 14
UNTOUCHED = 0x5A

Requests = list[MPI.Request]


@dataclass(frozen=True)
class Envelope:
    """One message, as both ends know it."""

    source: int
    dest: int
    tag: int
    values: Values


@dataclass(frozen=True)
class Arrival:
    """A receive that was begun."""

    envelope: Envelope
    buffer: Array
    request: MPI.Request


def drawn(draw: Draw, pool: Pool, size: int, most_bytes: int) -> Envelope:
    """Draw a message."""
    dtype = draw.dtype()
    values = Values.drawn(draw, pool, dtype, draw.count(dtype, most_bytes))
    return Envelope(draw.below(size), draw.below(size), draw.among(TAGS), values)


def room_for(own: Draw, envelope: Envelope, slack: int = 3) -> Array:
    """Return a buffer that is as large as a message, or larger."""
    values = envelope.values
    buffer = np.empty(values.count + own.among((0, 0, slack)), values.dtype)
    as_bytes(buffer)[:] = UNTOUCHED
    return buffer


def check_arrived(pool: Pool, envelope: Envelope, buffer: Array, status: MPI.Status) -> None:
    """Compare a message that was received, and its status, with what was sent."""
    what = str(envelope)
    nbytes = envelope.values.nbytes
    found = as_bytes(buffer)
    check_same(found[:nbytes], pool.cut(envelope.values), what)
    check(bool((found[nbytes:] == UNTOUCHED).all()), f"{what}: nothing behind it to change")
    check(status.Get_source() == envelope.source, f"{what}: not source {status.Get_source()}")
    check(status.Get_tag() == envelope.tag, f"{what}: not tag {status.Get_tag()}")
    elements = status.Get_elements(MPI.BYTE)
    check(elements == nbytes, f"{what}: {nbytes} bytes, found {elements}")


# Sending


def started(request: MPI.Prequest) -> MPI.Prequest:
    """Start a persistent request."""
    request.Start()
    return request


BEGUN_SENDS: dict[str, Callable[..., MPI.Request]] = {
    "Isend": lambda comm, *call: comm.Isend(*call),
    "Issend": lambda comm, *call: comm.Issend(*call),
    "Ibsend": lambda comm, *call: comm.Ibsend(*call),
    "Send_init": lambda comm, *call: started(comm.Send_init(*call)),
    "Ssend_init": lambda comm, *call: started(comm.Ssend_init(*call)),
    "Isendrecv": lambda comm, *call: comm.Isendrecv(*call, bytearray(), MPI.PROC_NULL),
}
BLOCKING_SENDS: dict[str, Callable[..., Any]] = {
    "Send": lambda comm, *call: comm.Send(*call),
    "Ssend": lambda comm, *call: comm.Ssend(*call),
    "Bsend": lambda comm, *call: comm.Bsend(*call),
    "Sendrecv": lambda comm, *call: comm.Sendrecv(*call, None, MPI.PROC_NULL),
}


def flavour(own: Draw, names: list[str], envelope: Envelope) -> str:
    """Draw how to send a message."""
    name = own.among(names)
    if name in ("Ibsend", "Bsend") and envelope.values.nbytes > MOST_BUFFERED:
        return names[0]
    return name


def begin_send(comm: uzipmpi.Comm, own: Draw, pool: Pool, envelope: Envelope) -> MPI.Request | None:
    """Begin to send; None if the request was dropped."""
    name = flavour(own, list(BEGUN_SENDS), envelope)
    call = (pool.cut(envelope.values), envelope.dest, envelope.tag)
    request = BEGUN_SENDS[name](comm, *call)
    # mpi4py's own requests must be kept: with them go their buffers.
    droppable = name in ("Isend", "Issend") and is_ours(request)
    return None if droppable and own.chance(0.1) else request


# Receiving


class Inbox:
    """The messages that a rank still has to receive, in the order of each source and tag."""

    def __init__(self, envelopes: list[Envelope]) -> None:
        self._queues: dict[tuple[int, int], deque[Envelope]] = {}
        for envelope in envelopes:
            key = (envelope.source, envelope.tag)
            self._queues.setdefault(key, deque()).append(envelope)

    def __bool__(self) -> bool:
        return bool(self._queues)

    def draw(self, own: Draw) -> Envelope:
        """Return a message that may come next."""
        return self._queues[own.among(sorted(self._queues))][0]

    def largest(self) -> Envelope:
        """Return the largest message."""
        messages = (message for queue in self._queues.values() for message in queue)
        return max(messages, key=lambda message: message.values.nbytes)

    def take(self, source: int, tag: int) -> Envelope:
        """Remove the next message of a source and tag."""
        check((source, tag) in self._queues, f"one of {set(self._queues)}, found {source, tag}")
        queue = self._queues[source, tag]
        envelope = queue.popleft()
        if not queue:
            del self._queues[source, tag]
        return envelope


def filter_of(own: Draw, envelope: Envelope) -> tuple[int, int]:
    """Return source and tag to ask for, wildcards among them."""
    source = MPI.ANY_SOURCE if own.chance(0.4) else envelope.source
    return source, MPI.ANY_TAG if own.chance(0.4) else envelope.tag


class Receiver:
    """Receives the messages of an inbox in ways drawn by this rank."""

    def __init__(self, comm: uzipmpi.Comm, own: Draw, pool: Pool, inbox: Inbox) -> None:
        self.comm, self.own, self.pool, self.inbox = comm, own, pool, inbox
        self.begun: list[Arrival] = []

    def begin(self) -> None:
        """Post a receive of a message that is named."""
        named = self.inbox.draw(self.own)
        envelope = self.inbox.take(named.source, named.tag)
        buffer = room_for(self.own, envelope)
        if self.own.chance(0.3):
            request = started(self.comm.Recv_init(buffer, envelope.source, envelope.tag))
        else:
            request = self.comm.Irecv(buffer, envelope.source, envelope.tag)
        self.begun.append(Arrival(envelope, buffer, request))

    def receive(self) -> None:
        """Receive one message, waiting for it."""
        status = MPI.Status()
        source, tag = filter_of(self.own, self.inbox.draw(self.own))
        way = self.own.among((self._recv, self._probe, self._iprobe, self._mprobe, self._improbe))
        way(source, tag, status)

    def _recv(self, source: int, tag: int, status: MPI.Status) -> None:
        largest = self.inbox.largest().values.nbytes
        buffer = np.full(largest, UNTOUCHED, np.uint8).view(np.uint8)
        # Its type says nothing here: with checksums on, that of the message is asked for.
        if self.comm.config.verify:
            self._probe(source, tag, status)
            return
        if self.own.chance(0.5):
            self.comm.Recv(buffer, source, tag, status)
        else:
            self.comm.Irecv(buffer, source, tag).Wait(status)
        self._arrived(buffer, status)

    def _probe(self, source: int, tag: int, status: MPI.Status) -> None:
        self.comm.Probe(source, tag, status)
        self._named(status)

    def _iprobe(self, source: int, tag: int, status: MPI.Status) -> None:
        while not self.comm.Iprobe(source, tag, status):
            pass
        self._named(status)

    def _named(self, status: MPI.Status) -> None:
        """Receive the message that a probe has named."""
        source, tag = status.Get_source(), status.Get_tag()
        envelope = self.inbox.take(source, tag)
        probed = status.Get_elements(MPI.BYTE)
        nbytes = envelope.values.nbytes
        check(probed == nbytes, f"{envelope}: a probe of {nbytes} bytes, found {probed}")
        buffer = room_for(self.own, envelope)
        self.comm.Recv(buffer, source, tag, status)
        check_arrived(self.pool, envelope, buffer, status)

    def _mprobe(self, source: int, tag: int, status: MPI.Status) -> None:
        self._matched(self.comm.Mprobe(source, tag, status), status)

    def _improbe(self, source: int, tag: int, status: MPI.Status) -> None:
        message = None
        while message is None:
            message = self.comm.Improbe(source, tag, status)
        self._matched(message, status)

    def _matched(self, message: MPI.Message, status: MPI.Status) -> None:
        envelope = self.inbox.take(status.Get_source(), status.Get_tag())
        buffer = room_for(self.own, envelope)
        if self.own.chance(0.5):
            message.Recv(buffer, status)
        else:
            message.Irecv(buffer).Wait(status)
        check_arrived(self.pool, envelope, buffer, status)

    def _arrived(self, buffer: Array, status: MPI.Status) -> None:
        """Find out which message came, and compare it."""
        envelope = self.inbox.take(status.Get_source(), status.Get_tag())
        check_arrived(self.pool, envelope, buffer, status)


def storm(comm: uzipmpi.Comm, draw: Draw, pool: Pool, most_bytes: int) -> None:
    """All begin to send to all, and receive in their own order."""
    rank = comm.Get_rank()
    own = Draw(*draw.words, rank)
    envelopes = [
        drawn(draw, pool, comm.Get_size(), most_bytes)
        for _ in range(1 + draw.below(6 * comm.Get_size()))
    ]
    inbox = Inbox([envelope for envelope in envelopes if envelope.dest == rank])
    receiver = Receiver(comm, own, pool, inbox)
    while inbox and own.chance(0.4):
        receiver.begin()
    sends = [begin_send(comm, own, pool, e) for e in envelopes if e.source == rank]
    while inbox:
        if own.chance(0.3):
            receiver.begin()
        else:
            receiver.receive()
    requests = [arrival.request for arrival in receiver.begun]
    requests += [send for send in sends if send is not None]
    statuses = complete(own, requests)
    for arrival, status in zip(receiver.begun, statuses, strict=False):
        check_arrived(pool, arrival.envelope, arrival.buffer, status)
    for request in requests:
        if isinstance(request, MPI.Prequest):
            request.Free()  # MPI keeps it until then
    # What a rank sends next is not for those who still receive from any source.
    comm.Barrier()


def one_by_one(comm: uzipmpi.Comm, draw: Draw, pool: Pool, most_bytes: int) -> None:
    """Blocking messages, one after the other; now and then the buffer is too small."""
    rank = comm.Get_rank()
    own = Draw(*draw.words, rank)
    for _ in range(1 + draw.below(5 * comm.Get_size())):
        envelope = drawn(draw, pool, comm.Get_size(), most_bytes)
        ready, truncated = draw.chance(0.15), draw.chance(0.1)
        if envelope.source == envelope.dest:
            continue
        if rank == envelope.source:
            send(comm, own, pool, envelope, ready)
        elif rank == envelope.dest:
            truncated = truncated and 0 < envelope.values.nbytes <= MOST_TRUNCATED
            receive_one(comm, own, pool, envelope, ready, truncated)


def send(comm: uzipmpi.Comm, own: Draw, pool: Pool, envelope: Envelope, ready: bool) -> None:
    """Send; a ready send waits until it has heard of the receive."""
    call = (pool.cut(envelope.values), envelope.dest, envelope.tag)
    if not ready:
        BLOCKING_SENDS[flavour(own, list(BLOCKING_SENDS), envelope)](comm, *call)
        return
    comm.recv(source=envelope.dest)
    if own.chance(0.5):
        comm.Rsend(*call)
    else:
        comm.Irsend(*call).Wait()


def receive_one(
    comm: uzipmpi.Comm, own: Draw, pool: Pool, envelope: Envelope, ready: bool, truncated: bool
) -> None:
    """Receive a message of which everything is known."""
    status = MPI.Status()
    if truncated:
        buffer = np.empty(envelope.values.count - 1, envelope.values.dtype)
    else:
        buffer = room_for(own, envelope)
    source, tag = envelope.source, envelope.tag
    try:
        if ready or own.chance(0.3):
            request = comm.Irecv(buffer, source, tag)
            if ready:
                comm.send(None, source)
            request.Wait(status)
        elif own.chance(0.2):
            comm.Sendrecv(None, MPI.PROC_NULL, 0, buffer, source, tag, status)
        else:
            comm.Recv(buffer, source, tag, status)
    except MPI.Exception as error:
        check(truncated and error.Get_error_class() == MPI.ERR_TRUNCATE, f"not {error}")
        return
    check(not truncated, f"{envelope}: MPI.ERR_TRUNCATE")
    check_arrived(pool, envelope, buffer, status)


def shift(comm: uzipmpi.Comm, draw: Draw, pool: Pool, most_bytes: int) -> None:
    """All send to a neighbour and receive from another at once."""
    rank, size = comm.Get_rank(), comm.Get_size()
    distance, tag = draw.below(size), draw.among(TAGS)
    dtype = draw.dtype()
    replace = draw.chance(0.4)
    count = draw.count(dtype, most_bytes)
    counts = [count if replace else draw.count(dtype, most_bytes) for _ in range(size)]
    values = [Values.drawn(draw, pool, dtype, count) for count in counts]
    source, dest = (rank - distance) % size, (rank + distance) % size
    envelope = Envelope(source, rank, tag, values[source])
    status = MPI.Status()
    mine, own = pool.cut(values[rank]), Draw(*draw.words, rank)
    if replace:
        received = mine
        call = (mine, dest, tag, source, tag)
        if own.chance(0.5):
            comm.Sendrecv_replace(*call, status)
        else:
            comm.Isendrecv_replace(*call).Wait(status)
    else:
        received = room_for(own, envelope)
        if own.chance(0.5):
            comm.Sendrecv(mine, dest, tag, received, source, tag, status)
        else:
            comm.Isendrecv(mine, dest, tag, received, source, tag).Wait(status)
    check_arrived(pool, envelope, received, status)
