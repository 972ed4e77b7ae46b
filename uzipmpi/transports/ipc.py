"""Ranks of one host, each with its own GPU: they move the values by themselves.

Where all GPUs reach each other's memory (``ipc``), an exchange is one kernel on each rank that
takes part (``kernels.link``); where they do not (``shm``), kernels code pieces that copy engines
move through memory of the host (``kernels.pipe``). The host only queues. Both ends must queue the
exchanges of a route in the same order. There are two: ``ordered``, for what all ranks do in the
same order, collectives and messages that are given a stream; and ``matched``, for messages that MPI
matches, in the order in which their receivers say that they are ready.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from uzipmpi.config import Config
from uzipmpi.kernels import device, link, pipe
from uzipmpi.kernels.device import DeviceMemory, Stream
from uzipmpi.kernels.link import Copy, Fold
from uzipmpi.kernels.pipe import Pipes
from uzipmpi.transports.failure import failure
from uzipmpi.typing import DType

__all__ = ["MAX_RANKS", "WAYS", "Exchange", "Ipc", "Lane", "Route", "Way", "connect"]

MAX_RANKS = 8
STATUS_BYTES = 4
Job = tuple[int, DeviceMemory]


@dataclass(frozen=True)
class Way:
    """How records get to a peer's GPU; the figures are measured (docs/performance.md).

    Attributes
    ----------
    name
        Of the transport.
    coded_bytes
        Smaller messages are there sooner as they are.
    """

    name: str
    coded_bytes: int


# Over NVLink a megabyte takes 3 microseconds, through the host 20. There messages of 1 MB arrive 8%
# sooner as they are, if one waits for each, and those of 4 MB 15% later.
WAYS = {
    "ipc": Way("ipc", coded_bytes=8 << 20),
    "shm": Way("shm", coded_bytes=3 << 19),
}


class Exchange(NamedTuple):
    """What is queued, and the route whose order it keeps."""

    route: Route
    prepared: link.Exchange | pipe.Exchange

    def queue(self, stream: Stream) -> None:
        """Queue it; see :meth:`Route.queue`. What it reads must be there by then."""
        self.route.queue(self.prepared, stream)


class Route:
    """Exchanges that both ends queue in the same order.

    Parameters
    ----------
    links
        The memory, and the peers' memory.
    timeout
        Seconds that an exchange waits for its peer's.
    way
        What the links are.
    at_once
        How many exchanges may be under way at a time, all of which must fit the GPU. If it is one,
        each kernel waits for the one before it, whatever their streams are.
    """

    def __init__(
        self, links: link.Links | Pipes, timeout: float, way: Way, at_once: int = 1
    ) -> None:
        self.links = links
        self._way = way
        self._at_once = at_once
        self._timeout = timeout
        self._status = device.pinned(STATUS_BYTES, links.device)
        self._status[:] = 0
        self._found = self._status.view(np.uint32)
        self._last: Stream | None = None
        self._lock = threading.Lock()

    def prepare(
        self,
        dtype: DType,
        config: Config,
        *,
        sends: Sequence[Job] = (),
        receives: Sequence[Job] = (),
        fold: Fold | None = None,
        copy: Copy | None = None,
        word: int = 0,
    ) -> Exchange:
        """Return an exchange, which can be queued any number of times while its memory lives.

        Parameters
        ----------
        dtype
            Of all values.
        config
            Codec, and how much of the GPU the kernel may occupy.
        sends, receives
            Peers and memory; none of a peer twice.
        fold
            A reduction over all ranks.
        copy
            In this GPU's memory, meanwhile.
        word
            What must be the same on both ends.
        """
        arguments: dict[str, Any] = {
            "sends": sends,
            "receives": receives,
            "fold": fold,
            "copy": copy,
            "word": word,
            "codec": self._codec(config, [job.size for _, job in sends or receives], fold),
            "max_blocks": config.max_sms,
            "timeout": self._timeout,
        }
        if isinstance(self.links, Pipes):
            return Exchange(self, pipe.prepare(self.links, dtype, **arguments))
        arguments |= {"status": self._status, "at_once": self._at_once}
        return Exchange(self, link.prepare(self.links, dtype, **arguments))

    def queue(self, exchange: link.Exchange | pipe.Exchange, stream: Stream) -> None:
        """Queue an exchange in a stream; nothing is waited for.

        Raises
        ------
        mpi4py.MPI.Exception
            If an earlier exchange has failed: peers' records are out of step then.
        """
        with self._lock:
            self.check()
            if self._at_once == 1 and isinstance(exchange, link.Exchange):
                self._follow(stream)  # pipes keep the order by themselves
            exchange.launch(stream)

    def _codec(self, config: Config, sizes: Sequence[int], fold: Fold | None) -> str:
        largest = max(sizes) if sizes or fold is None else fold.own.size
        small = largest < self._way.coded_bytes
        if config.codec == "auto" and small:
            return "raw"
        return "auto" if config.codec == "ans" else config.codec  # whose blocks are too large

    def _follow(self, stream: Stream) -> None:
        """Let the exchange come after the one before it, in whatever stream that is.

        What a graph captures has its place where the graph is launched: in what order with others
        is its owner's affair.
        """
        if stream.is_capturing():
            return
        if self._last is not None and self._last.handle != stream.handle:
            stream.wait(self._last.record())
        self._last = stream

    def check(self) -> None:
        """Raise what has gone wrong in an exchange, if anything has.

        Raises
        ------
        mpi4py.MPI.Exception
            With the reason, again and again: the route cannot be used any more.
        """
        found = self.links.ended_by if isinstance(self.links, Pipes) else int(self._found[0])
        if found:
            raise failure(f"exchange between GPUs: {link.complaint(found)}")

    def settle(self) -> None:
        """Wait for all that is queued."""
        if isinstance(self.links, Pipes):
            self.links.settle()
        elif self._last is not None:
            self._last.synchronize()


class Lane:
    """The messages from one rank to another, on one of the two: their kernels, one by one.

    Attributes
    ----------
    route
        That of the messages.
    stream
        Where the kernels go.
    lock
        Held while a kernel is queued and numbered.
    next
        The number of the next.
    """

    def __init__(self, route: Route, peer: int) -> None:
        self.route, self._peer = route, peer
        self.stream = Stream(route.links.device)
        self.lock = threading.Lock()
        self.next = 0

    def send(self, dtype: DType, config: Config, memory: DeviceMemory) -> None:
        """Queue the sender's kernel."""
        self.route.prepare(dtype, config, sends=[(self._peer, memory)]).queue(self.stream)

    def receive(self, dtype: DType, config: Config, memory: DeviceMemory) -> None:
        """Queue the receiver's kernel."""
        self.route.prepare(dtype, config, receives=[(self._peer, memory)]).queue(self.stream)


