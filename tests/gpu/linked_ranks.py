"""Ranks of one process, linked to each other, each with a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from uzipmpi.kernels import device, link
from uzipmpi.kernels.device import DeviceMemory, Stream, gpu_half
from uzipmpi.typing import Bytes, DType

GUARD = 64  # bytes on both sides of memory, which must stay as they are
POISON = 0x5A
TIMEOUT = 20.0


class LinkedRank:
    """A rank with links to others, and memory on its GPU."""

    def __init__(self, rank: int, size: int, staging_bytes: int = 0) -> None:
        self.rank = rank
        self.device = rank % gpu_half().device_count()
        self.links = self._links(rank, size, staging_bytes)
        self.stream = Stream(self.device)
        self._guarded: list[tuple[DeviceMemory, int]] = []
        self._statuses: list[Bytes] = []

    def _links(self, rank: int, size: int, staging_bytes: int) -> Any:
        return link.Links(self.device, rank, size, staging_bytes)

    def put(self, values: Bytes, offset: int = 0) -> DeviceMemory:
        """Return a guarded copy of bytes, ``offset`` bytes behind a multiple of 16."""
        whole = np.full(values.size + 2 * GUARD + offset, POISON, np.uint8)
        start = GUARD + offset
        whole[start : start + values.size] = values
        there = device.allocate(whole.size, self.device)
        self.stream.copy(there, whole)
        self.stream.synchronize()  # the bytes may be gone soon
        self._guarded.append((there, start))
        return there[start : start + values.size]

    def room(self, nbytes: int, offset: int = 0) -> DeviceMemory:
        """Return guarded memory with arbitrary content."""
        return self.put(np.full(nbytes, POISON, np.uint8), offset)

    def get(self, memory: DeviceMemory) -> Bytes:
        """Return what is in memory once all that is queued is done."""
        out = device.pinned(memory.size, self.device)
        self.stream.copy(out, memory)
        self.stream.synchronize()
        return out

    def exchange(self, dtype: DType, **arguments: Any) -> None:
        """Queue an exchange."""
        status = device.pinned(4, self.device)
        status[:] = 0
        self._statuses.append(status)
        arguments.setdefault("timeout", TIMEOUT)
        link.prepare(self.links, dtype, status=status, **arguments).launch(self.stream)

    def statuses(self) -> list[int]:
        """Wait for all that is queued; return the status of each exchange since the last time."""
        self.stream.synchronize()
        found = [int(status.view(np.uint32)[0]) for status in self._statuses]
        self._statuses.clear()
        return found

    def finish(self) -> list[int]:
        """Return the same, once all that surrounds memory was found as it had been."""
        found = self.statuses()
        for memory, start in self._guarded:
            around = self.get(memory)
            size = memory.size - start - GUARD
            assert (around[:start] == POISON).all(), "written before memory's beginning"
            assert (around[start + size :] == POISON).all(), "written behind memory's end"
        return found


def linked(n: int, staging_bytes: int = 0) -> list[LinkedRank]:
    """Return ranks that are connected; without staging bytes with as few slots as can be."""
    ranks = [LinkedRank(rank, n, staging_bytes) for rank in range(n)]
    for one in ranks:
        for other in ranks:
            if one is not other:
                one.links.connect(other.rank, other.links.handle)
    return ranks


def finish(ranks: Sequence[LinkedRank]) -> list[int]:
    """Wait for all ranks; return all statuses."""
    return [status for rank in ranks for status in rank.finish()]
