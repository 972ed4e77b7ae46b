"""Messages that stay where they are, in memory that the ranks of a node share.

A GPU copies a frame to a segment, MPI carries a note that says where, and the peer's GPU copies it
from there: no processor touches the bytes. The receiver marks the segment when it has done with it.
Segments are files in memory (memfd), which a peer opens through ``/proc``; so nothing is left by a
process that dies.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import threading
import weakref
from collections import OrderedDict
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from uzipmpi.kernels.device_pool import gpu_half, rounded_up
from uzipmpi.kernels.kept import Kept
from uzipmpi.typing import Bytes

__all__ = [
    "NOTE_BYTES",
    "Returned",
    "SharedPool",
    "arrival",
    "give_back",
    "is_lent",
    "note",
    "reaches",
]

# A magic number, the process, its file, the serial number of the segment, its size, the message's.
_NOTE = struct.Struct("<Q5q")
NOTE_BYTES = _NOTE.size
_MAGIC = 0x5A1D7E9C3B0F4826

# A segment begins with a mark for each rank that receives from it, and one that says that its owner
# has dropped it, which comes when nobody receives from it any more.
MARKS_BYTES = mmap.PAGESIZE
MOST_RANKS = DROPPED = MARKS_BYTES - 1
# A smaller message leaves at once, as MPI's own do, whether its receiver is there or not.
LEAST_BYTES = 1 << 16
KEPT_BYTES = 1 << 30
# Segments of peers that stay mapped, and page-locked, for the next message.
MOST_MAPPED = 1024


class Segment:
    """Shared memory of this process: a page of marks, and room.

    Parameters
    ----------
    nbytes
        Of the room.
    gpu
        Whose driver page-locks it.
    """

    _serials = itertools.count(1)

    def __init__(self, nbytes: int, gpu: int) -> None:
        self.serial = next(self._serials)
        self.room = nbytes
        self.file = os.memfd_create("uzipmpi", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.file, MARKS_BYTES + nbytes)
            self.memory = _mapped(self.file, MARKS_BYTES + nbytes, gpu)
        except BaseException:
            os.close(self.file)
            raise
        weakref.finalize(self, _drop, self.file, self.memory).atexit = False

    @property
    def marks(self) -> Bytes:
        """One byte for each rank: whether it has done with the message."""
        return self.memory[:MOST_RANKS]


class Lease:
    """The room of a segment; the pool gets it back when nobody refers to the lease."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    @property
    def __array_interface__(self) -> dict[str, Any]:
        room = self.segment.memory[MARKS_BYTES:]
        return {
            "version": 3,
            "shape": room.shape,
            "typestr": "|u1",
            "data": (room.ctypes.data, False),
        }


class SharedPool:
    """Shared memory for messages of a GPU, page-locked, used again; threads share it.

    Parameters
    ----------
    gpu
        The GPU.
    """

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        self._kept: Kept[Segment] = Kept(KEPT_BYTES)

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of ``nbytes`` with arbitrary content.

        Raises
        ------
        OSError, RuntimeError
            If there is not so much memory, or it cannot be page-locked.
        """
        room = -(-rounded_up(max(nbytes, LEAST_BYTES)) // mmap.PAGESIZE) * mmap.PAGESIZE
        segment = self._kept.take(room) or Segment(room, self._gpu)
        lease = Lease(segment)
        weakref.finalize(lease, self._give, segment).atexit = False
        return np.asarray(lease)[:nbytes]

    def give(self, buffer: Bytes) -> None:
        """Do nothing: it goes back when nobody refers to it."""

    def _give(self, segment: Segment) -> None:
        self._kept.give(segment.room, segment)


class Returned:
    """An event: a rank has done with a message."""

    def __init__(self, segment: Segment, rank: int) -> None:
        self._marks, self._rank = segment.marks, rank

    def query(self) -> bool:
        """Return whether it has."""
        return bool(self._marks[self._rank])


def note(memory: Bytes, rank: int) -> tuple[Bytes, Returned] | None:
    """Return the note that stands for a message to a rank, and the event of its return.

    None if the message is small, or not in a segment of this process.
    """
    owner: Any = memory
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, Lease) or memory.size < LEAST_BYTES:
        return None
    segment = owner.segment
    segment.marks[rank] = 0
    content = np.empty(NOTE_BYTES, np.uint8)
    fields = os.getpid(), segment.file, segment.serial, segment.room, memory.size
    _NOTE.pack_into(content, 0, _MAGIC, *fields)  # type: ignore[arg-type]
    return content, Returned(segment, rank)


class Arrival(NamedTuple):
    """A message in a peer's segment.

    Attributes
    ----------
    memory, loan
        Where it is, and what tells the peer that it is no more needed; that happens also when
        nobody refers to the memory.
    """

    memory: Bytes
    loan: Loan


def arrival(message: Bytes, rank: int, gpu: int) -> Arrival | None:
    """Return the message that a note stands for; None if these bytes are no note.

    Parameters
    ----------
    message
        What MPI brought.
    rank
        This one, as the sender numbers it.
    gpu
        Whose driver page-locks the segment; -1: none.

    Raises
    ------
    OSError
        If the peer's memory cannot be opened: it has ended.
    """
    if message.size != NOTE_BYTES:
        return None
    magic, process, file, serial, room, nbytes = _NOTE.unpack_from(message)  # type: ignore[arg-type]
    if magic != _MAGIC or not 0 <= nbytes <= room:
        return None
    segment = _peers.segment((process, file, serial), room, gpu)
    loan = Loan(segment, nbytes, rank)
    return Arrival(np.asarray(loan), loan)


def give_back(memory: Bytes) -> None:
    """Tell the peer that a message is no more needed, if the memory is that of one."""
    loan: Any = getattr(memory, "base", None)
    if isinstance(loan, Loan):
        loan.give_back()


def is_lent(memory: Bytes) -> bool:
    """Whether memory is that of a message in a peer's segment."""
    return isinstance(getattr(memory, "base", None), Loan)


