"""A message is damaged, or a step raises, on one rank: nobody hangs, nobody ends with wrong values.

Each trial runs one algorithm with one fault. Then every rank has an error or the right result,
at least one has an error, and the next call on the same transport works.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from calls import Array, Calls, empty, in_rank_order, normal, run, same, tensors
from mpi4py import MPI

from uzipmpi.algorithms import operators, registry
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.scratch import scratch
from uzipmpi.errors import FormatError, MismatchError
from uzipmpi.transports.mpi_host import MpiHost
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, DType, Tensor

COUNT = 6000
CHUNK_BYTES = 1000


def flip_header(message: Bytes) -> Bytes:
    return np.concatenate([message[:1] ^ np.uint8(0xFF), message[1:]])


def flip_body(message: Bytes) -> Bytes:
    damaged = message.copy()
    damaged[-1] ^= 4
    return damaged


def truncate(message: Bytes) -> Bytes:
    return message[: message.size // 2]


def vanish(message: Bytes) -> Bytes:
    return message[:0]


def overflow(message: Bytes) -> Bytes:
    return np.concatenate([message, np.zeros(2 * CHUNK_BYTES, np.uint8)])


FAULTS = (flip_header, flip_body, truncate, vanish, overflow)


class DamagingHost(MpiHost):
    """Damages one message that this rank sends."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self._left = [-1]  # the same for transports between some of the ranks, which are copies
        self.fault: Callable[[Bytes], Bytes] = truncate

    @property
    def countdown(self) -> int:
        return self._left[0]

    @countdown.setter
    def countdown(self, messages: int) -> None:
        self._left[0] = messages

    def isend(self, memory: Bytes, dest: int, tag: int) -> Transfer:
        self.countdown -= 1
        if self.countdown == -1:
            memory = self.fault(memory)
        return super().isend(memory, dest, tag)


@dataclass(frozen=True)
class FailingOperator(operators.Operator):
    """Raises in its second fold on one rank."""

    rank: int
    calls: list[int]

    def fold(self, inputs: Sequence[Tensor], out: Tensor, divisor: int | None = None) -> None:
        self.calls.append(1)
        if MPI.COMM_WORLD.rank == self.rank and len(self.calls) == 2:
            raise ZeroDivisionError("a user's operator")
        operators.SUM.fold(inputs, out, divisor)


class Trial:
    """Runs one algorithm and says whether its result is right."""

    def __init__(self, calls: Calls, operation: str, name: str) -> None:
        self.calls, self.operation, self.name = calls, operation, name
        # Small whole numbers: sums are exact in any order.
        self.inputs = [np.round(normal(rank, COUNT, DType.FLOAT32)) for rank in range(calls.size)]

    def run(self, context: Context, op: operators.Operator = operators.SUM) -> bool:
        mine, size, rank = self.inputs[self.calls.rank], self.calls.size, self.calls.rank
        recv = empty(COUNT, DType.FLOAT32)
        recvs = [empty(COUNT, DType.FLOAT32) for _ in range(size)]
        arguments: dict[str, tuple[Any, ...]] = {
            "allreduce": (Tensor.of(mine), Tensor.of(recv), op),
            "reduce": (Tensor.of(mine), Tensor.of(recv) if rank == 0 else None, op, 0),
            "reduce_scatter": (
                Tensor.of(mine),
                Tensor.of(recv[: self._share(rank)]),
                [self._share(peer) for peer in range(size)],
                op,
            ),
            "allgather": (Tensor.of(mine), tensors(recvs)),
            "alltoall": ([Tensor.of(mine)] * size, tensors(recvs)),
            "bcast": (Tensor.of(mine if rank == 0 else recv), 0),
            "gather": (Tensor.of(mine), tensors(recvs) if rank == 0 else None, 0),
            "scatter": ([Tensor.of(mine)] * size if rank == 0 else None, Tensor.of(recv), 0),
        }
        run(self.operation, self.name, context, *arguments[self.operation])
        return self._right(recv, recvs)

    def _share(self, rank: int) -> int:
        return COUNT // self.calls.size + (COUNT % self.calls.size) * (rank == 0)

    def _right(self, recv: Array, recvs: list[Array]) -> bool:
        rank = self.calls.rank
        total = in_rank_order(operators.SUM, self.inputs)
        start = sum(map(self._share, range(rank)))
        part = slice(start, start + self._share(rank))
        match self.operation:
            case "reduce" | "gather" if rank != 0:
                return True  # nothing to receive
            case "allreduce" | "reduce":
                return same(recv, total)
            case "reduce_scatter":
                return same(recv[: self._share(rank)], total[part])
            case "bcast" if rank == 0:
                return True
            case "bcast" | "scatter":
                return same(recv, self.inputs[0])
        return all(map(same, recvs, self.inputs))


def outcome(trial: Trial, context: Context, op: operators.Operator = operators.SUM) -> str:
    try:
        return "right" if trial.run(context, op) else "wrong"
    except (FormatError, MismatchError, MPI.Exception, ZeroDivisionError) as error:
        return type(error).__name__


def attempt(trial: Trial, label: object, op: operators.Operator = operators.SUM) -> None:
    calls = trial.calls
    outcomes = calls.comm.allgather(
        outcome(trial, calls.context(CHUNK_BYTES, "tier", verify=True), op)
    )
    assert "wrong" not in outcomes, (trial.name, trial.operation, label, outcomes)
    assert set(outcomes) != {"right"}, (trial.name, trial.operation, label, "no error anywhere")
    after = outcome(trial, calls.context(CHUNK_BYTES, "tier", verify=True))
    assert after == "right", (trial.name, trial.operation, label, "afterwards", after)
    # What a failure sent in place of frames is no scratch, for messages of any size.
    assert all(scratch.take(nbytes).size == nbytes for nbytes in (0, 1, 63, 64))


def main() -> None:
    calls = Calls()
    host = DamagingHost(calls.comm)
    calls.transport = host
    faults = itertools.cycle(itertools.product(FAULTS, (0, 3)))
    operations = ("allreduce", "reduce", "reduce_scatter", "allgather", "alltoall", "bcast")
    for operation in (*operations, "gather", "scatter"):
        # "gathered" leaves the transport to MPI's own collective: there is no message to damage.
        for name in (name for name in registry.names(operation) if name != "gathered"):
            trial = Trial(calls, operation, name)
            culprit = calls.size - 1 if operation == "gather" else 0
            if operation == "reduce":
                culprit = 1
            for fault, nth in itertools.islice(faults, 7):
                host.fault = fault
                host.countdown = nth if calls.rank == culprit else -1
                attempt(trial, (fault.__name__, nth))
            if operation.startswith(("allreduce", "reduce")):
                # Of a node with more ranks than another the last ones fold nothing.
                folding = 0 if name == "hierarchical" else calls.size - 1
                failing = FailingOperator("sum", True, folding, [])
                attempt(trial, "operator", failing)


if __name__ == "__main__":
    main()