class Ipc:
    """What a rank needs to exchange values with its peers' GPUs.

    Parameters
    ----------
    ordinal
        The rank's GPU.
    rank, size
        Of the communicator.
    config
        The options that ranks have agreed on.
    way
        How values get to the peers.

    Attributes
    ----------
    device
        The GPU.
    name
        Of the transport: ``ipc`` or ``shm``.
    ordered, matched
        The two routes.
    stream
        Where exchanges go whose caller waits for them.
    outgoing, incoming
        The messages to and from each rank.
    """

    def __init__(self, ordinal: int, rank: int, size: int, config: Config, way: Way) -> None:
        self.device = ordinal
        self.name = way.name
        room = config.max_staging_bytes // 2

        def links() -> link.Links | Pipes:
            kind = link.Links if way.name == "ipc" else Pipes
            return kind(ordinal, rank, size, room)

        self.ordered = Route(links(), config.timeout, way)
        # A message each way with every peer may be under way at a time.
        self.matched = Route(links(), config.timeout, way, at_once=2 * (size - 1))
        self.stream = Stream(ordinal)
        self.outgoing = [Lane(self.matched, peer) for peer in range(size)]
        self.incoming = [Lane(self.matched, peer) for peer in range(size)]

    @property
    def handles(self) -> tuple[bytes, bytes]:
        """What peers need to reach this rank's memory."""
        return self.ordered.links.handle, self.matched.links.handle

    def stream_after(self, memories: Iterable[DeviceMemory]) -> Stream:
        """Return the stream for a call that waits, after what owners of memory have queued."""
        for memory in memories:
            if memory.producer is not None:
                self.stream.wait_for(memory.producer)
        return self.stream

    def connect(self, peer: int, handles: tuple[bytes, bytes]) -> None:
        """Reach a peer's memory."""
        for route, handle in zip((self.ordered, self.matched), handles, strict=True):
            route.links.connect(peer, handle)

    def settle(self) -> None:
        """Wait for all that is queued on this rank."""
        self.ordered.settle()
        for lane in (*self.outgoing, *self.incoming):
            lane.stream.synchronize()

    def disconnect(self) -> None:
        """Leave the peers' memory, as all ranks must before any closes its own."""
        self.ordered.links.disconnect()
        self.matched.links.disconnect()

    def close(self) -> None:
        """Give all memory back."""
        self.ordered.links.close()
        self.matched.links.close()


