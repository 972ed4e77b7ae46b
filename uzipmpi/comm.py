"""The communicator that users hold."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from uzipmpi import collectives, p2p, selection
from uzipmpi import handle as handles
from uzipmpi.buffers import INT_MAX, plain_array
from uzipmpi.config import AGREED, Config
from uzipmpi.errors import ConfigError, Error
from uzipmpi.handle import Endpoint, Handle
from uzipmpi.head import HEAD_BYTES
from uzipmpi.progress import Operation, Stages
from uzipmpi.stats import Stats
from uzipmpi.transports.transfer import Transfer

__all__ = ["Comm"]

Self = TypeVar("Self", bound="Comm")


class Comm(MPI.Intracomm):
    """A communicator that compresses floating-point tensors on the wire.

    It shares the MPI handle of the communicator that it wraps; what is not described here is
    mpi4py's. The first wrapper of a handle is made collectively. Buffers may hold
    bfloat16 and fp8 (``ml_dtypes``), and ``uzipmpi.BFLOAT16`` and so on are datatypes for ``[buf,
    count, TYPE]``.

    A compressed message can only be received by a ``Comm`` on the same handle, with ``Recv``,
    ``Irecv`` or ``Sendrecv``. The other receives (``Probe`` and what follows it, ``Recv_init``,
    ``Precv_init``) see a message of 136 bytes in its place. That concerns communicators that
    compress: not one whose ranks share a node, unless ``compress="always"``.

    Parameters
    ----------
    comm
        The communicator to wrap.
    **options
        Fields of :class:`uzipmpi.Config`, before ``uzipmpi.rc``, before ``UZIPMPI_*``.

    Raises
    ------
    ConfigError
        On every rank, if ranks disagree about an option on which they must agree, or a rank has
        given one that is wrong; or if the handle was wrapped with other options before.

    Examples
    --------
    >>> import numpy as np
    >>> comm = Comm(MPI.COMM_WORLD)
    >>> total = np.empty(3, np.float32)
    >>> comm.Allreduce(np.ones(3, np.float32), total)
    >>> bool((total == comm.size).all())
    True
    """

    _end: Endpoint | None = None
    # Arrays of at most so many bytes go straight to mpi4py.
    _plain_bytes = -1
    _plain_wire = False

    def __new__(cls: type[Self], comm: MPI.Comm | None = None, **options: Any) -> Self:
        return super().__new__(cls, comm)

    def __init__(self, comm: MPI.Comm | None = None, **options: Any) -> None:
        if self == MPI.COMM_NULL:
            return
        handle = handles.of(self)
        if handle is None:
            try:
                config: Config | ConfigError = selection.check(Config.resolve(**options))
            except ConfigError as error:
                config = error  # raised on all ranks, which otherwise would wait for this one
            handle = handles.agree(self, config)
            self._attach(handle, handle.config)
        else:
            config = selection.check(handle.config.replace(**options))
            _check_agreed(handle, config)
            self._attach(handle, config)

    @property
    def config(self) -> Config:
        """The options in force."""
        return self._endpoint.config

    @property
    def stats(self) -> Stats:
        """What was sent and received through this MPI handle on this rank."""
        return self._endpoint.handle.stats

    @contextmanager
    def options(self: Self, **options: Any) -> Iterator[Self]:
        """Change options for a block of code.

        Nothing is communicated: all ranks that call a collective in the block must
        have the same options there, except those that are a rank's own affair (codec, threads,
        log).

        Parameters
        ----------
        **options
            As for the constructor.

        Raises
        ------
        ConfigError
            If an option is wrong, or would compress messages of a communicator whose messages all
            are plain: that is decided when it is made.

        Examples
        --------
        >>> comm = Comm(MPI.COMM_WORLD)
        >>> with comm.options(codec="raw"):
        ...     comm.config.codec
        'raw'
        """
        before = self._endpoint
        config = selection.check(before.config.replace(**options))
        if selection.compressing(before._replace(config=config)) and not before.handle.framed:
            raise ConfigError(
                f"compress={config.compress!r}: expected when the communicator was made, found "
                f"compress={before.handle.config.compress!r} there, with ranks on one node"
            )
        self._attach(before.handle, config)
        try:
            yield self
        finally:
            self._attach(before.handle, before.config)

    # Messages

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

    # Collectives

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Broadcast; see :meth:`mpi4py.MPI.Comm.Bcast`."""
        if (small := self._small(buf)) is not None:
            super().Bcast(small, root)
            self.stats["Bcast"].add_plain(buf.nbytes if root == self.rank else 0)
        else:
            collectives.bcast(self._endpoint, buf, root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather; see :meth:`mpi4py.MPI.Comm.Gather`."""
        collectives.gather(self._endpoint, sendbuf, recvbuf, root, vector=False)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather different counts; see :meth:`mpi4py.MPI.Comm.Gatherv`."""
        collectives.gather(self._endpoint, sendbuf, recvbuf, root, vector=True)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter; see :meth:`mpi4py.MPI.Comm.Scatter`."""
        collectives.scatter(self._endpoint, sendbuf, recvbuf, root, vector=False)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter different counts; see :meth:`mpi4py.MPI.Comm.Scatterv`."""
        collectives.scatter(self._endpoint, sendbuf, recvbuf, root, vector=True)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather on all ranks; see :meth:`mpi4py.MPI.Comm.Allgather`."""
        send, recv = self._small(sendbuf), self._small(recvbuf)
        if send is not None and recv is not None:
            super().Allgather(send, recv)
            self.stats["Allgather"].add_plain(sendbuf.nbytes)
        else:
            collectives.allgather(self._endpoint, sendbuf, recvbuf, vector=False)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather different counts on all ranks; see :meth:`mpi4py.MPI.Comm.Allgatherv`."""
        collectives.allgather(self._endpoint, sendbuf, recvbuf, vector=True)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange with all ranks; see :meth:`mpi4py.MPI.Comm.Alltoall`."""
        send, recv = self._small(sendbuf), self._small(recvbuf)
        if send is not None and recv is not None:
            super().Alltoall(send, recv)
            self.stats["Alltoall"].add_plain(sendbuf.nbytes)
        else:
            collectives.alltoall(self._endpoint, sendbuf, recvbuf, vector=False)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange different counts with all ranks; see :meth:`mpi4py.MPI.Comm.Alltoallv`."""
        collectives.alltoall(self._endpoint, sendbuf, recvbuf, vector=True)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        """Reduce on all ranks; see :meth:`mpi4py.MPI.Comm.Allreduce`. ``op`` may be ours."""
        if self._reduces_plainly(sendbuf, recvbuf, op):
            super().Allreduce(sendbuf, recvbuf, op)
            self.stats["Allreduce"].add_plain(recvbuf.nbytes)
        else:
            collectives.allreduce(self._endpoint, sendbuf, recvbuf, op)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0) -> None:
        """Reduce on one rank; see :meth:`mpi4py.MPI.Comm.Reduce`. ``op`` may be ours."""
        if self._reduces_plainly(sendbuf, recvbuf, op):
            super().Reduce(sendbuf, recvbuf, op, root)
            self.stats["Reduce"].add_plain(sendbuf.nbytes)
        else:
            collectives.reduce(self._endpoint, sendbuf, recvbuf, op, root)

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: Any = MPI.SUM,
    ) -> None:
        """Reduce and scatter; see :meth:`mpi4py.MPI.Comm.Reduce_scatter`. ``op`` may be ours."""
        collectives.reduce_scatter(self._endpoint, sendbuf, recvbuf, recvcounts, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        """Reduce and scatter evenly; see :meth:`mpi4py.MPI.Comm.Reduce_scatter_block`."""
        collectives.reduce_scatter_block(self._endpoint, sendbuf, recvbuf, op)

    # Communicators made from this one

    def Dup(self: Self, info: MPI.Info | None = None) -> Self:
        """Duplicate; class and options go along."""
        end = self._endpoint
        new = super().Dup(info)
        new._adopt(end.handle.heir(end.handle.private.Dup(), end.config))
        return new

    def Clone(self: Self) -> Self:
        """Duplicate; class and options go along."""
        return self.Dup()

    def Dup_with_info(self: Self, info: MPI.Info) -> Self:
        """Duplicate with hints; class and options go along."""
        return self.Dup(info)

    def Idup(self: Self, info: MPI.Info | None = None) -> tuple[Self, MPI.Request]:
        """Begin to duplicate; class and options go along."""
        end = self._endpoint
        new, request = super().Idup(info)
        private, duplicated = end.handle.private.Idup()
        operation = Operation()

        def stages() -> Stages:
            yield Transfer(request)
            yield Transfer(duplicated)
            new._adopt(end.handle.heir(private, end.config))

        return new, operation.begin(stages())

    def Idup_with_info(self: Self, info: MPI.Info) -> tuple[Self, MPI.Request]:
        """Begin to duplicate with hints; class and options go along."""
        return self.Idup(info)

    def Split(self: Self, color: int = 0, key: int = 0) -> Self:
        """Split; class and options go along."""
        return self._child(super().Split(color, key))

    def Split_type(
        self: Self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> Self:
        """Split by type; class and options go along."""
        return self._child(super().Split_type(split_type, key, info))

    def Create(self: Self, group: MPI.Group) -> Self:
        """Make the communicator of a group; class and options go along."""
        return self._child(super().Create(group))

    def Create_group(self: Self, group: MPI.Group, tag: int = 0) -> Self:
        """Make the communicator of a group, by its members; class and options go along."""
        return self._child(super().Create_group(group, tag))

    def Free(self) -> None:
        """Free the communicator; nothing happens to ``COMM_WORLD`` and ``COMM_SELF``."""
        if self in (MPI.COMM_WORLD, MPI.COMM_SELF):
            return
        super().Free()
        self._detach()

    def free(self) -> None:
        """Free the communicator unless it is null or predefined."""
        if self != MPI.COMM_NULL:
            self.Free()

    def Disconnect(self) -> None:
        """Disconnect; nothing happens to ``COMM_WORLD`` and ``COMM_SELF``."""
        if self in (MPI.COMM_WORLD, MPI.COMM_SELF):
            return
        super().Disconnect()
        self._detach()

    # Private

    @property
    def _endpoint(self) -> Endpoint:
        if self._end is not None:
            return self._end
        if self == MPI.COMM_NULL:
            raise MPI.Exception(MPI.ERR_COMM)
        raise Error(
            "expected a communicator made by uzipmpi.Comm(comm), "
            "found one that mpi4py made of the class: wrap it"
        )

    def _attach(self, handle: Handle, config: Config) -> None:
        """Use a handle with these options."""
        self._end = Endpoint(MPI.Intracomm(self), handle, config)
        compressing = selection.compressing(self._end)
        self._plain_bytes = min(config.min_bytes - 1, INT_MAX) if compressing else INT_MAX
        self._plain_wire = not handle.framed
        stats = handle.stats
        self._sent, self._isent, self._received = stats["Send"], stats["Isend"], stats["Recv"]
        logging.getLogger("uzipmpi").setLevel(config.log.upper())

    def _adopt(self, handle: Handle) -> None:
        """Keep a new handle with the communicator, and use it."""
        handles.keep(self, handle)
        self._attach(handle, handle.config)

    def _detach(self) -> None:
        self._end = None
        self._plain_bytes = -1

    def _child(self: Self, comm: MPI.Comm) -> Self:
        """Wrap a communicator that was made from this one."""
        child = type(self).__new__(type(self), comm)
        if comm != MPI.COMM_NULL:
            config = self._endpoint.config
            child._attach(handles.agree(comm, config), config)
        return child

    def _small(self, buf: Any) -> npt.NDArray[Any] | None:
        """Return what goes to MPI for a small array; None for what needs a closer look."""
        if type(buf) is np.ndarray and buf.nbytes <= self._plain_bytes:
            return plain_array(buf)
        return None

    def _adds_small(self, buf: Any) -> bool:
        """Whether an array is small and of a type that MPI can reduce."""
        return (
            type(buf) is np.ndarray and buf.nbytes <= self._plain_bytes and buf.dtype.isbuiltin == 1
        )

    def _reduces_plainly(self, sendbuf: Any, recvbuf: Any, op: Any) -> bool:
        """Whether MPI reduces, and nothing has to be looked at more closely."""
        return (
            self._adds_small(recvbuf)
            and self._adds_small(sendbuf)
            and type(op) is MPI.Op
            and sendbuf is not recvbuf
            and sendbuf.base is recvbuf.base is None  # two views might be the same memory
        )


def _check_agreed(handle: Handle, config: Config) -> None:
    """Complain if a second wrapper of a handle wants what ranks did not agree on."""
    for name in AGREED:
        agreed, wanted = getattr(handle.config, name), getattr(config, name)
        if agreed != wanted:
            raise ConfigError(
                f"{name}: expected {agreed!r}, as the communicator was wrapped before, "
                f"found {wanted!r}"
            )
