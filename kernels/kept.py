"""What was given back and is kept to be used again: by size, up to a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Kept"]

Item = TypeVar("Item")


class Kept(Generic[Item]):
    """Free items by size; the sizes that were not asked for the longest make room for others.

    Threads share it, and finalisers give to it, which may run amid anything.

    Parameters
    ----------
    most_bytes
        Most bytes that are kept.
    release
        Is called for what there is no room for any more, outside the lock.
    """

    def __init__(
        self, most_bytes: int, release: Callable[[Item], None] = lambda item: None
    ) -> None:
        self._most_bytes = most_bytes
        self._release = release
        self._nbytes = 0
        self._free: OrderedDict[int, list[Item]] = OrderedDict()  # the latest used size last
        self._lock = threading.Lock()
        self._given: deque[tuple[int, Item]] = deque()

    @property
    def nbytes(self) -> int:
        """Size of all that is kept."""
        return self._nbytes

    def take(self, size: int) -> Item | None:
        """Return an item of this size, None if there is none."""
        item = None
        with self._lock:
            if free := self._free.get(size):
                self._free.move_to_end(size)
                self._nbytes -= size
                item = free.pop()
        self._settle()
        return item

    def give(self, size: int, item: Item) -> None:
        """Keep an item."""
        self._given.append((size, item))
        self._settle()

    def clear(self) -> None:
        """Release all that is kept."""
        with self._lock:
            items = [item for free in self._free.values() for item in free]
            self._free.clear()
            self._nbytes = 0
        for item in items:
            self._release(item)

    def _settle(self) -> None:
        """Keep what was given; where the lock is taken, whoever has it does so afterwards."""
        while self._given and self._lock.acquire(blocking=False):
            surplus = []
            try:
                while self._given:
                    size, item = self._given.popleft()
                    self._free.setdefault(size, []).append(item)
                    self._free.move_to_end(size)
                    self._nbytes += size
                while self._nbytes > self._most_bytes:
                    surplus.append(self._drop())
            finally:
                self._lock.release()
            for item in surplus:
                self._release(item)

    def _drop(self) -> Item:
        size, free = next((size, free) for size, free in self._free.items() if free)
        self._nbytes -= size
        item = free.pop(0)
        if not free:
            del self._free[size]
        return item
