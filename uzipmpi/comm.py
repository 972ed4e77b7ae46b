"""The communicator that users hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from mpi4py import MPI

from uzipmpi import selection
from uzipmpi.comm_collectives import Collectives, NeighborCollectives
from uzipmpi.comm_life import Life
from uzipmpi.comm_messages import Messages
from uzipmpi.errors import ConfigError

__all__ = ["Cartcomm", "Comm", "Distgraphcomm", "Graphcomm"]

Self = TypeVar("Self", bound="Comm")


class Comm(Life, Messages, Collectives):
    """A communicator that compresses floating-point tensors on the wire.

    It shares the MPI handle of the communicator that it wraps; what is not described here is
    mpi4py's. The first wrapper of a handle is made collectively. Buffers may hold
    bfloat16 and fp8 (``ml_dtypes``), and ``uzipmpi.BFLOAT16`` and so on are datatypes for ``[buf,
    count, TYPE]``.

    A compressed message can only be received by a ``Comm`` on the same handle: in any way, but
    mpi4py's own methods on that handle (``MPI.Message.Probe``, or ``Recv`` of a communicator that
    is not wrapped) see a message of 136 bytes in its place. Buffered and partitioned sends are not
    compressed. Once a probe has met such a message, another rank may see an ``ssend`` of an object
    that takes 136 bytes complete before it is received. All that concerns communicators that
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

    @contextmanager
    def options(self: Self, **options: Any) -> Iterator[Self]:
        """Change options for a block of code.

        Nothing is communicated: all ranks that call a collective in the block must
        have the same options there, except those that are a rank's own affair (codec, threads,
        max_sms, log).

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

    # Topologies

    def Create_cart(
        self,
        dims: Sequence[int],
        periods: Sequence[bool] | None = None,
        reorder: bool = False,
    ) -> Cartcomm:
        """Make a Cartesian communicator; options go along."""
        return self._child(super().Create_cart(dims, periods, reorder), Cartcomm)

    def Create_graph(
        self, index: Sequence[int], edges: Sequence[int], reorder: bool = False
    ) -> Graphcomm:
        """Make a graph communicator; options go along."""
        return self._child(super().Create_graph(index, edges, reorder), Graphcomm)

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> Distgraphcomm:
        """Make a distributed graph communicator from neighbours; options go along."""
        comm = super().Create_dist_graph_adjacent(
            sources, destinations, sourceweights, destweights, info, reorder
        )
        return self._child(comm, Distgraphcomm)

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> Distgraphcomm:
        """Make a distributed graph communicator from edges; options go along."""
        comm = super().Create_dist_graph(sources, degrees, destinations, weights, info, reorder)
        return self._child(comm, Distgraphcomm)


class Cartcomm(NeighborCollectives, Comm, MPI.Cartcomm):
    """A :class:`Comm` with a Cartesian topology."""

    _mpi_class = MPI.Cartcomm
    _subset_class = Comm

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """Make the communicators of a lower dimension; class and options go along."""
        return self._child(super().Sub(remain_dims), type(self))


class Graphcomm(NeighborCollectives, Comm, MPI.Graphcomm):
    """A :class:`Comm` with a graph topology."""

    _mpi_class = MPI.Graphcomm
    _subset_class = Comm


class Distgraphcomm(NeighborCollectives, Comm, MPI.Distgraphcomm):
    """A :class:`Comm` with a distributed graph topology."""

    _mpi_class = MPI.Distgraphcomm
    _subset_class = Comm
