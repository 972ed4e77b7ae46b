"""The communicator's collectives: thin methods over :mod:`uzipmpi.collectives`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from uzipmpi import collectives
from uzipmpi.algorithms.operators import AVG
from uzipmpi.buffers import plain, plain_w
from uzipmpi.comm_base import CommBase

__all__ = ["Collectives", "NeighborCollectives"]


class Collectives(CommBase):
    """Collectives, as mpi4py has them.

    Blocking ones but ``Scan``, ``Exscan`` and ``Alltoallw`` take ``stream``, a stream of a GPU in
    any library's words, on all ranks or on none. All buffers then are in the GPU's memory, and the
    call comes after what is queued in the stream and before what will be, as NCCL's do. Between
    connected GPUs (``transport``) it is only queued when it returns; buffers must live until it is
    done, and what goes wrong is raised by a later call.
    """

    # Moving values

    def Bcast(self, buf: Any, root: int = 0, *, stream: Any = None) -> None:
        """Broadcast; see :meth:`mpi4py.MPI.Comm.Bcast`."""
        if stream is None and (small := self._small(buf)) is not None:
            super().Bcast(small, root)
            self._stats["Bcast"].add_plain(buf.nbytes if root == self.rank else 0)
        else:
            collectives.bcast(self._endpoint, buf, root).run(stream)

    def Ibcast(self, buf: Any, root: int = 0) -> MPI.Request:
        """Begin to broadcast; see :meth:`mpi4py.MPI.Comm.Ibcast`."""
        if (small := self._small(buf)) is not None:
            request = super().Ibcast(small, root)
            self._stats["Ibcast"].add_plain(buf.nbytes if root == self.rank else 0)
            return request
        return collectives.bcast(self._endpoint, buf, root).begin()

    def Bcast_init(self, buf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Make a request to broadcast; see :meth:`mpi4py.MPI.Comm.Bcast_init`."""
        return collectives.bcast(self._endpoint, buf, root).persist(info)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, stream: Any = None) -> None:
        """Gather; see :meth:`mpi4py.MPI.Comm.Gather`."""
        collectives.gather(self._endpoint, sendbuf, recvbuf, root, vector=False).run(stream)

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Begin to gather; see :meth:`mpi4py.MPI.Comm.Igather`."""
        return collectives.gather(self._endpoint, sendbuf, recvbuf, root, vector=False).begin()

    def Gather_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Make a request to gather; see :meth:`mpi4py.MPI.Comm.Gather_init`."""
        return collectives.gather(self._endpoint, sendbuf, recvbuf, root, vector=False).persist(
            info
        )

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, stream: Any = None) -> None:
        """Gather different counts; see :meth:`mpi4py.MPI.Comm.Gatherv`."""
        collectives.gather(self._endpoint, sendbuf, recvbuf, root, vector=True).run(stream)

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Begin to gather different counts; see :meth:`mpi4py.MPI.Comm.Igatherv`."""
        return collectives.gather(self._endpoint, sendbuf, recvbuf, root, vector=True).begin()

    def Gatherv_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Make a request to gather different counts; see :meth:`mpi4py.MPI.Comm.Gatherv_init`."""
        return collectives.gather(self._endpoint, sendbuf, recvbuf, root, vector=True).persist(info)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, stream: Any = None) -> None:
        """Scatter; see :meth:`mpi4py.MPI.Comm.Scatter`."""
        collectives.scatter(self._endpoint, sendbuf, recvbuf, root, vector=False).run(stream)

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Begin to scatter; see :meth:`mpi4py.MPI.Comm.Iscatter`."""
        return collectives.scatter(self._endpoint, sendbuf, recvbuf, root, vector=False).begin()

    def Scatter_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Make a request to scatter; see :meth:`mpi4py.MPI.Comm.Scatter_init`."""
        return collectives.scatter(self._endpoint, sendbuf, recvbuf, root, vector=False).persist(
            info
        )

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, stream: Any = None) -> None:
        """Scatter different counts; see :meth:`mpi4py.MPI.Comm.Scatterv`."""
        collectives.scatter(self._endpoint, sendbuf, recvbuf, root, vector=True).run(stream)

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Begin to scatter different counts; see :meth:`mpi4py.MPI.Comm.Iscatterv`."""
        return collectives.scatter(self._endpoint, sendbuf, recvbuf, root, vector=True).begin()

    def Scatterv_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Make a request to scatter different counts; see :meth:`mpi4py.MPI.Comm.Scatterv_init`."""
        return collectives.scatter(self._endpoint, sendbuf, recvbuf, root, vector=True).persist(
            info
        )

    def Allgather(self, sendbuf: Any, recvbuf: Any, *, stream: Any = None) -> None:
        """Gather on all ranks; see :meth:`mpi4py.MPI.Comm.Allgather`."""
        send, recv = self._small(sendbuf), self._small(recvbuf)
        if stream is None and send is not None and recv is not None:
            super().Allgather(send, recv)
            self._stats["Allgather"].add_plain(sendbuf.nbytes)
        else:
            collectives.allgather(self._endpoint, sendbuf, recvbuf, vector=False).run(stream)

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Begin to gather on all ranks; see :meth:`mpi4py.MPI.Comm.Iallgather`."""
        send, recv = self._small(sendbuf), self._small(recvbuf)
        if send is not None and recv is not None:
            self._stats["Iallgather"].add_plain(sendbuf.nbytes)
            return super().Iallgather(send, recv)
        return collectives.allgather(self._endpoint, sendbuf, recvbuf, vector=False).begin()

    def Allgather_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Make a request to gather on all ranks; see :meth:`mpi4py.MPI.Comm.Allgather_init`."""
        return collectives.allgather(self._endpoint, sendbuf, recvbuf, vector=False).persist(info)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any, *, stream: Any = None) -> None:
        """Gather different counts on all ranks; see :meth:`mpi4py.MPI.Comm.Allgatherv`."""
        collectives.allgather(self._endpoint, sendbuf, recvbuf, vector=True).run(stream)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Begin to gather from all; see :meth:`mpi4py.MPI.Comm.Iallgatherv`."""
        return collectives.allgather(self._endpoint, sendbuf, recvbuf, vector=True).begin()

    def Allgatherv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Persistent form; see :meth:`mpi4py.MPI.Comm.Allgatherv_init`."""
        return collectives.allgather(self._endpoint, sendbuf, recvbuf, vector=True).persist(info)

    def Alltoall(self, sendbuf: Any, recvbuf: Any, *, stream: Any = None) -> None:
        """Exchange with all ranks; see :meth:`mpi4py.MPI.Comm.Alltoall`."""
        send, recv = self._small(sendbuf), self._small(recvbuf)
        if stream is None and send is not None and recv is not None:
            super().Alltoall(send, recv)
            self._stats["Alltoall"].add_plain(sendbuf.nbytes)
        else:
            collectives.alltoall(self._endpoint, sendbuf, recvbuf, vector=False).run(stream)

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Begin to exchange with all ranks; see :meth:`mpi4py.MPI.Comm.Ialltoall`."""
        send, recv = self._small(sendbuf), self._small(recvbuf)
        if send is not None and recv is not None:
            self._stats["Ialltoall"].add_plain(sendbuf.nbytes)
            return super().Ialltoall(send, recv)
        return collectives.alltoall(self._endpoint, sendbuf, recvbuf, vector=False).begin()

    def Alltoall_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Make a request to exchange with all ranks; see :meth:`mpi4py.MPI.Comm.Alltoall_init`."""
        return collectives.alltoall(self._endpoint, sendbuf, recvbuf, vector=False).persist(info)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any, *, stream: Any = None) -> None:
        """Exchange different counts with all ranks; see :meth:`mpi4py.MPI.Comm.Alltoallv`."""
        collectives.alltoall(self._endpoint, sendbuf, recvbuf, vector=True).run(stream)

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Begin to exchange different counts; see :meth:`mpi4py.MPI.Comm.Ialltoallv`."""
        return collectives.alltoall(self._endpoint, sendbuf, recvbuf, vector=True).begin()

    def Alltoallv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Persistent form; see :meth:`mpi4py.MPI.Comm.Alltoallv_init`."""
        return collectives.alltoall(self._endpoint, sendbuf, recvbuf, vector=True).persist(info)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange different datatypes; see :meth:`mpi4py.MPI.Comm.Alltoallw`."""
        super().Alltoallw(plain_w(sendbuf), plain_w(recvbuf))

    def Ialltoallw(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Begin to exchange different datatypes; see :meth:`mpi4py.MPI.Comm.Ialltoallw`."""
        return super().Ialltoallw(plain_w(sendbuf), plain_w(recvbuf))

    def Alltoallw_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Persistent form; see :meth:`mpi4py.MPI.Comm.Alltoallw_init`."""
        return super().Alltoallw_init(plain_w(sendbuf), plain_w(recvbuf), info)

    # Reductions; ``op`` may be one of uzipmpi's

    def Allreduce(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, stream: Any = None
    ) -> None:
        """Reduce on all ranks; see :meth:`mpi4py.MPI.Comm.Allreduce`."""
        if stream is None and self._reduces_plainly(sendbuf, recvbuf, op):
            super().Allreduce(sendbuf, recvbuf, op)
            self._stats["Allreduce"].add_plain(recvbuf.nbytes)
        else:
            collectives.allreduce(self._endpoint, sendbuf, recvbuf, op).run(stream)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> MPI.Request:
        """Begin to reduce on all ranks; see :meth:`mpi4py.MPI.Comm.Iallreduce`."""
        if self._reduces_plainly(sendbuf, recvbuf, op):
            self._stats["Iallreduce"].add_plain(recvbuf.nbytes)
            return super().Iallreduce(sendbuf, recvbuf, op)
        return collectives.allreduce(self._endpoint, sendbuf, recvbuf, op).begin()

    def Allreduce_init(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Make a request to reduce on all ranks; see :meth:`mpi4py.MPI.Comm.Allreduce_init`."""
        return collectives.allreduce(self._endpoint, sendbuf, recvbuf, op).persist(info)

    def Reduce(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0, *, stream: Any = None
    ) -> None:
        """Reduce on one rank; see :meth:`mpi4py.MPI.Comm.Reduce`."""
        if stream is None and self._reduces_plainly(sendbuf, recvbuf, op):
            super().Reduce(sendbuf, recvbuf, op, root)
            self._stats["Reduce"].add_plain(sendbuf.nbytes)
        else:
            collectives.reduce(self._endpoint, sendbuf, recvbuf, op, root).run(stream)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0) -> MPI.Request:
        """Begin to reduce on one rank; see :meth:`mpi4py.MPI.Comm.Ireduce`."""
        if self._reduces_plainly(sendbuf, recvbuf, op):
            self._stats["Ireduce"].add_plain(sendbuf.nbytes)
            return super().Ireduce(sendbuf, recvbuf, op, root)
        return collectives.reduce(self._endpoint, sendbuf, recvbuf, op, root).begin()

    def Reduce_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Any = MPI.SUM,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Make a request to reduce on one rank; see :meth:`mpi4py.MPI.Comm.Reduce_init`."""
        return collectives.reduce(self._endpoint, sendbuf, recvbuf, op, root).persist(info)

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: Any = MPI.SUM,
        *,
        stream: Any = None,
    ) -> None:
        """Reduce and scatter; see :meth:`mpi4py.MPI.Comm.Reduce_scatter`."""
        collectives.reduce_scatter(self._endpoint, sendbuf, recvbuf, recvcounts, op).run(stream)

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Any = MPI.SUM
    ) -> MPI.Request:
        """Begin to reduce and scatter; see :meth:`mpi4py.MPI.Comm.Ireduce_scatter`."""
        return collectives.reduce_scatter(self._endpoint, sendbuf, recvbuf, recvcounts, op).begin()

    def Reduce_scatter_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: Any = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Make a request to reduce and scatter; see :meth:`mpi4py.MPI.Comm.Reduce_scatter_init`."""
        return collectives.reduce_scatter(self._endpoint, sendbuf, recvbuf, recvcounts, op).persist(
            info
        )

    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, stream: Any = None
    ) -> None:
        """Reduce and scatter evenly; see :meth:`mpi4py.MPI.Comm.Reduce_scatter_block`."""
        collectives.reduce_scatter_block(self._endpoint, sendbuf, recvbuf, op).run(stream)

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> MPI.Request:
        """Begin to reduce and scatter evenly; see :meth:`mpi4py.MPI.Comm.Ireduce_scatter_block`."""
        return collectives.reduce_scatter_block(self._endpoint, sendbuf, recvbuf, op).begin()

    def Reduce_scatter_block_init(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Persistent form; see :meth:`mpi4py.MPI.Comm.Reduce_scatter_block_init`."""
        return collectives.reduce_scatter_block(self._endpoint, sendbuf, recvbuf, op).persist(info)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        """Reduce over the ranks up to this one; see :meth:`mpi4py.MPI.Comm.Scan`."""
        collectives.scan(self._endpoint, sendbuf, recvbuf, op).run()

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> MPI.Request:
        """Begin to reduce over the ranks up to this one; see :meth:`mpi4py.MPI.Comm.Iscan`."""
        return collectives.scan(self._endpoint, sendbuf, recvbuf, op).begin()

    def Scan_init(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Persistent form; see :meth:`mpi4py.MPI.Comm.Scan_init`."""
        return collectives.scan(self._endpoint, sendbuf, recvbuf, op).persist(info)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        """Reduce over the ranks before this one; see :meth:`mpi4py.MPI.Comm.Exscan`."""
        collectives.exscan(self._endpoint, sendbuf, recvbuf, op).run()

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> MPI.Request:
        """Begin to reduce over the ranks before this one; see :meth:`mpi4py.MPI.Comm.Iexscan`."""
        return collectives.exscan(self._endpoint, sendbuf, recvbuf, op).begin()

    def Exscan_init(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Persistent form; see :meth:`mpi4py.MPI.Comm.Exscan_init`."""
        return collectives.exscan(self._endpoint, sendbuf, recvbuf, op).persist(info)

    # Reductions of objects; ``op`` may be one of uzipmpi's here as well

    def reduce(self, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
        """Reduce objects on one rank; see :meth:`mpi4py.MPI.Comm.reduce`."""
        return _mean(super().reduce(sendobj, _adding(op), root), op, self.size)

    def allreduce(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        """Reduce objects on all ranks; see :meth:`mpi4py.MPI.Comm.allreduce`."""
        return _mean(super().allreduce(sendobj, _adding(op)), op, self.size)

    def scan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        """Reduce objects of the ranks up to this one; see :meth:`mpi4py.MPI.Intracomm.scan`."""
        return _mean(super().scan(sendobj, _adding(op)), op, self.rank + 1)

    def exscan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        """Reduce objects of the ranks before this one; see :meth:`mpi4py.MPI.Intracomm.exscan`."""
        return _mean(super().exscan(sendobj, _adding(op)), op, self.rank)

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


def _adding(op: Any) -> Any:
    """Return the operator that mpi4py applies to objects: an average begins as a sum."""
    return MPI.SUM if op == AVG else op


def _mean(total: Any, op: Any, n: int) -> Any:
    """Return what a reduction of ``n`` objects gave, divided if it is to be an average."""
    return total / n if op == AVG and total is not None else total


# At run time mpi4py's class comes with the communicator that this is mixed into.
if TYPE_CHECKING:
    Topology = MPI.Topocomm
else:
    Topology = object


class NeighborCollectives(Topology):
    """Collectives among neighbours: mpi4py's own, which take bf16 and fp8 arrays here too."""

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """See :meth:`mpi4py.MPI.Topocomm.Neighbor_allgather`."""
        super().Neighbor_allgather(plain(sendbuf), plain(recvbuf))

    def Ineighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """See :meth:`mpi4py.MPI.Topocomm.Ineighbor_allgather`."""
        return super().Ineighbor_allgather(plain(sendbuf), plain(recvbuf))

    def Neighbor_allgather_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """See :meth:`mpi4py.MPI.Topocomm.Neighbor_allgather_init`."""
        return super().Neighbor_allgather_init(plain(sendbuf), plain(recvbuf), info)

    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """See :meth:`mpi4py.MPI.Topocomm.Neighbor_allgatherv`."""
        super().Neighbor_allgatherv(plain(sendbuf), plain(recvbuf))

    def Ineighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """See :meth:`mpi4py.MPI.Topocomm.Ineighbor_allgatherv`."""
        return super().Ineighbor_allgatherv(plain(sendbuf), plain(recvbuf))

    def Neighbor_allgatherv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """See :meth:`mpi4py.MPI.Topocomm.Neighbor_allgatherv_init`."""
        return super().Neighbor_allgatherv_init(plain(sendbuf), plain(recvbuf), info)

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """See :meth:`mpi4py.MPI.Topocomm.Neighbor_alltoall`."""
        super().Neighbor_alltoall(plain(sendbuf), plain(recvbuf))

    def Ineighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """See :meth:`mpi4py.MPI.Topocomm.Ineighbor_alltoall`."""
        return super().Ineighbor_alltoall(plain(sendbuf), plain(recvbuf))

    def Neighbor_alltoall_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """See :meth:`mpi4py.MPI.Topocomm.Neighbor_alltoall_init`."""
        return super().Neighbor_alltoall_init(plain(sendbuf), plain(recvbuf), info)

    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """See :meth:`mpi4py.MPI.Topocomm.Neighbor_alltoallv`."""
        super().Neighbor_alltoallv(plain(sendbuf), plain(recvbuf))

    def Ineighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """See :meth:`mpi4py.MPI.Topocomm.Ineighbor_alltoallv`."""
        return super().Ineighbor_alltoallv(plain(sendbuf), plain(recvbuf))

    def Neighbor_alltoallv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """See :meth:`mpi4py.MPI.Topocomm.Neighbor_alltoallv_init`."""
        return super().Neighbor_alltoallv_init(plain(sendbuf), plain(recvbuf), info)

    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """See :meth:`mpi4py.MPI.Topocomm.Neighbor_alltoallw`."""
        super().Neighbor_alltoallw(plain_w(sendbuf), plain_w(recvbuf))

    def Ineighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """See :meth:`mpi4py.MPI.Topocomm.Ineighbor_alltoallw`."""
        return super().Ineighbor_alltoallw(plain_w(sendbuf), plain_w(recvbuf))

    def Neighbor_alltoallw_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """See :meth:`mpi4py.MPI.Topocomm.Neighbor_alltoallw_init`."""
        return super().Neighbor_alltoallw_init(plain_w(sendbuf), plain_w(recvbuf), info)
