"""Host memory over MPI: nonblocking sends and receives of any size."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mpi4py import MPI

from uzipmpi.transports import shared
from uzipmpi.transports.failure import failure
from uzipmpi.transports.transfer import Ready, Transfer
from uzipmpi.typing import Bytes

__all__ = ["MpiHost"]

# Open MPI 5 refuses larger counts, even of bytes. One element of a contiguous type has no limit.
MAX_COUNT = 2**31 - 1


class MpiHost:
    """Sends bytes between the ranks of a communicator.

    Parameters
    ----------
    comm
        A communicator that nobody else sends on: a private duplicate.

    Attributes
    ----------
    rank, size
        This rank, and how many there are.
    bytes_sent, messages_sent
        What this rank has sent or begun to send.
    neighbours
        The ranks, of the communicator, with which this one shares memory.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self.bytes_sent = 0
        self.messages_sent = 0
        self._isend = comm.Isend
        self._ranks: Sequence[int] = range(self.size)
        self.neighbours: frozenset[int] = frozenset()

    def among(self, ranks: Sequence[int]) -> MpiHost:
        """Return a transport between some of the ranks, which are numbered by their place."""
        other = copy.copy(self)
        other._ranks = [self._ranks[rank] for rank in ranks]
        other.rank, other.size = ranks.index(self.rank), len(ranks)
        return other

    def synchronous(self) -> MpiHost:
        """Return a transport whose sends complete when they are being received, not before."""
        other = copy.copy(self)
        other._isend = self.comm.Issend
        return other

    def isend(self, memory: Bytes, dest: int, tag: int) -> Transfer:
        """Start sending ``memory``, which must not change until the transfer is complete."""
        self.bytes_sent += memory.size
        self.messages_sent += 1
        if memory.size <= MAX_COUNT:
            return Transfer(self._isend([memory, MPI.BYTE], self._ranks[dest], tag), memory)
        with as_one(memory) as entry:
            return Transfer(self._isend(entry, self._ranks[dest], tag), memory)

    def send_all(self, memory: Bytes, dests: Sequence[int], tag: int) -> list[Transfer]:
        """Start sending ``memory`` to some ranks; it stays where it is for those that share it."""
        transfers = []
        for dest in dests:
            noted = shared.note(memory, self._ranks[dest]) if self.is_near(dest) else None
            if noted is None:
                transfers.append(self.isend(memory, dest, tag))
                continue
            message, returned = noted
            transfers += [self.isend(message, dest, tag), Ready(returned)]
            self.bytes_sent += memory.size - message.size
        return transfers

    def arrived(self, buffer: Bytes, nbytes: int, gpu: int) -> shared.Arrival | None:
        """Return where a message is that stayed there; None if it came to ``buffer``.

        Parameters
        ----------
        buffer, nbytes
            What was received.
        gpu
            The GPU that will read it, which should find it page-locked.

        Raises
        ------
        mpi4py.MPI.Exception
            If it is in memory that cannot be opened.
        """
        if not self.neighbours or nbytes != shared.NOTE_BYTES:
            return None
        try:
            return shared.arrival(buffer[:nbytes], self.comm.rank, gpu)
        except OSError as error:
            raise failure(f"cannot open the memory of a rank on this node: {error}") from error

    def is_near(self, rank: int) -> bool:
        """Whether a rank shares memory with this one."""
        return self._ranks[rank] in self.neighbours

    def irecv(self, memory: Bytes, source: int, tag: int) -> Transfer:
        """Start receiving at most ``memory.size`` bytes; a larger message fails the transfer."""
        if memory.size <= MAX_COUNT:
            request = self.comm.Irecv([memory, MPI.BYTE], self._ranks[source], tag)
            return Transfer(request, memory)
        with as_one(memory) as entry:
            return Transfer(self.comm.Irecv(entry, self._ranks[source], tag), memory)


@contextmanager
def as_one(memory: Bytes) -> Iterator[tuple[Bytes, int, MPI.Datatype]]:
    """Yield a message that is one element of a datatype of its own."""
    block = MPI.BYTE.Create_contiguous(memory.size).Commit()
    try:
        yield memory, 1, block
    finally:
        block.Free()  # MPI keeps it for the transfers that were started with it
