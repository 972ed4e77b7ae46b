"""The messages of the communicator: thin methods over :mod:`uzipmpi.p2p`, fast for small ones."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from mpi4py import MPI

from uzipmpi import buffers, p2p, receiving, sending, streamed
from uzipmpi.buffers import INT_MAX, plain_array
from uzipmpi.comm_probes import Probes
from uzipmpi.head import HEAD_BYTES
from uzipmpi.persistent import Prequest
from uzipmpi.staging import stand_in
from uzipmpi.streamed import Message

__all__ = ["Messages"]

HAS_ISENDRECV = MPI.Get_version() >= (4, 0)


class Messages(Probes):
    """Point to point, as mpi4py has it."""

    def Send(self, buf: Any, dest: int, tag: int = 0, *, stream: Any = None) -> None:
        """Send; see :meth:`mpi4py.MPI.Comm.Send`, and ``streamed.py`` for ``stream``."""
        if stream is not None and streamed.exchange(
            self._endpoint, stream, sent=Message(buf, dest, tag)
        ):
            return
        if (
            type(buf) is np.ndarray
            and (nbytes := buf.nbytes) <= self._plain_bytes
            and nbytes != HEAD_BYTES
            and (bytes_ := plain_array(buf)) is not None
        ):
            super().Send(bytes_, dest, tag)
            self._sent.add_plain(nbytes)
        else:
            sending.send(self._endpoint, buf, dest, tag)

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
        return sending.isend(self._endpoint, buf, dest, tag)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send, and return when the receive has begun; see :meth:`mpi4py.MPI.Comm.Ssend`."""
        sending.send(self._endpoint, buf, dest, tag, "Ssend")

    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send to a receive that is posted; see :meth:`mpi4py.MPI.Comm.Rsend`."""
        sending.send(self._endpoint, buf, dest, tag, "Rsend")

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send uncompressed, from the attached buffer; see :meth:`mpi4py.MPI.Comm.Bsend`."""
        sending.bsend(self._endpoint, buf, dest, tag)

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Begin a synchronous send; see :meth:`mpi4py.MPI.Comm.Issend`."""
        return sending.isend(self._endpoint, buf, dest, tag, "Issend")

    def Irsend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Begin to send to a receive that is posted; see :meth:`mpi4py.MPI.Comm.Irsend`."""
        return sending.isend(self._endpoint, buf, dest, tag, "Irsend")

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:
        """Begin to send uncompressed, from the attached buffer; see
        :meth:`mpi4py.MPI.Comm.Ibsend`.
        """
        return sending.ibsend(self._endpoint, buf, dest, tag)

    def Recv(
        self,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
        *,
        stream: Any = None,
    ) -> None:
        """Receive; see :meth:`mpi4py.MPI.Comm.Recv`, and ``streamed.py`` for ``stream``."""
        if stream is not None and streamed.exchange(
            self._endpoint, stream, received=Message(buf, source, tag)
        ):
            return
        if (
            self._end is None
            or self._matching.active
            or type(buf) is not np.ndarray
            or (bytes_ := plain_array(buf)) is None
        ):
            receiving.recv(self._endpoint, buf, source, tag, status)
            return
        buf, nbytes = bytes_, buf.nbytes
        if nbytes <= INT_MAX and self._plain_wire:
            super().Recv(buf, source, tag, status)
            self._received.add_plain(nbytes)
        elif HEAD_BYTES <= nbytes <= INT_MAX:
            status = MPI.Status() if status is None else status
            super().Recv(buf, source, tag, status)
            if status.count == HEAD_BYTES:
                receiving.arrived(self._end, buf, status)
            else:
                self._received.add_plain(status.count)
        elif nbytes < HEAD_BYTES and buf.flags.carray:
            self._received.add_plain(receiving.recv_short(self._end, buf, source, tag, status))
        else:
            receiving.recv(self._end, buf, source, tag, status)

    def Irecv(self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> MPI.Request:
        """Begin to receive; see :meth:`mpi4py.MPI.Comm.Irecv`."""
        if self._plain_wire and (small := self._small(buf)) is not None:
            return super().Irecv(small, source, tag)
        return receiving.irecv(self._endpoint, buf, source, tag)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
        *,
        stream: Any = None,
    ) -> None:
        """Send and receive; see :meth:`mpi4py.MPI.Comm.Sendrecv`; ``stream`` as in :meth:`Send`."""
        if stream is not None and streamed.exchange(
            self._endpoint,
            stream,
            Message(sendbuf, dest, sendtag),
            Message(recvbuf, source, recvtag),
        ):
            return
        outgoing = p2p.Direction(sendbuf, dest, sendtag)
        incoming = p2p.Direction(recvbuf, source, recvtag)
        p2p.exchange(self._endpoint, outgoing, incoming, status)

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
        outgoing = p2p.Direction(buf, dest, sendtag)
        incoming = p2p.Direction(buf, source, recvtag)
        p2p.exchange_in_place(self._endpoint, outgoing, incoming, status)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
    ) -> MPI.Request:
        """Begin to send and receive; see :meth:`mpi4py.MPI.Comm.Isendrecv`."""
        if self._plain_wire and HAS_ISENDRECV and not _on_device(sendbuf, recvbuf):
            sendbuf, recvbuf = buffers.message(sendbuf), buffers.message(recvbuf)
            return super().Isendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag)
        outgoing = p2p.Direction(sendbuf, dest, sendtag)
        incoming = p2p.Direction(recvbuf, source, recvtag)
        return p2p.iexchange(self._endpoint, outgoing, incoming)

    def Isendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
    ) -> MPI.Request:
        """Begin to exchange the content of a buffer; see
        :meth:`mpi4py.MPI.Comm.Isendrecv_replace`.
        """
        if self._plain_wire and HAS_ISENDRECV and not _on_device(buf):
            return super().Isendrecv_replace(buffers.message(buf), dest, sendtag, source, recvtag)
        outgoing = p2p.Direction(buf, dest, sendtag)
        incoming = p2p.Direction(buf, source, recvtag)
        return p2p.iexchange_in_place(self._endpoint, outgoing, incoming)

    # Persistent requests

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """Make a persistent request for a send; see :meth:`mpi4py.MPI.Comm.Send_init`."""
        plain = super().Send_init(buffers.message(stand_in(buf)), dest, tag)
        return self._persistent_send(plain, buf, dest, tag, "Isend")

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """Make one for a synchronous send; see :meth:`mpi4py.MPI.Comm.Ssend_init`."""
        plain = super().Ssend_init(buffers.message(stand_in(buf)), dest, tag)
        return self._persistent_send(plain, buf, dest, tag, "Issend")

    def Rsend_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """Make one for a ready send; see :meth:`mpi4py.MPI.Comm.Rsend_init`."""
        plain = super().Rsend_init(buffers.message(stand_in(buf)), dest, tag)
        return self._persistent_send(plain, buf, dest, tag, "Irsend")

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> MPI.Prequest:
        """Make one for a buffered send; see :meth:`mpi4py.MPI.Comm.Bsend_init`."""
        plain = super().Bsend_init(buffers.message(stand_in(buf)), dest, tag)
        return self._persistent_send(plain, buf, dest, tag, "Ibsend")

    def Recv_init(
        self, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG
    ) -> MPI.Prequest:
        """Make one for a receive; see :meth:`mpi4py.MPI.Comm.Recv_init`."""
        plain = super().Recv_init(buffers.message(stand_in(buf)), source, tag)
        end = self._endpoint
        framed = end.handle.framed and source != MPI.PROC_NULL
        if not framed and not _on_device(buf):
            return plain
        plain.Free()  # it has shown that the arguments are right
        return Prequest(lambda: receiving.irecv(end, buf, source, tag))

    def Psend_init(
        self,
        buf: Any,
        partitions: int,
        dest: int,
        tag: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Make one for a partitioned send, uncompressed; see
        :meth:`mpi4py.MPI.Comm.Psend_init`.
        """
        return super().Psend_init(buffers.plain(buf), partitions, dest, tag, info)

    def Precv_init(
        self,
        buf: Any,
        partitions: int,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Make one for a partitioned receive; see :meth:`mpi4py.MPI.Comm.Precv_init`."""
        return super().Precv_init(buffers.plain(buf), partitions, source, tag, info)

    def _persistent_send(
        self, plain: MPI.Request, buf: Any, dest: int, tag: int, mode: str
    ) -> MPI.Prequest:
        """Return a request whose rounds may be compressed; MPI's own if none ever is."""
        end = self._endpoint
        if sending.stays_plain(end, buf, dest, mode) and not _on_device(buf):
            return cast(MPI.Prequest, plain)  # typed too loosely in mpi4py
        plain.Free()  # it has shown that the arguments are right
        return Prequest(lambda: sending.isend(end, buf, dest, tag, mode))


def _on_device(*specs: Any) -> bool:
    """Whether any specification names GPU memory, which takes more than MPI's own call."""
    return any(buffers.on_device(spec) for spec in specs)
