"""The communicator that users hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mpi4py import MPI

from uzipmpi import handle as handles
from uzipmpi import selection
from uzipmpi.comm_collectives import Collectives
from uzipmpi.comm_messages import Messages
from uzipmpi.config import AGREED, Config
from uzipmpi.errors import ConfigError
from uzipmpi.handle import Handle
from uzipmpi.progress import Operation, Stages
from uzipmpi.transports.transfer import Transfer

__all__ = ["Comm"]

Self = TypeVar("Self", bound="Comm")


class Comm(Messages, Collectives):
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


def _check_agreed(handle: Handle, config: Config) -> None:
    """Complain if a second wrapper of a handle wants what ranks did not agree on."""
    for name in AGREED:
        agreed, wanted = getattr(handle.config, name), getattr(config, name)
        if agreed != wanted:
            raise ConfigError(
                f"{name}: expected {agreed!r}, as the communicator was wrapped before, "
                f"found {wanted!r}"
            )