class Loan:
    """A message in a peer's segment.

    Attributes
    ----------
    give_back
        Call it to tell the peer at once; again, it does nothing.
    """

    def __init__(self, segment: Bytes, nbytes: int, rank: int) -> None:
        self.memory = segment[MARKS_BYTES : MARKS_BYTES + nbytes]
        self.give_back = weakref.finalize(self, _mark, segment, rank)
        self.give_back.atexit = False

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return dict(self.memory.__array_interface__)


def _drop(file: int, memory: Bytes) -> None:
    memory[DROPPED] = 1  # peers let go of it when they map another
    os.close(file)


def _mark(segment: Bytes, rank: int) -> None:
    segment[rank] = 1


class Peers:
    """Segments of other processes, the latest used ones."""

    def __init__(self) -> None:
        self._mapped: OrderedDict[tuple[int, int, int], Bytes] = OrderedDict()
        self._lock = threading.Lock()

    def segment(self, key: tuple[int, int, int], room: int, gpu: int) -> Bytes:
        """Return the memory of a segment: its process, file and serial number are the key."""
        with self._lock:
            if key in self._mapped:
                self._mapped.move_to_end(key)
                return self._mapped[key]
        process, number, _ = key
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = _mapped(file, MARKS_BYTES + room, gpu)
        finally:
            os.close(file)
        with self._lock:
            for old, mapped in list(self._mapped.items()):
                if mapped[DROPPED]:
                    del self._mapped[old]
            self._mapped[key] = memory
            if len(self._mapped) > MOST_MAPPED:
                self._mapped.popitem(last=False)
        return memory


_peers = Peers()


def _mapped(file: int, nbytes: int, gpu: int) -> Bytes:
    """Return the memory of a file, page-locked if it can be, until nobody refers to it."""
    mapping = mmap.mmap(file, nbytes)
    memory = np.frombuffer(mapping, np.uint8)
    if gpu < 0:
        return memory
    address = memory.ctypes.data
    with suppress(RuntimeError):  # the driver copies from and to any memory, if slower
        gpu_half().pin(address, nbytes, gpu)
        weakref.finalize(memory, _unpin, address, gpu).atexit = False
    return memory


def _unpin(address: int, gpu: int) -> None:
    with suppress(RuntimeError):
        gpu_half().unpin(address, gpu)


def reaches(comm: MPI.Intracomm, nodes: list[int]) -> bool:
    """Whether every rank opens the memory of all ranks on its node; collective, alike on all.

    Parameters
    ----------
    comm
        Nobody else communicates on it now.
    nodes
        For each rank the lowest rank on its node.
    """
    rank = comm.Get_rank()
    file = os.memfd_create("uzipmpi", os.MFD_CLOEXEC)
    try:
        token = os.urandom(16)
        os.write(file, token)
        offers = comm.allgather((os.getpid(), file, token))
        near = [offer for offer, node in zip(offers, nodes, strict=True) if node == nodes[rank]]
        found = comm.Get_size() <= MOST_RANKS and all(_opens(*offer) for offer in near)
        return all(comm.allgather(found))  # and all have looked before any closes its file
    finally:
        os.close(file)


def _opens(process: int, number: int, token: bytes) -> bool:
    try:
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.pread(file, len(token), 0) == token
    finally:
        os.close(file)
