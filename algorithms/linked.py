"""Collectives between GPUs that reach each other's memory: a kernel or two on each rank.

Folds are in rank order with one rounding, as those of two_shot: the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from uzipmpi.algorithms import call as calls
from uzipmpi.algorithms.channel import Waits
from uzipmpi.algorithms.cuts import even_counts, shards
from uzipmpi.algorithms.gpu_steps import memory_of
from uzipmpi.algorithms.operators import Operator, Predefined
from uzipmpi.config import Config
from uzipmpi.kernels.device import DeviceMemory, Stream
from uzipmpi.kernels.link import Copy, Fold
from uzipmpi.transports.ipc import Job, Route
from uzipmpi.transports.transfer import Ready
from uzipmpi.typing import DType, Tensor

__all__ = ["NAME", "OPERATIONS", "Plan", "completed", "plan", "word"]


class Step(Protocol):
    """What is queued in a stream."""

    def queue(self, stream: Stream) -> None:
        """Queue it."""


class CopyStep(NamedTuple):
    """A copy on its own."""

    copy: Copy

    def queue(self, stream: Stream) -> None:
        """Queue it."""
        stream.copy(self.copy.destination, self.copy.source)


@dataclass(frozen=True)
class Plan:
    """The steps of a call: they can be queued as often as it is made, while its memory lives.

    Parameters
    ----------
    route
        The way to the peers.
    config
        The options in force.
    word
        What must be the same on all ranks.

    Attributes
    ----------
    steps
        What the algorithms below have added.
    """

    route: Route
    config: Config
    word: int = 0
    steps: list[Step] = field(default_factory=list)

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
        copy: Copy | None = None,
    ) -> None:
        """Add one exchange; what is empty is left out on both ends."""
        jobs = [pair for pair in (*sends, *receives) if pair[1].nbytes]
        if not jobs and (fold is None or not fold.out.nbytes):
            if copy is not None:
                self.steps.append(CopyStep(copy))
            return
        exchange = self.route.prepare(
            jobs[0][1].dtype if dtype is None else dtype,
            self.config,
            sends=_jobs(sends),
            receives=_jobs(receives),
            fold=fold,
            copy=copy,
            word=self.word,
        )
        self.steps.append(exchange)

    def queue(self, stream: Stream) -> None:
        """Queue all steps.

        Raises
        ------
        mpi4py.MPI.Exception
            If an earlier exchange of the route has failed.
        """
        for step in self.steps:
            step.queue(stream)

    def fold(self, op: Operator, own: Tensor, out: Tensor) -> Fold:
        """Return the reduction of all ranks' values, in which this rank's are ``own``."""
        assert isinstance(op, Predefined)
        return Fold(op.kernel, memory_of(own), memory_of(out), op.divisor(self.size, None))


def allreduce(plan: Plan, send: Tensor, recv: Tensor, op: Operator) -> None:
    """Reduce on all ranks: each folds all values, or, more ranks than two, a shard."""
    if plan.size == 2:
        fold = plan.fold(op, send, recv)
        plan.exchange([(peer, send) for peer in plan.peers], fold=fold, dtype=send.dtype)
        return
    counts = even_counts(send.count, plan.size)
    parts = shards(recv, counts)
    reduce_scatter(plan, send, parts[plan.rank], counts, op)
    allgather(plan, parts[plan.rank], parts)


def reduce_scatter(
    plan: Plan, send: Tensor, recv: Tensor, counts: Sequence[int], op: Operator
) -> None:
    """Reduce, and leave shard r on rank r."""
    parts = shards(send, counts)
    fold = plan.fold(op, parts[plan.rank], recv) if recv.nbytes else None
    plan.exchange([(peer, parts[peer]) for peer in plan.peers], fold=fold, dtype=send.dtype)


def reduce(plan: Plan, send: Tensor, recv: Tensor | None, op: Operator, root: int) -> None:
    """Reduce on one rank."""
    if plan.rank != root:
        plan.exchange([(root, send)])
    elif recv is not None:
        plan.exchange(fold=plan.fold(op, send, recv), dtype=send.dtype)


def allgather(plan: Plan, send: Tensor, recvs: Sequence[Tensor]) -> None:
    """Give all ranks' values to all ranks."""
    plan.exchange(
        [(peer, send) for peer in plan.peers],
        [(peer, recvs[peer]) for peer in plan.peers],
        copy=_copy(send, recvs[plan.rank]),
    )


def alltoall(plan: Plan, sends: Sequence[Tensor], recvs: Sequence[Tensor]) -> None:
    """Give every rank its own part of all ranks' values."""
    plan.exchange(
        [(peer, sends[peer]) for peer in plan.peers],
        [(peer, recvs[peer]) for peer in plan.peers],
        copy=_copy(sends[plan.rank], recvs[plan.rank]),
    )


def bcast(plan: Plan, tensor: Tensor, root: int) -> None:
    """Give one rank's values to all."""
    if plan.rank == root:
        plan.exchange([(peer, tensor) for peer in plan.peers])
    else:
        plan.exchange(receives=[(root, tensor)])


def gather(plan: Plan, send: Tensor, recvs: Sequence[Tensor] | None, root: int) -> None:
    """Give all ranks' values to one."""
    if plan.rank != root:
        plan.exchange([(root, send)])
    elif recvs is not None:
        plan.exchange(
            receives=[(peer, recvs[peer]) for peer in plan.peers], copy=_copy(send, recvs[root])
        )


def scatter(plan: Plan, sends: Sequence[Tensor] | None, recv: Tensor, root: int) -> None:
    """Give every rank its own part of one rank's values."""
    if plan.rank != root:
        plan.exchange(receives=[(root, recv)])
    elif sends is not None:
        plan.exchange([(peer, sends[peer]) for peer in plan.peers], copy=_copy(sends[root], recv))


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


def plan(
    route: Route,
    config: Config,
    operation: str,
    arguments: Sequence[Any],
    op: Operator | None,
    root: int | None,
) -> Plan:
    """Plan a collective with the arguments that the operation's other algorithms take."""
    made = Plan(route, config, word(operation, op, root))
    OPERATIONS[operation](made, *arguments)
    return made


def _copy(source: Tensor, destination: Tensor) -> Copy | None:
    """Return the copy of a rank's own part, if there is one and it is not in place."""
    if not source.nbytes or memory_of(source).address == memory_of(destination).address:
        return None
    return Copy(_bare(destination), _bare(source))


def _bare(tensor: Tensor) -> DeviceMemory:
    """Return the memory of a tensor without its owner."""
    memory = memory_of(tensor)
    return DeviceMemory(memory.address, memory.size, memory.device, None)


def _jobs(pairs: Sequence[tuple[int, Tensor]]) -> list[Job]:
    return [(peer, memory_of(tensor)) for peer, tensor in pairs if tensor.nbytes]
