"""A nonblocking send or receive whose size can be asked for after it is complete."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
from mpi4py import MPI

from uzipmpi.typing import Bytes

__all__ = ["Arrival", "Event", "Ready", "Transfer", "give_way", "wait_any"]

Self = TypeVar("Self", bound="Transfer")

STATUS_BYTES = MPI._sizeof(MPI.Status)
BASE = MPI.Request  # a program may put a class of ours in its place


class Transfer(MPI.Request):
    """A request that keeps its buffer and remembers what it received.

    MPI reports the size of a message once, to whoever completes its request. :func:`wait_any`
    passes it on, so a transfer may be completed by another than its owner.

    Parameters
    ----------
    request
        The request to wrap.
    memory
        The buffer that it sends or fills.
    """

    def __new__(cls: type[Self], request: MPI.Request, memory: Bytes | None = None) -> Self:
        return super().__new__(cls, request)

    def __init__(self, request: MPI.Request, memory: Bytes | None = None) -> None:
        self.memory = memory
        self._status: MPI.Status | None = None
        self._complete = False
        self._nbytes = 0
        self._error: Exception | None = None

    def finished(self) -> bool:
        """Return whether the transfer is complete; never blocks.

        Raises
        ------
        mpi4py.MPI.Exception
            Once, if the transfer failed, as by a message larger than its buffer. It is complete.
        """
        if not self._complete and not self.poll():
            return False
        if self._error is not None:
            failure, self._error = self._error, None
            raise failure
        return True

    def poll(self) -> bool:
        """Return whether the transfer is complete, or has failed; never blocks."""
        if not self._complete:
            status = self._status
            if status is None:
                status = self._status = MPI.Status()
            try:
                if self.Test(status):
                    self.complete(status)
            except MPI.Exception as error:
                self.fail(error)
        return self._complete

    @property
    def hurried(self) -> bool:
        """Whether microseconds count: MPI moves GPU memory piece by piece, when it is asked."""
        return self.memory is not None and not isinstance(self.memory, np.ndarray)

    @property
    def nbytes(self) -> int:
        """Bytes received; 0 if that failed or is not complete. Of a send it says nothing."""
        return self._nbytes

    def complete(self, status: MPI.Status) -> None:
        """Note that MPI completed the request with this status."""
        self._complete = True
        # Of a receive into one large derived type only the elements count. Sends have no count.
        elements = status.Get_elements(MPI.BYTE) if status.source >= 0 else 0
        self._nbytes = max(elements, 0)

    def fail(self, error: Exception) -> None:
        """Note that MPI completed the request with an error, which :meth:`finished` will raise."""
        self._complete = True
        self._error = error


class Arrival(Transfer):
    """A receive that remembers its whole status, which is None until it has succeeded."""

    status: MPI.Status | None = None

    @classmethod
    def of(cls, status: MPI.Status, memory: Bytes) -> Arrival:
        """Return the receive of a message that is in its place already."""
        arrival = cls(BASE(), memory)
        arrival.complete(status)
        return arrival

    def complete(self, status: MPI.Status) -> None:
        """Note that MPI completed the request with this status."""
        super().complete(status)
        self.status = status

    def wait_into(self, status: MPI.Status) -> None:
        """Block until it is complete and fill in somebody's status."""
        if self.status is None:
            self.Wait(status)
            return
        ctypes.memmove(MPI._addressof(status), MPI._addressof(self.status), STATUS_BYTES)


class Event(Protocol):
    """A point in what a GPU has to do."""

    def query(self) -> bool:
        """Return whether it was reached; never blocks."""


class Ready(Transfer):
    """Work on a GPU that is waited for as a transfer is; to MPI it is a null request."""

    def __new__(cls, event: Event) -> Ready:
        return super().__new__(cls, BASE())

    def __init__(self, event: Event) -> None:
        super().__init__(self)
        self._event = event

    @property
    def hurried(self) -> bool:
        """Whether microseconds count: the work of a GPU takes no more."""
        return True

    def poll(self) -> bool:
        """Return whether the work is done, or has failed; never blocks."""
        if not self._complete:
            try:
                self._complete = self._event.query()
            except RuntimeError as error:
                self.fail(error)
        return self._complete


def give_way() -> None:
    """Let whoever shares the core go on; to sleep, for however short a time, takes 55 us."""
    os.sched_yield()


def wait_any(requests: Sequence[MPI.Request]) -> None:
    """Block until one of some requests is complete; return at once if a GPU is waited for too.

    A failed :class:`Transfer` is complete too: its owner meets the error in
    :meth:`Transfer.finished`. Requests that are already null are passed over; if all are, the
    function returns at once.
    """
    if any(type(request) is Ready for request in requests):
        give_way()  # it takes microseconds, and MPI cannot wait for it
        return
    status = MPI.Status()
    active = [request for request in requests if request != MPI.REQUEST_NULL]
    try:
        index = BASE.Waitany(active, status)
    except MPI.Exception as error:
        # MPI does not tell which one failed, but completed requests are null.
        failed = [request for request in active if request == MPI.REQUEST_NULL]
        transfers = [request for request in failed if isinstance(request, Transfer)]
        if not failed or len(transfers) < len(failed):
            raise
        for transfer in transfers:
            transfer.fail(error)
        return
    if index != MPI.UNDEFINED and isinstance(done := active[index], Transfer):
        done.complete(status)
