"""What all parts of the communicator stand on: its MPI handle, and what is kept with it."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from uzipmpi import gpu_ways, linking, selection
from uzipmpi.buffers import INT_MAX, plain_array
from uzipmpi.config import Config
from uzipmpi.errors import Error
from uzipmpi.handle import Endpoint, Handle
from uzipmpi.matching import Matching
from uzipmpi.stats import Stats

__all__ = ["CommBase"]


class CommBase(MPI.Intracomm):
    """An MPI communicator with an :class:`~uzipmpi.handle.Endpoint`."""

    # The class of mpi4py's that has the methods of this kind of communicator.
    _mpi_class: ClassVar[type[MPI.Intracomm]] = MPI.Intracomm
    _end: Endpoint | None = None
    # Arrays of at most so many bytes go straight to mpi4py.
    _plain_bytes = -1
    _plain_wire = False
    _matching = Matching()  # nothing is held

    @property
    def config(self) -> Config:
        """The options in force."""
        return self._endpoint.config

    @property
    def stats(self) -> Stats:
        """What was sent and received through this MPI handle on this rank."""
        handle = self._endpoint.handle
        handle.stats.transport = gpu_ways.describe(handle)
        return handle.stats

    @property
    def _stats(self) -> Stats:
        """The statistics, at once."""
        return self._endpoint.handle.stats

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
        self._end = Endpoint(self._mpi_class(self), handle, config)
        compressing = selection.compressing(self._end)
        self._plain_bytes = min(config.min_bytes - 1, INT_MAX) if compressing else INT_MAX
        if handle.may_link:  # another rank's array may be in GPU memory
            self._plain_bytes = min(self._plain_bytes, linking.LEAST_BYTES - 1)
        self._plain_wire = not handle.framed
        self._matching = handle.matching
        stats = handle.stats
        stats.plain_reason = (
            "smaller than min_bytes" if compressing else "nothing is compressed between these ranks"
        )
        self._sent, self._isent, self._received = stats["Send"], stats["Isend"], stats["Recv"]
        logging.getLogger("uzipmpi").setLevel(config.log.upper())

    def _detach(self) -> None:
        """Forget the handle: it is no longer the communicator's."""
        self._end = None
        self._plain_bytes = -1

    def _small(self, buf: Any) -> npt.NDArray[Any] | None:
        """Return what goes to MPI for a small array; None for what needs a closer look."""
        if type(buf) is np.ndarray and buf.nbytes <= self._plain_bytes:
            return plain_array(buf)
        return None
