"""Connected GPUs: every call gives the bits that it gives on host buffers, in any order of streams.

Given a module, the GPUs are emulated ones, one for each rank; without (or with ``-``), the
machine's: ``mpirun -np 2 python -m mpi4py tests/gpu/ranks_linked.py``. Given ``shm`` as well, the
GPUs do not reach each other's memory.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import emulated_module
import numpy as np
import pytest
from exporters import Interface
from mpi4py import MPI

import uzipmpi
from uzipmpi.kernels import device, link
from uzipmpi.kernels.device import Stream
from uzipmpi.typing import DType

EMULATED = sys.argv[1:2] not in ([], ["-"])
if EMULATED:
    os.environ["UZIPMPI_TEST_WRITERS"] = "1"  # ranks wait for each other elsewhere, too
    emulated_module.install(Path(sys.argv[1]))
TRANSPORT = sys.argv[2] if len(sys.argv) > 2 else "ipc"
if TRANSPORT == "shm":
    link.can_access = lambda _device, _identity: False

FLOATS = [dtype for dtype in DType if dtype is not DType.BYTES]
rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
GPU = rank % device.gpu_half().device_count()
right, left = (rank + 1) % size, (rank - 1) % size
COUNT = 40_000
Make = Callable[[], Sequence[Any]]


def values(dtype: DType, count: int, kind: str = "normal") -> np.ndarray:
    """Return values, other ones on each rank."""
    generator = np.random.default_rng([rank, count, dtype])
    if kind == "random":
        return generator.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype.numpy)
    scale = 0 if kind == "zeros" else 0.02
    return (generator.standard_normal(count) * scale).astype(dtype.numpy)


def blank(dtype: DType, count: int) -> np.ndarray:
    """Return a buffer to receive in."""
    return np.full(count * dtype.itemsize, 0x33, np.uint8).view(dtype.numpy)


class OnGpu:
    """A host array's copy in GPU memory, as a buffer specification; written in a stream."""

    def __init__(self, array: np.ndarray, stream: Stream) -> None:
        self.array, self.stream = array, stream
        self.memory = device.allocate(max(array.nbytes, 1), GPU)[: array.nbytes]
        stream.copy(self.memory, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    @property
    def spec(self) -> list[Any]:
        """What a call is given: it has no stream of its own."""
        kind = self.array.dtype
        return [self.memory, MPI.INT32_T if kind == np.int32 else kind.name]

    def get(self) -> bytes:
        """Return the content, after all that is queued in the stream."""
        host = np.empty(self.array.nbytes, np.uint8)
        self.stream.copy(host, self.memory)
        self.stream.synchronize()
        return host.tobytes()


def same(comm: uzipmpi.Comm, method: str, make: Make, *, streamed: bool) -> None:
    """Call a method on host buffers, and on GPU buffers."""
    expected = list(make())
    plain = uzipmpi.Comm(reference)
    getattr(plain, method)(*expected)
    stream = Stream(GPU)
    gpu = [OnGpu(one, stream) if isinstance(one, np.ndarray) else one for one in make()]
    arguments = [one.spec if isinstance(one, OnGpu) else one for one in gpu]
    if streamed:
        getattr(comm, method)(*arguments, stream=stream)
    else:
        stream.synchronize()
        getattr(comm, method)(*arguments)
    for wanted, found in zip(expected, gpu, strict=True):
        if isinstance(found, OnGpu):
            assert found.get() == wanted.tobytes(), (method, found.array.dtype, streamed)


def moving(dtype: DType, count: int, kind: str) -> Iterator[tuple[str, Make]]:
    """Yield calls that move values."""
    last = size - 1
    at_last = rank == last
    mine, all_ = values(dtype, count, kind), values(dtype, count * size, kind)
    yield "Bcast", lambda: [mine.copy() if at_last else blank(dtype, count), last]
    yield "Allgather", lambda: [mine, blank(dtype, count * size)]
    yield "Allgather", lambda: [MPI.IN_PLACE, all_.copy()]
    yield "Gather", lambda: [mine, blank(dtype, count * size) if at_last else None, last]
    yield "Scatter", lambda: [all_ if at_last else None, blank(dtype, count), last]
    yield "Alltoall", lambda: [all_, blank(dtype, count * size)]
    yield "Alltoall", lambda: [MPI.IN_PLACE, all_.copy()]


def reducing(dtype: DType, count: int, kind: str, op: Any) -> Iterator[tuple[str, Make]]:
    """Yield calls that reduce."""
    last = size - 1
    mine, all_ = values(dtype, count, kind), values(dtype, count * size, kind)
    yield "Allreduce", lambda: [mine, blank(dtype, count), op]
    yield "Allreduce", lambda: [MPI.IN_PLACE, mine.copy(), op]
    yield "Reduce", lambda: [mine, blank(dtype, count) if rank == last else None, op, last]
    yield "Reduce_scatter_block", lambda: [all_, blank(dtype, count), op]
    yield "Reduce_scatter_block", lambda: [MPI.IN_PLACE, all_.copy(), op]


def collectives(comm: uzipmpi.Comm) -> None:
    """All that go by kernels, blocking and queued."""
    place = 0
    for dtype in FLOATS:
        for kind in ("normal", "random", "zeros") if dtype is DType.BFLOAT16 else ("normal",):
            op = (MPI.SUM, MPI.MAX, uzipmpi.AVG)[place % 3]
            for method, make in (
                *moving(dtype, COUNT, kind),
                *reducing(dtype, COUNT, kind, op),
            ):
                place += 1
                same(comm, method, make, streamed=place % 2 == 0)
    integers = np.arange(COUNT, dtype=np.int32) + rank
    same(comm, "Allgather", lambda: [integers, np.zeros(COUNT * size, np.int32)], streamed=True)


def messages(comm: uzipmpi.Comm) -> None:
    """Matched by MPI in any order, and in the order of a stream."""
    stream = Stream(GPU)
    for dtype in FLOATS:
        for count in (100, 1025, COUNT):
            sent = OnGpu(values(dtype, count), stream)
            got = [OnGpu(blank(dtype, count), stream) for _ in range(4)]
            stream.synchronize()
            wanted = MPI.Intracomm(comm).sendrecv(sent.array, right, 9, source=left, recvtag=9)
            comm.Sendrecv(sent.spec, right, 1, got[0].spec, left, 1)
            requests = [comm.Irecv(got[i].spec, left, i) for i in (2, 1)]
            requests += [comm.Isend(sent.spec, right, i) for i in (1, 2)]
            uzipmpi.waitall(requests)
            comm.Sendrecv(sent.spec, right, 5, got[3].spec, left, 5, stream=stream)
            assert all(one.get() == wanted.tobytes() for one in got), (dtype, count)
    assert comm.stats["Isend"].algorithms["ipc"]


def partly(comm: uzipmpi.Comm, dtype: DType) -> OnGpu:
    """Let rank 0 have host buffers in a call: the others must not take it for a GPU's."""
    whole = np.rint(50 * values(dtype, COUNT).astype(np.float32))  # MPI may add in any order
    mine, stream = whole.astype(dtype.numpy), Stream(GPU)
    wanted, total = blank(dtype, COUNT), blank(dtype, COUNT)
    uzipmpi.Comm(reference).Allreduce(mine, wanted)
    gpu = OnGpu(mine, stream)
    stream.synchronize()
    comm.Allreduce(gpu.spec if rank else mine, total)
    assert total.tobytes() == wanted.tobytes()
    return gpu


def mixed(comm: uzipmpi.Comm) -> None:
    """A rank without GPU buffers, a host receive of a GPU message, a receive that is too small."""
    gpu = partly(comm, DType.BFLOAT16)
    mine, total, stream = gpu.array, blank(DType.BFLOAT16, COUNT), gpu.stream
    wanted = MPI.Intracomm(comm).sendrecv(mine, right, 9, source=left, recvtag=9)
    comm.Sendrecv(gpu.spec, right, 1, total, left, 1)
    assert total.tobytes() == wanted.tobytes()
    options = {"transport": TRANSPORT, "timeout": 20, "chunk_bytes": 8192}
    crossed = uzipmpi.Comm(MPI.COMM_WORLD.Dup(), compress="always", min_bytes=0, **options)
    for turn in range(size):  # one way by kernels, another in frames
        crossed.Sendrecv(mine if rank == turn else gpu.spec, right, 3, total, left, 3)
        assert total.tobytes() == wanted.tobytes()
    assert {"ipc", "chunked"} == set(crossed.stats["Sendrecv"].algorithms)
    crossed.Free()
    request = comm.Isend(gpu.spec, right, 1)
    small = OnGpu(blank(DType.BFLOAT16, COUNT // 2), stream)
    stream.synchronize()
    with pytest.raises(MPI.Exception) as raised:
        comm.Recv(small.spec, left, 1)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    request.Wait()
    with pytest.raises(TypeError, match="stream: expected"):
        comm.Allreduce(mine, total, stream=stream)
    comm.Barrier()


def late(comm: uzipmpi.Comm) -> None:
    """Buffers that are written by work queued just before the call, many times."""
    producer, other = Stream(GPU), Stream(GPU)
    source = device.allocate(COUNT * 4, GPU)
    total = device.allocate(COUNT * 4, GPU)
    for turn in range(20):
        expected = np.full(COUNT, turn + rank, np.float32)
        stream = (producer, other)[turn % 2]
        stream.copy(source, expected.view(np.uint8))
        comm.Allreduce([source, "float32"], [total, "float32"], stream=stream)
        found = np.empty(COUNT, np.float32)
        stream.copy(found.view(np.uint8), total)
        stream.synchronize()
        assert (found == size * turn + size * (size - 1) // 2).all(), turn


def again(comm: uzipmpi.Comm) -> None:
    """The same calls with new values are planned once; others that use the same memory are not."""
    stream, rounds = Stream(GPU), 3
    source, total = (device.allocate(COUNT * 8, GPU) for _ in range(2))
    planned, before = [], len(comm._endpoint.handle.plans)
    for turn in range(rounds):
        for kind, op in itertools.product((np.float32, np.float64), (MPI.SUM, MPI.MAX)):
            mine = np.full(COUNT, turn + rank, kind)
            arrays = [Interface(one, mine.dtype.str, (COUNT,)) for one in (source, total)]
            stream.copy(source[: mine.nbytes], mine.view(np.uint8))
            comm.Allreduce(*arrays, op, stream=stream)
            found = np.empty_like(mine)
            stream.copy(found.view(np.uint8), total[: mine.nbytes])
            stream.synchronize()
            sums = size * turn + size * (size - 1) // 2
            assert (found == (sums if op == MPI.SUM else turn + size - 1)).all(), (turn, kind)
            comm.Sendrecv(arrays[0], right, turn, arrays[1], left, turn, stream=stream)
            stream.copy(found.view(np.uint8), total[: mine.nbytes])
            stream.synchronize()
            assert (found == turn + left).all(), (turn, kind)
        planned.append(len(comm._endpoint.handle.plans) - before)
    assert planned == [6, 8, 10]  # four reductions; with each tag, messages of two types
    assert comm.stats["Allreduce"].calls == rounds * 4


def abandoned() -> None:
    """A peer that never comes: an exception within the time-out, and again at the next call."""
    comm = uzipmpi.Comm(MPI.COMM_WORLD.Dup(), transport=TRANSPORT, timeout=1)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    stream = Stream(GPU)
    if rank == 0:
        gpu = OnGpu(values(DType.BFLOAT16, COUNT), stream)
        comm.Recv(gpu.spec, 1, 3, stream=stream)
        stream.synchronize()
        for _ in range(2):
            with pytest.raises(MPI.Exception, match="exchange between GPUs"):
                comm.Recv(gpu.spec, 1, 3, stream=stream)
    MPI.COMM_WORLD.Barrier()
    comm.Free()


def main() -> None:
    for transport, codec in (("auto", "auto"), (TRANSPORT, "tier")):
        comm = uzipmpi.Comm(
            MPI.COMM_WORLD.Dup(),
            transport=transport,
            codec=codec,
            max_staging_bytes=4 << 20,
            timeout=20,
        )
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        partly(comm, DType.FLOAT32)  # before they are connected
        assert not comm.stats["Allreduce"].algorithms[TRANSPORT]
        collectives(comm)
        assert comm.stats["Allreduce"].algorithms[TRANSPORT]
        if transport == TRANSPORT:
            messages(comm)
            mixed(comm)
        late(comm)
        comm.stats.reset()
        again(comm)
        comm.Free()
    abandoned()
    if rank == 0:
        print("all the same")


if __name__ == "__main__":
    if EMULATED:
        GPU = 0  # each process has emulated GPUs of its own
    reference = MPI.COMM_WORLD.Dup()
    uzipmpi.Comm(reference, compress="always", min_bytes=0, transport="mpi-host")
    main()
