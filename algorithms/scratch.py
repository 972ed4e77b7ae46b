"""Scratch memory that is used again: a chunk costs no allocation and no page faults."""

from __future__ import annotations

from typing import Protocol, cast

import numpy as np

from uzipmpi.kernels.kept import Kept
from uzipmpi.transports.shared import give_back
from uzipmpi.typing import Bytes

__all__ = ["Buffers", "scratch"]

ALIGNMENT = 64  # a cache line, and the widest vector
KEPT_BYTES = 128 << 20


class Buffers(Protocol):
    """A source of memory that is used again.

    Attributes
    ----------
    gpu
        The GPU that reads and writes it; -1: none, the processor does.
    transport
        How messages of GPU buffers in it reach a peer; empty: it is for others.
    """

    gpu: int
    transport: str

    def arrivals(self, near: bool) -> Buffers:
        """Return where memory for messages that come in is from.

        Parameters
        ----------
        near
            The sender shares memory with this rank, so that little more than notes will come.
        """

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of ``nbytes`` with arbitrary content."""

    def give(self, buffer: Bytes) -> None:
        """Give back a buffer from :meth:`take` that no transfer uses any more."""


class Pool:
    """Free buffers, by size; threads share them.

    One thread often takes a buffer that another gives back: where each had its own, those of the
    progress thread would only become more. Sizes are rounded up, to four for each power of two, so
    that messages of all sizes share a few dozen buffers. At most ``KEPT_BYTES`` are kept, of the
    sizes that were used last.
    """

    gpu = -1
    transport = ""

    def __init__(self) -> None:
        self._kept: Kept[Bytes] = Kept(KEPT_BYTES)

    def arrivals(self, near: bool) -> Pool:
        """Return where memory for messages that come in is from."""
        return self

    @property
    def kept_bytes(self) -> int:
        """Size of the free buffers."""
        return self._kept.nbytes

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of ``nbytes`` with arbitrary content, aligned to a cache line."""
        room = rounded_up(nbytes)
        buffer = self._kept.take(room)
        if buffer is not None and buffer.size == nbytes:
            return buffer
        if buffer is None:
            memory = np.empty(room + ALIGNMENT, np.uint8)
        else:
            memory = cast(Bytes, buffer.base)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + nbytes]

    def give(self, buffer: Bytes) -> None:
        """Give back a buffer from :meth:`take`, or a peer's, that no transfer uses any more."""
        if not isinstance(buffer.base, np.ndarray):
            give_back(buffer)
            return
        self._kept.give(rounded_up(buffer.size), buffer)

    def clear(self) -> None:
        """Free what was given back."""
        self._kept.clear()


def rounded_up(nbytes: int) -> int:
    """Return the size of the buffer that is taken for ``nbytes``."""
    step = max((1 << max(nbytes - 1, 0).bit_length()) >> 3, ALIGNMENT)
    return max(-(-nbytes // step), 1) * step


scratch = Pool()
