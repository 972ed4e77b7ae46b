"""The messages of the communicator: thin methods over :mod:`uzipmpi.p2p`, fast for small ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from uzipmpi import p2p
from uzipmpi.buffers import INT_MAX, plain_array
from uzipmpi.comm_base import CommBase
from uzipmpi.head import HEAD_BYTES

__all__ = ["Messages"]


class Messages(CommBase):
    """Point to point, as mpi4py has it."""

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send; see :meth:`mpi4py.MPI.Comm.Send`."""
        if (
            type(buf) is np.ndarray
            and (nbytes := buf.nbytes) <= self._plain_bytes
            and nbytes != HEAD_BYTES
            and (bytes_ := plain_array(buf)) is not None
        ):
            super().Send(bytes_, dest, tag)
            self._sent.add_plain(nbytes)
        else:
            p2p.send(self._endpoint, buf, dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Begin to send; see :meth:`mpi4py.MPI.Comm.Isend`."""
        if (
            type(buf) is np.ndarray
            and (nbytes := buf.nbytes) <= self._plain_bytes
            and nbytes != HEAD_BYTES
            and (bytes_ := plain_array(buf)) is not None
        ):
            request = super().Isend(bytes_, dest, tag)
            self._isent.add_plain(nbytes)
            return request
        return p2p.isend(self._endpoint, buf, dest, tag)

    def Recv(
        self,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Receive; see :meth:`mpi4py.MPI.Comm.Recv`."""
        if self._end is None or type(buf) is not np.ndarray or (bytes_ := plain_array(buf)) is None:
            p2p.recv(self._endpoint, buf, source, tag, status)
            return
        buf, nbytes = bytes_, buf.nbytes
        if nbytes <= INT_MAX and self._plain_wire:
            super().Recv(buf, source, tag, status)
            self._received.add_plain(nbytes)
        elif HEAD_BYTES <= nbytes <= INT_MAX:
            status = MPI.Status() if status is None else status
            super().Recv(buf, source, tag, status)
            if status.count == HEAD_BYTES:
                p2p.arrived(self._end, buf, status)
            else:
                self._received.add_plain(status.count)
        elif nbytes < HEAD_BYTES and buf.flags.carray:
            self._received.add_plain(p2p.recv_short(self._end, buf, source, tag, status))
        else:
            p2p.recv(self._end, buf, source, tag, status)

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        """Begin to receive; see :meth:`mpi4py.MPI.Comm.Irecv`."""
        if self._plain_wire and (small := self._small(buf)) is not None:
            return super().Irecv(small, source, tag)
        return p2p.irecv(self._endpoint, buf, source, tag)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Send and receive; see :meth:`mpi4py.MPI.Comm.Sendrecv`."""
        sending = p2p.Direction(sendbuf, dest, sendtag)
        receiving = p2p.Direction(recvbuf, source, recvtag)
        p2p.exchange(self._endpoint, sending, receiving, status)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Exchange the content of a buffer; see :meth:`mpi4py.MPI.Comm.Sendrecv_replace`."""
        sending = p2p.Direction(buf, dest, sendtag)
        receiving = p2p.Direction(buf, source, recvtag)
        p2p.exchange_in_place(self._endpoint, sending, receiving, status)
