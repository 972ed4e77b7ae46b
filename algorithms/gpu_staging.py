"""How much memory of a GPU holds frames on their way: claims to it, granted one after the other.

Nobody holds a claim while it waits for a peer, only while the GPU works. So each is given back
soon, and whoever waits for one gets it.
"""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["Claim", "Staging"]


class Claim:
    """Room for some bytes, asked for; an event that has come when there is room.

    Parameters
    ----------
    staging
        Where it is asked for.
    nbytes
        How much.
    limit
        How much may be taken at a time, with this; a larger claim is granted when it is alone.
    """

    def __init__(self, staging: Staging, nbytes: int, limit: int) -> None:
        self._staging = staging
        self.nbytes = nbytes
        self.limit = limit

    def query(self) -> bool:
        """Return whether there is room; it is taken then."""
        return self._staging.grant(self)

    def release(self) -> None:
        """Give the room back, or ask no more."""
        self._staging.release(self)


class Staging:
    """The claims to a GPU's memory, in the order in which they came; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Claim] = deque()
        self._granted: set[Claim] = set()
        self._held_bytes = 0

    def claim(self, nbytes: int, limit: int) -> Claim:
        """Ask for room."""
        claim = Claim(self, nbytes, limit)
        with self._lock:
            self._waiting.append(claim)
        return claim

    def grant(self, claim: Claim) -> bool:
        """Return whether a claim is granted, as it is if it is the first and there is room."""
        with self._lock:
            if claim in self._granted:
                return True
            fits = self._held_bytes + claim.nbytes <= claim.limit or not self._granted
            if not fits or self._waiting[0] is not claim:
                return False
            self._waiting.popleft()
            self._granted.add(claim)
            self._held_bytes += claim.nbytes
            return True

    def release(self, claim: Claim) -> None:
        """Take room back; a claim that was not granted waits no more."""
        with self._lock:
            if claim in self._granted:
                self._granted.remove(claim)
                self._held_bytes -= claim.nbytes
            elif claim in self._waiting:
                self._waiting.remove(claim)
