"""The communicator's collectives: thin methods over :mod:`uzipmpi.collectives`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from uzipmpi import collectives
from uzipmpi.comm_base import CommBase

__all__ = ["Collectives"]


class Collectives(CommBase):
    """Collectives, as mpi4py has them."""

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
