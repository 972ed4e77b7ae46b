"""Scratch memory that is used again: a chunk costs no allocation and no page faults."""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np

from uzipmpi.typing import Bytes

__all__ = ["scratch"]

ALIGNMENT = 64  # a cache line, and the widest vector
KEPT_BYTES = 128 << 20


class Pool(threading.local):
    """Free buffers of the running thread, by size.

    At most ``KEPT_BYTES`` are kept; what is given back beyond that is left to be freed.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Bytes]] = defaultdict(list)
        self._kept_bytes = 0

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of ``nbytes`` with arbitrary content, aligned to a cache line."""
        if free := self._free.get(nbytes):
            self._kept_bytes -= nbytes
            return free.pop()
        memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + nbytes]

    def give(self, buffer: Bytes) -> None:
        """Give back a buffer from :meth:`take` that no transfer uses any more."""
        if self._kept_bytes + buffer.size <= KEPT_BYTES:
            self._kept_bytes += buffer.size
            self._free[buffer.size].append(buffer)


scratch = Pool()
