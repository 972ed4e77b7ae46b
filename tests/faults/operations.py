"""Every kind of operation by name, on tensors of some frames, for the programs beside this file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

import uzipmpi

__all__ = ["Operations"]

COUNT = 20_000

Array = npt.NDArray[np.float32]


class Operations:
    """Runs operations between all ranks, or between the first and the last.

    A collective has the name of its method. A message has that of the method on rank 0, or of the
    function that rank 0 waits with; the last rank's half is a plain ``Send`` or ``Recv``.

    Parameters
    ----------
    comm
        The communicator.
    count
        Values of a message.
    """

    def __init__(self, comm: uzipmpi.Comm, count: int = COUNT) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.count = count
        # Whole numbers: sums are exact in any order.
        self.inputs = [
            np.round(np.random.default_rng(rank).normal(0, 8, count * self.size)).astype(np.float32)
            for rank in range(self.size)
        ]
        self.values = self.inputs[self.rank]
        self.mine = self.values[:count]
        self.one = np.empty(count, np.float32)
        self.all = np.empty(count * self.size, np.float32)

    def run(self, name: str) -> None:
        """Run an operation once."""
        self.one.fill(np.nan)
        self.all.fill(np.nan)
        collective, begun = collective_name(name), name[0] == "I"
        if not collective:
            self._message(name)
            return
        result = getattr(self.comm, name)(*self._arguments(collective))
        if name.endswith("_init"):
            one_round(result)
        elif begun:
            result.Wait()

    def is_right(self, name: str) -> bool:
        """Whether the last run of an operation left the right values on this rank."""
        collective, rank = collective_name(name), self.rank
        part = slice(rank * self.count, (rank + 1) * self.count)
        firsts = [values[: self.count] for values in self.inputs]
        match collective:
            case "Bcast":
                return np.array_equal(self.one, firsts[0])
            case "Scatter":
                return np.array_equal(self.one, self.inputs[0][part])
            case "Gather" | "Reduce" if rank != 0:
                return True
            case "Gather" | "Allgather":
                return np.array_equal(self.all, np.concatenate(firsts))
            case "Alltoall":
                return np.array_equal(self.all, np.concatenate([v[part] for v in self.inputs]))
            case "Reduce" | "Allreduce":
                return np.array_equal(self.one, sum(firsts))
            case "Reduce_scatter":
                return np.array_equal(self.one, sum(self.inputs)[part])
        return not self._receives(name) or np.array_equal(self.one, firsts[self.peer])

    @property
    def peer(self) -> int:
        """The other end of messages."""
        return self.size - 1 - self.rank

    def _arguments(self, collective: str) -> tuple[Any, ...]:
        is_root = self.rank == 0
        if collective == "Bcast" and is_root:
            self.one[...] = self.mine
        return {
            "Bcast": (self.one,),
            "Gather": (self.mine, self.all if is_root else None),
            "Scatter": (self.values if is_root else None, self.one),
            "Allgather": (self.mine, self.all),
            "Alltoall": (self.values, self.all),
            "Allreduce": (self.mine, self.one),
            "Reduce": (self.mine, self.one if is_root else None),
            "Reduce_scatter": (self.values, self.one, [self.count] * self.size),
        }[collective]

    def _receives(self, name: str) -> bool:
        if name == "Sendrecv":
            return self.rank in (0, self.size - 1)
        return self.rank == (self.size - 1 if "send" in name.lower() else 0)

    def _message(self, name: str) -> None:
        comm, peer = self.comm, self.peer
        if self.rank not in (0, self.size - 1):
            return
        if name == "Sendrecv":
            comm.Sendrecv(self.mine, peer, 0, self.one, peer, 0)
        elif self._receives(name):
            self._receive(name if self.rank == 0 else "Recv")
        else:
            self._send(name if self.rank == 0 else "Send")

    def _send(self, name: str) -> None:
        result = getattr(self.comm, name)(self.mine, self.peer)
        if name.endswith("_init"):
            one_round(result)
        elif result is not None:
            result.Wait()

    def _receive(self, name: str) -> None:
        comm, one, peer = self.comm, self.one, self.peer
        match name:
            case "Recv":
                comm.Recv(one, peer)
            case "Irecv":
                comm.Irecv(one, peer).Wait()
            case "Waitall":
                uzipmpi.Request.Waitall([comm.Irecv(one, peer)])
            case "MPI.Waitall":
                MPI.Request.Waitall([comm.Irecv(one, peer)])
            case "Probe":
                comm.Probe(peer)
                comm.Recv(one, peer)
            case "Mprobe":
                comm.Mprobe(peer).Recv(one)
            case "Recv_init":
                one_round(comm.Recv_init(one, peer))
            case _:
                raise ValueError(f"expected the name of an operation, found {name!r}")


COLLECTIVES = ("Bcast", "Gather", "Scatter", "Allgather", "Alltoall", "Allreduce", "Reduce")
COLLECTIVES += ("Reduce_scatter",)


def collective_name(name: str) -> str:
    """Return the blocking form of a collective; empty for a message."""
    base = name.removesuffix("_init")
    base = base[1:].capitalize() if base[0] == "I" else base
    return base if base in COLLECTIVES else ""


def one_round(request: MPI.Prequest) -> None:
    """Run one round of a persistent request, and free it."""
    request.Start()
    try:
        request.Wait()
    finally:
        request.Free()
