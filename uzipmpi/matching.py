"""Messages that a probe had to take from MPI, so that it can say what their senders sent.

MPI reports of a message that goes in parts the size of its head. To look into it, a probe takes
it, and before it, in their order, all other messages from that rank: what is held here is always
older than what MPI still has of the same sender. So receives and probes that look here first meet
the messages in MPI's order.

Before anything was held on a communicator, receives go straight to MPI. From then on each is posted
under the lock, so that no message can be taken between its look at the list and its posting.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from uzipmpi.errors import FormatError
from uzipmpi.head import HEAD_BYTES, Head
from uzipmpi.typing import Bytes

__all__ = ["Held", "Matching"]

Posted = TypeVar("Posted")


@dataclass(frozen=True)
class Held:
    """A message that was taken from MPI, and not yet received by the user.

    Attributes
    ----------
    source, tag, nbytes
        What was sent; ``nbytes`` are the bytes of values.
    message
        The message itself, which MPI still has; None if ``content`` is there.
    content
        The ``HEAD_BYTES`` bytes of a message of that length.
    """

    source: int
    tag: int
    nbytes: int
    message: MPI.Message | None
    content: Bytes | None = None

    @classmethod
    def of(cls, message: MPI.Message, status: MPI.Status) -> Held:
        """Look at a message that MPI has matched; one as long as a head is received."""
        source, tag, nbytes = status.source, status.tag, status.Get_elements(MPI.BYTE)
        if nbytes != HEAD_BYTES or source == MPI.PROC_NULL:
            return cls(source, tag, nbytes, message)
        content = np.empty(HEAD_BYTES, np.uint8)
        message.Recv([content, HEAD_BYTES, MPI.BYTE])
        try:
            head = Head.unpack(content)
        except FormatError:
            head = None  # whoever receives it meets the error
        return cls(source, tag, HEAD_BYTES if head is None else head.nbytes, None, content)

    def matches(self, source: int, tag: int) -> bool:
        """Whether a receive with this source and tag takes the message."""
        return source in (self.source, MPI.ANY_SOURCE) and tag in (self.tag, MPI.ANY_TAG)

    def report(self, status: MPI.Status, nbytes: int | None = None) -> None:
        """Fill in a status: of the values, or of so many bytes of the message itself."""
        status.Set_source(self.source)
        status.Set_tag(self.tag)
        status.Set_elements(MPI.BYTE, self.nbytes if nbytes is None else nbytes)
        status.Set_cancelled(False)


class Matching:
    """The held messages of a communicator on this rank.

    Attributes
    ----------
    active
        Whether anything was ever held: from then on receives have to look here.
    """

    def __init__(self) -> None:
        self.active = False
        self._held: list[Held] = []
        self._lock = threading.Lock()

    def probe(self, mpi: MPI.Intracomm, source: int, tag: int, status: MPI.Status) -> bool:
        """Return whether there is a message, and what its sender sent; never blocks."""
        with self._lock:
            held = self._find(source, tag)
            if held is None:
                if not mpi.Iprobe(source, tag, status):
                    return False
                if status.Get_elements(MPI.BYTE) != HEAD_BYTES:
                    return True
                held = self._hold(mpi, status.source, status.tag)
                if held is None:
                    return False  # a receive of another thread was faster
        held.report(status)
        return True

    def take(self, mpi: MPI.Intracomm, source: int, tag: int, status: MPI.Status) -> Held | None:
        """Take a message for a matched receive, if there is one; never blocks."""
        with self._lock:
            held = self._take(source, tag)
            if held is None:
                message = mpi.Improbe(source, tag, status)
                if message is None:
                    return None
                held = Held.of(message, status)
        held.report(status)
        return held

    def receive(self, source: int, tag: int, post: Callable[[], Posted]) -> Held | Posted:
        """Take the held message that a receive matches; post the receive if none does."""
        with self._lock:
            held = self._take(source, tag)
            return post() if held is None else held

    def _hold(self, mpi: MPI.Intracomm, source: int, tag: int) -> Held | None:
        """Take the messages of a rank from MPI up to the first one with this tag."""
        if not self.active:
            self.active = True
            if threading.active_count() > 1:
                # Another thread may just have seen that receives go to MPI: let it post its own.
                time.sleep(2 * sys.getswitchinterval())
        status = MPI.Status()
        while (message := mpi.Improbe(source, MPI.ANY_TAG, status)) is not None:
            held = Held.of(message, status)
            self._held.append(held)
            if held.matches(source, tag):
                return held
        return None

    def _find(self, source: int, tag: int) -> Held | None:
        return next((held for held in self._held if held.matches(source, tag)), None)

    def _take(self, source: int, tag: int) -> Held | None:
        for index, held in enumerate(self._held):
            if held.matches(source, tag):
                return self._held.pop(index)
        return None
