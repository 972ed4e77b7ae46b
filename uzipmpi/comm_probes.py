"""Probes of the communicator, and receives of objects, which look for held messages as well.

On a communicator that compresses they poll: another thread's probe may take the message that a
blocking call of MPI's would wait for.
"""

from __future__ import annotations

from typing import Any, Literal

from mpi4py import MPI

from uzipmpi.comm_base import CommBase
from uzipmpi.engine import engine
from uzipmpi.head import HEAD_BYTES
from uzipmpi.matching import Held
from uzipmpi.message import Message, improbe, mprobe

__all__ = ["Probes"]


class Probes(CommBase):
    """Looking at messages before they are received, as mpi4py has it."""

    def Probe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Literal[True]:
        """Wait for a message; see :meth:`mpi4py.MPI.Comm.Probe`."""
        if self._plain_wire or source == MPI.PROC_NULL:
            return super().Probe(source, tag, status)
        end = self._endpoint
        found = MPI.Status() if status is None else status
        engine.wait_until(lambda: end.handle.matching.probe(end.mpi, source, tag, found))
        return True

    def Iprobe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> bool:
        """Return whether there is a message; see :meth:`mpi4py.MPI.Comm.Iprobe`."""
        if self._plain_wire or source == MPI.PROC_NULL:
            return super().Iprobe(source, tag, status)
        end = self._endpoint
        found = MPI.Status() if status is None else status
        return end.handle.matching.probe(end.mpi, source, tag, found)

    def Mprobe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> MPI.Message:
        """Wait for a message and match it; see :meth:`mpi4py.MPI.Comm.Mprobe`."""
        if self._plain_wire or source == MPI.PROC_NULL:
            return Message(super().Mprobe(source, tag, status))
        return mprobe(self._endpoint, source, tag, status)

    def Improbe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> MPI.Message | None:
        """Match a message if there is one; see :meth:`mpi4py.MPI.Comm.Improbe`."""
        if self._plain_wire or source == MPI.PROC_NULL:
            message = super().Improbe(source, tag, status)
            return None if message is None else Message(message)
        return improbe(self._endpoint, source, tag, status)

    # Objects

    def probe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Literal[True]:
        """Wait for a message; see :meth:`mpi4py.MPI.Comm.probe`."""
        return self.Probe(source, tag, status)

    def iprobe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> bool:
        """Return whether there is a message; see :meth:`mpi4py.MPI.Comm.iprobe`."""
        return self.Iprobe(source, tag, status)

    def mprobe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> MPI.Message:
        """Wait for an object's message and match it; see :meth:`mpi4py.MPI.Comm.mprobe`."""
        if self._plain_wire or source == MPI.PROC_NULL:
            return super().mprobe(source, tag, status)
        return mprobe(self._endpoint, source, tag, status)

    def improbe(
        self,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> MPI.Message | None:
        """Match an object's message if there is one; see :meth:`mpi4py.MPI.Comm.improbe`."""
        if self._plain_wire or source == MPI.PROC_NULL:
            return super().improbe(source, tag, status)
        return improbe(self._endpoint, source, tag, status)

    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """Receive an object; see :meth:`mpi4py.MPI.Comm.recv`.

        Of a buffer that was sent the values are received, as its sender waits for that, and then
        taken for an object, as mpi4py does.
        """
        if self._matching.active and source != MPI.PROC_NULL:
            return mprobe(self._endpoint, source, tag, None).recv(status)
        if self._plain_wire or source == MPI.PROC_NULL or buf is not None:
            return super().recv(buf, source, tag, status)
        found = MPI.Status()
        message = super().mprobe(source, tag, found)  # blocks in MPI; the one above polls
        if found.Get_elements(MPI.BYTE) != HEAD_BYTES:
            return message.recv(status)
        return Message(None, Held.of(message, found), self._endpoint).recv(status)

    def irecv(
        self, buf: Any = None, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> MPI.Request:
        """Begin to receive an object; see :meth:`mpi4py.MPI.Comm.irecv`."""
        if not self._matching.active or source == MPI.PROC_NULL:
            return super().irecv(buf, source, tag)
        irecv = super().irecv
        found = self._matching.receive(source, tag, lambda: irecv(buf, source, tag))
        if isinstance(found, Held):
            return Message(found.message, found, self._endpoint).irecv()
        return found

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """Send and receive objects; see :meth:`mpi4py.MPI.Comm.sendrecv`."""
        if source == MPI.PROC_NULL or (self._plain_wire and not self._matching.active):
            return super().sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        request = self.isend(sendobj, dest, sendtag)
        received = self.recv(recvbuf, source, recvtag, status)
        request.wait()
        return received