def connect(comm: MPI.Intracomm, ordinal: int | None, config: Config) -> Ipc | str:
    """Connect the GPUs of all ranks, which share a host; collective.

    By ``ipc`` if all reach each other's memory, else by ``shm``, unless the option ``transport``
    names one of them.

    Parameters
    ----------
    comm
        Nobody else communicates on it now.
    ordinal
        This rank's GPU, None if it has none.
    config
        The options; those that count here are the same on all ranks.

    Returns
    -------
    Ipc or str
        The same kind on all ranks: the connection, or why there is none.
    """
    mine = "" if ordinal is None else link.device_identity(ordinal)
    identities = comm.allgather(mine)
    if ordinal is None or "" in identities:
        return "not every rank has a GPU"
    if len(set(identities)) < len(identities):
        return "ranks share a GPU"
    found: Ipc | str = ""
    if config.transport != "shm":
        reached = [theirs == mine or link.can_access(ordinal, theirs) for theirs in identities]
        found = "not every GPU reaches the memory of all others"
        if all(comm.allgather(all(reached))):
            found = _connect(comm, ordinal, config, WAYS["ipc"])
    if config.transport == "ipc" or isinstance(found, Ipc):
        return found
    last = _connect(comm, ordinal, config, WAYS["shm"])
    return last if isinstance(last, Ipc) or not found else f"{found}; through the host: {last}"


def _connect(comm: MPI.Intracomm, ordinal: int, config: Config, way: Way) -> Ipc | str:
    """Connect in one way; collective."""
    rank, size = comm.Get_rank(), comm.Get_size()
    ipc: Any = _attempt(lambda: Ipc(ordinal, rank, size, config, way))
    offers = comm.allgather(ipc if isinstance(ipc, str) else ipc.handles)
    refusal = next((offer for offer in offers if isinstance(offer, str)), "")
    if not refusal:

        def connect_all() -> str:
            for peer, handles in enumerate(offers):
                if peer != rank:
                    ipc.connect(peer, handles)
            return ""

        refusal = next((text for text in comm.allgather(_attempt(connect_all)) if text), "")
    if refusal and isinstance(ipc, Ipc):
        ipc.close()
    return refusal or ipc


def _attempt(action: Any) -> Any:
    """Return what it returns, or in words what the driver says is wrong: all ranks must go on."""
    try:
        return action()
    except (OSError, RuntimeError, ValueError) as error:
        return str(error) or type(error).__name__
