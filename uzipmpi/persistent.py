"""Persistent requests: each round that is started is a request of its own.

MPI's generalised requests cannot be restarted. So the object carries the MPI handle of the round
that is under way, and the null handle between rounds: MPI's own ``Waitall`` and the like take it,
and pass over it where it is inactive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Literal

from mpi4py import MPI

from uzipmpi import progress
from uzipmpi.engine import Task
from uzipmpi.requests import Completions
from uzipmpi.standin import StandIn

__all__ = ["Prequest"]

HANDLE_BYTES = MPI._sizeof(MPI.Request)
# A program may put a class of ours in its place.
BASE = MPI.Request

Start = Callable[[], MPI.Request]


class Prequest(Completions, MPI.Prequest, metaclass=StandIn, stands_for=MPI.Prequest):
    """A persistent request for an operation that may be compressed, or one of mpi4py's.

    All of mpi4py's functions that complete requests take it. To start it, use its own ``Start``,
    or ``uzipmpi.Prequest.Startall``, which also takes mpi4py's requests: mpi4py's ``Startall``
    raises ``MPI.ERR_REQUEST``. The class may take the place of ``MPI.Prequest``: all persistent
    requests are instances of it.

    Parameters
    ----------
    start
        Begins one round and returns its request; or a persistent request to wrap, None a null one.
    """

    _start: Start | None = None
    _round: MPI.Request | None = None
    _wrapped: MPI.Request | None = None

    def __new__(cls, start: Start | MPI.Request | None = None) -> Prequest:
        return super().__new__(cls, start if isinstance(start, BASE) else None)

    def __init__(self, start: Start | MPI.Request | None = None) -> None:
        if isinstance(start, BASE):
            self._wrapped = start
            self._start = getattr(start, "_start", None)
            self._round = getattr(start, "_round", None)
        else:
            self._start = start

    def __del__(self) -> None:
        # A plain round loses its buffers with the request; an operation of ours has its own.
        under_way = None if self._wrapped is not None else self.round
        if under_way is not None and self.operation is None and not MPI.Is_finalized():
            progress.release(under_way)

    def __bool__(self) -> bool:
        return self._start is not None or super().__bool__()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BASE):
            return NotImplemented
        if self._start is not None or getattr(other, "_start", None) is not None:
            # Between rounds the handle is null; the request is not.
            return self._start is getattr(other, "_start", None) or (
                super().__eq__(other) and super().__bool__()
            )
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    @property
    def round(self) -> MPI.Request | None:
        """The request of the round that is under way; None if the request is inactive."""
        if super().__eq__(MPI.REQUEST_NULL):
            self._round = None  # completed here, or by MPI
        return self._round

    @property
    def operation(self) -> Task | None:
        """The operation of the round that is under way, if it is one of uzipmpi's."""
        return getattr(self.round, "operation", None)

    def Start(self) -> None:
        """Begin a round.

        Raises
        ------
        mpi4py.MPI.Exception
            ``MPI.ERR_REQUEST`` if one is under way, or the request was freed.
        """
        if self._start is None:
            super().Start()
            return
        if self.round is not None:
            raise MPI.Exception(MPI.ERR_REQUEST)
        self._round = self._start()
        progress.share(self._round)
        self._follow(self._round)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Begin a round of each request, ours and others."""
        for request in requests:
            request.Start()

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Block until the round has ended; return at once if none is under way."""
        if (under_way := self.round) is None:
            return super().Wait(status)
        try:
            return under_way.Wait(status)
        finally:
            self._follow(under_way)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether no round is under way any more, and move all operations on."""
        if (under_way := self.round) is None:
            return super().Test(status)
        try:
            return under_way.Test(status)
        finally:
            self._follow(under_way)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Block as ``Wait`` does; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Test as ``Test`` does; there is no object to return."""
        return self.Test(status), None

    def Free(self) -> None:
        """Make the request a null request; a round that is under way goes on to its end.

        Raises
        ------
        mpi4py.MPI.Exception
            ``MPI.ERR_REQUEST`` if it is one already.
        """
        if self._start is None:
            super().Free()
            return
        if (under_way := self.round) is not None:
            progress.release(under_way)
        self._start = self._round = None
        self._follow(MPI.REQUEST_NULL)

    def free(self) -> None:
        """Free the request unless it is null."""
        if self:
            self.Free()

    def _follow(self, request: MPI.Request) -> None:
        """Take over the MPI handle of a request. MPI frees it once, as neither object does."""
        ctypes.memmove(MPI._addressof(self), MPI._addressof(request), HANDLE_BYTES)
