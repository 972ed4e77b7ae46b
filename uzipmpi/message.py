"""Messages that were matched by a probe, before they are received."""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from uzipmpi import buffers, receiving
from uzipmpi.engine import engine
from uzipmpi.handle import Endpoint
from uzipmpi.landing import land_held
from uzipmpi.matching import Held
from uzipmpi.staging import Staged, when_complete
from uzipmpi.standin import StandIn

__all__ = ["Message", "improbe", "mprobe"]

HANDLE_BYTES = MPI._sizeof(MPI.Message)
# A program may put the class below in its place.
BASE = MPI.Message

Self = TypeVar("Self", bound="Message")


class Message(MPI.Message, metaclass=StandIn, stands_for=MPI.Message):
    """A matched message, whose values may come in parts, or one of mpi4py's.

    The class may take the place of ``MPI.Message``: all messages are instances of it.

    Parameters
    ----------
    message
        The message to wrap; a null message by default.
    held
        What is known of it, if a communicator that compresses has matched it.
    end
        That communicator.
    """

    _held: Held | None = None
    _end: Endpoint | None = None

    def __new__(
        cls: type[Self],
        message: MPI.Message | None = None,
        held: Held | None = None,
        end: Endpoint | None = None,
    ) -> Self:
        return super().__new__(cls, message)

    def __init__(
        self,
        message: MPI.Message | None = None,
        held: Held | None = None,
        end: Endpoint | None = None,
    ) -> None:
        self._held = held or getattr(message, "_held", None)
        self._end = end or getattr(message, "_end", None)

    def __bool__(self) -> bool:
        return self._held is not None or super().__bool__()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, BASE):
            return NotImplemented
        # A message that was received to look at it has no MPI handle any more.
        return super().__eq__(other) and bool(self) == bool(other) == super().__bool__()

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def Recv(self, buf: Any, status: MPI.Status | None = None) -> None:
        """Receive the message; see :meth:`mpi4py.MPI.Message.Recv`."""
        self._check()
        if self._held is None or self._end is None:
            staged = Staged(buf, receives=True, device=True)
            super().Recv(buffers.message(staged.spec), status)
            staged.finish()
            return
        landing = land_held(self._end, self._held, buf)
        try:
            receiving.recv_held(self._end, self._held, landing, status)
        finally:
            self._follow(self._held)

    def Irecv(self, buf: Any) -> MPI.Request:
        """Begin to receive the message; see :meth:`mpi4py.MPI.Message.Irecv`."""
        self._check()
        if self._held is None or self._end is None:
            staged = Staged(buf, receives=True, device=True)
            request = super().Irecv(buffers.message(staged.spec))
            return when_complete(request, staged) if staged.copied else request
        landing = land_held(self._end, self._held, buf)
        try:
            return receiving.irecv_held(self._end, self._held, landing)
        finally:
            self._follow(self._held)

    def recv(self, status: MPI.Status | None = None) -> Any:
        """Receive an object; see :meth:`mpi4py.MPI.Message.recv`."""
        self._check()
        if self._held is None:
            return super().recv(status)
        pickled = np.empty(self._held.nbytes, np.uint8)
        self.Recv(pickled, status)
        return MPI.pickle.loads(pickled) if pickled.size else None

    def irecv(self) -> MPI.Request:
        """Begin to receive an object; see :meth:`mpi4py.MPI.Message.irecv`."""
        self._check()
        if self._held is None or self._end is None:
            return super().irecv()
        try:
            return receiving.irecv_object(self._end, self._held)
        finally:
            self._follow(self._held)

    @classmethod
    def fromhandle(cls: type[Self], handle: int) -> Self:
        """Return the message of an MPI handle."""
        return cls(super().fromhandle(handle))

    @classmethod
    def fromint(cls: type[Self], arg: int, /) -> Self:
        """Return the message of an integer handle."""
        return cls(super().fromint(arg))

    @classmethod
    def f2py(cls: type[Self], arg: int) -> Self:
        """Return the message of a Fortran handle."""
        return cls(super().f2py(arg))

    @classmethod
    def Probe(
        cls: type[Self],
        comm: MPI.Comm,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Self:
        """Wait for a message and match it, as ``comm.Mprobe`` does."""
        return cls._of(comm.Mprobe(source, tag, status))

    @classmethod
    def Iprobe(
        cls: type[Self],
        comm: MPI.Comm,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Self | None:
        """Match a message if there is one, as ``comm.Improbe`` does."""
        message = comm.Improbe(source, tag, status)
        return None if message is None else cls._of(message)

    @classmethod
    def probe(
        cls: type[Self],
        comm: MPI.Comm,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Self:
        """Wait for the message of an object and match it, as ``comm.mprobe`` does."""
        return cls._of(comm.mprobe(source, tag, status))

    @classmethod
    def iprobe(
        cls: type[Self],
        comm: MPI.Comm,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Self | None:
        """Match the message of an object if there is one, as ``comm.improbe`` does."""
        message = comm.improbe(source, tag, status)
        return None if message is None else cls._of(message)

    @classmethod
    def _of(cls: type[Self], message: MPI.Message) -> Self:
        """Return a message as one of this class."""
        return message if type(message) is cls else cls(message)

    def _check(self) -> None:
        """Complain about a null message, for which Open MPI ends the program."""
        if not self:
            raise MPI.Exception(MPI.ERR_REQUEST)

    def _follow(self, held: Held) -> None:
        """Become null if the message has been received."""
        if held.message:
            return
        self._held = None
        ctypes.memmove(MPI._addressof(self), MPI._addressof(MPI.MESSAGE_NULL), HANDLE_BYTES)


def mprobe(end: Endpoint, source: int, tag: int, status: MPI.Status | None) -> Message:
    """Wait for a message and match it."""
    found: Message | None = None

    def matched() -> bool:
        nonlocal found
        found = improbe(end, source, tag, status)
        return found is not None

    engine.wait_until(matched)
    assert found is not None
    return found


def improbe(end: Endpoint, source: int, tag: int, status: MPI.Status | None) -> Message | None:
    """Match a message if there is one."""
    status = MPI.Status() if status is None else status
    held = end.handle.matching.take(end.mpi, source, tag, status)
    return None if held is None else Message(held.message, held, end)
