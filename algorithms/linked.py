"""Collectives between GPUs that reach each other's memory: a kernel or two on each rank.

Folds are in rank order with one rounding, as those of two_shot: the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from uzipmpi.algorithms import call as calls
from uzipmpi.algorithms.channel import Waits
from uzipmpi.algorithms.cuts import even_counts, shards
from uzipmpi.algorithms.gpu_steps import memory_of
from uzipmpi.algorithms.operators import Operator, Predefined
from uzipmpi.config import Config
from uzipmpi.kernels.device import Stream
from uzipmpi.kernels.link import Fold
from uzipmpi.transports.ipc import Job, Route
from uzipmpi.transports.transfer import Ready
from uzipmpi.typing import DType, Tensor

__all__ = ["NAME", "OPERATIONS", "Links", "completed", "queue", "word"]


@dataclass(frozen=True)
class Links:
    """Where the exchanges of a call go.

    Parameters
    ----------
    route
        The way to the peers.
    stream
        The kernels' stream.
    config
        The options in force.
    word
        What must be the same on all ranks.
    """

    route: Route
    stream: Stream
    config: Config
    word: int = 0

    @property
    def rank(self) -> int:
        """This rank."""
        return self.route.links.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.route.links.size

    @property
    def peers(self) -> list[int]:
        """All other ranks."""
        return [peer for peer in range(self.size) if peer != self.rank]

    def exchange(
        self,
        sends: Sequence[tuple[int, Tensor]] = (),
        receives: Sequence[tuple[int, Tensor]] = (),
        fold: Fold | None = None,
        dtype: DType | None = None,
    ) -> None:
        """Queue one exchange; what is empty is left out on both ends."""
        jobs = [pair for pair in (*sends, *receives) if pair[1].nbytes]
        if not jobs and (fold is None or not fold.out.nbytes):
            return
        self.route.queue(
            self.stream,
            jobs[0][1].dtype if dtype is None else dtype,
            self.config,
            sends=_jobs(sends),
            receives=_jobs(receives),
            fold=fold,
            word=self.word,
        )

    def copy(self, source: Tensor, destination: Tensor) -> None:
        """Queue the copy of a rank's own part, unless it is in place."""
        if memory_of(source).address != memory_of(destination).address:
            self.stream.copy(destination.memory, source.memory)

    def completed(self) -> Waits:
        """Wait for what is queued.

        Raises
        ------
        mpi4py.MPI.Exception
            If an exchange has failed.
        """
        return completed(self.stream, self.route)

    def fold(self, op: Operator, own: Tensor, out: Tensor) -> Fold:
        """Return the reduction of all ranks' values, in which this rank's are ``own``."""
        assert isinstance(op, Predefined)
        return Fold(op.kernel, memory_of(own), memory_of(out), op.divisor(self.size, None))


def allreduce(links: Links, send: Tensor, recv: Tensor, op: Operator) -> None:
    """Reduce on all ranks: each folds all values, or, more ranks than two or in place, a shard."""
    if links.size == 2 and memory_of(send).address != memory_of(recv).address:
        fold = links.fold(op, send, recv)
        links.exchange([(peer, send) for peer in links.peers], fold=fold, dtype=send.dtype)
        return
    counts = even_counts(send.count, links.size)
    parts = shards(recv, counts)
    reduce_scatter(links, send, parts[links.rank], counts, op)
    allgather(links, parts[links.rank], parts)


def reduce_scatter(
    links: Links, send: Tensor, recv: Tensor, counts: Sequence[int], op: Operator
) -> None:
    """Reduce, and leave shard r on rank r."""
    parts = shards(send, counts)
    fold = links.fold(op, parts[links.rank], recv) if recv.nbytes else None
    links.exchange([(peer, parts[peer]) for peer in links.peers], fold=fold, dtype=send.dtype)


def reduce(links: Links, send: Tensor, recv: Tensor | None, op: Operator, root: int) -> None:
    """Reduce on one rank."""
    if links.rank != root:
        links.exchange([(root, send)])
    elif recv is not None:
        links.exchange(fold=links.fold(op, send, recv), dtype=send.dtype)


def allgather(links: Links, send: Tensor, recvs: Sequence[Tensor]) -> None:
    """Give all ranks' values to all ranks."""
    links.copy(send, recvs[links.rank])
    links.exchange(
        [(peer, send) for peer in links.peers], [(peer, recvs[peer]) for peer in links.peers]
    )


def alltoall(links: Links, sends: Sequence[Tensor], recvs: Sequence[Tensor]) -> None:
    """Give every rank its own part of all ranks' values."""
    links.copy(sends[links.rank], recvs[links.rank])
    links.exchange(
        [(peer, sends[peer]) for peer in links.peers], [(peer, recvs[peer]) for peer in links.peers]
    )


def bcast(links: Links, tensor: Tensor, root: int) -> None:
    """Give one rank's values to all."""
    if links.rank == root:
        links.exchange([(peer, tensor) for peer in links.peers])
    else:
        links.exchange(receives=[(root, tensor)])


def gather(links: Links, send: Tensor, recvs: Sequence[Tensor] | None, root: int) -> None:
    """Give all ranks' values to one."""
    if links.rank != root:
        links.exchange([(root, send)])
    elif recvs is not None:
        links.copy(send, recvs[root])
        links.exchange(receives=[(peer, recvs[peer]) for peer in links.peers])


def scatter(links: Links, sends: Sequence[Tensor] | None, recv: Tensor, root: int) -> None:
    """Give every rank its own part of one rank's values."""
    if links.rank != root:
        links.exchange(receives=[(root, recv)])
    elif sends is not None:
        links.copy(sends[root], recv)
        links.exchange([(peer, sends[peer]) for peer in links.peers])


def completed(stream: Stream, route: Route) -> Waits:
    """Wait for what is queued in a stream; raise if an exchange of the route has failed."""
    event = stream.record()
    try:
        yield Ready(event)
    except BaseException:
        event.synchronize()  # it still uses memory that its owner may free
        raise
    route.check()


OPERATIONS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        allreduce,
        reduce_scatter,
        reduce,
        allgather,
        alltoall,
        bcast,
        gather,
        scatter,
    )
}


NAME = "ipc"
CODES = {operation: calls.enroll(operation, NAME) for operation in OPERATIONS}


def word(operation: str, op: Operator | None, root: int | None) -> int:
    """Return what must be the same on all ranks of a call."""
    return calls.word(CODES[operation], op, root)


def queue(links: Links, operation: str, arguments: Sequence[Any]) -> None:
    """Queue a collective with the arguments that the operation's other algorithms take."""
    OPERATIONS[operation](links, *arguments)


def _jobs(pairs: Sequence[tuple[int, Tensor]]) -> list[Job]:
    return [(peer, memory_of(tensor)) for peer, tensor in pairs if tensor.nbytes]
