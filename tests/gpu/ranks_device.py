"""Every method on buffers in GPU memory gives what it gives on the same buffers in host memory.

Given a module, the GPU is the emulated one: its streams do nothing until somebody waits for them,
so a wait that is missing shows. Without, it is the machine's:
``mpirun -np 2 python -m mpi4py tests/gpu/ranks_device.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import emulated_module
import numpy as np
import pytest
from device_buffer import DeviceBuffer
from mpi4py import MPI

import uzipmpi
from uzipmpi.typing import DType

if len(sys.argv) > 1:
    emulated_module.install(Path(sys.argv[1]))

FLOATS = [dtype for dtype in DType if dtype is not DType.BYTES]
COUNTS = (0, 1, 68, 1025, 9000)
rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


def values(dtype: DType, count: int, seed: int = 0) -> np.ndarray:
    """Return values that compress, other ones on each rank."""
    generator = np.random.default_rng([seed, rank, count])
    with np.errstate(over="ignore"):
        return (generator.standard_normal(count) * 0.02).astype(dtype.numpy)


def blank(dtype: DType, count: int) -> np.ndarray:
    """Return a buffer to receive in."""
    return np.full(count * dtype.itemsize, 0x33, np.uint8).view(dtype.numpy)


def replaced(spec: Any, put: Callable[[np.ndarray], Any]) -> Any:
    """Return a specification with its array put somewhere else."""
    if isinstance(spec, np.ndarray):
        return put(spec)
    if isinstance(spec, list):
        return [put(spec[0]), *spec[1:]]
    return spec


def content(argument: Any) -> bytes:
    """Return the bytes of the buffer in an argument."""
    buffer = argument[0] if isinstance(argument, list) else argument
    if isinstance(buffer, DeviceBuffer):
        return buffer.get().tobytes()
    return buffer.tobytes() if isinstance(buffer, np.ndarray) else b""


def complete(begun: Any) -> None:
    """Wait for a request, or for two rounds of a persistent one; nothing if there is none."""
    if isinstance(begun, MPI.Prequest):
        for _ in range(2):
            begun.Start()
            begun.Wait()
        begun.Free()
    elif isinstance(begun, MPI.Request):
        begun.Wait()


def same(comm: uzipmpi.Comm, method: str, make: Callable[[], Sequence[Any]]) -> None:
    """Call a method on host buffers, on GPU buffers and, on odd ranks only, on GPU buffers."""
    expected = list(make())
    try:
        begun = getattr(comm, method)(*expected)
    except NotImplementedError:  # an MPI before 4 has no persistent collectives
        assert MPI.Get_version() < (4, 0)
        assert method.endswith("_init")
        with pytest.raises(NotImplementedError):
            getattr(comm, method)(*[replaced(argument, DeviceBuffer) for argument in make()])
        return
    complete(begun)
    wanted = [content(argument) for argument in expected]
    for put in (DeviceBuffer, DeviceBuffer if rank % 2 else np.copy):
        arguments = [replaced(argument, put) for argument in make()]
        complete(getattr(comm, method)(*arguments))
        found = [content(argument) for argument in arguments]
        assert found == wanted, f"{method} {comm.config.compress} {put.__name__}: {expected}"


def forms(method: str) -> list[str]:
    """Return the blocking, nonblocking and persistent names."""
    return [method, f"I{method.lower()}", f"{method}_init"]


def moving(dtype: DType, count: int) -> Iterator[tuple[str, Callable[[], Sequence[Any]]]]:
    """Yield calls that move values."""
    last = size - 1
    counts = [count + peer for peer in range(size)]
    total = sum(counts)
    mine = [counts[rank]] * size
    at_last = rank == last
    yield "Bcast", lambda: [values(dtype, count) if at_last else blank(dtype, count), last]
    yield "Allgather", lambda: [values(dtype, count), blank(dtype, count * size)]
    yield "Allgather", lambda: [MPI.IN_PLACE, values(dtype, count * size)]
    yield "Allgatherv", lambda: [values(dtype, counts[rank]), [blank(dtype, total), counts]]
    yield (
        "Gather",
        lambda: [values(dtype, count), blank(dtype, count * size) if at_last else None, last],
    )
    yield (
        "Gatherv",
        lambda: [
            values(dtype, counts[rank]),
            [blank(dtype, total), counts] if at_last else None,
            last,
        ],
    )
    yield (
        "Scatter",
        lambda: [values(dtype, count * size) if at_last else None, blank(dtype, count), last],
    )
    yield "Alltoall", lambda: [values(dtype, count * size), blank(dtype, count * size)]
    yield "Alltoall", lambda: [MPI.IN_PLACE, values(dtype, count * size)]
    yield (
        "Alltoallv",
        lambda: [[values(dtype, total), counts], [blank(dtype, counts[rank] * size), mine]],
    )


def reducing(
    dtype: DType, count: int, op: Any
) -> Iterator[tuple[str, Callable[[], Sequence[Any]]]]:
    """Yield calls that reduce."""
    last = size - 1
    at_last = rank == last
    yield "Allreduce", lambda: [values(dtype, count), blank(dtype, count), op]
    yield "Allreduce", lambda: [MPI.IN_PLACE, values(dtype, count), op]
    yield (
        "Reduce",
        lambda: [values(dtype, count), blank(dtype, count) if at_last else None, op, last],
    )
    yield "Reduce_scatter_block", lambda: [values(dtype, count * size), blank(dtype, count), op]
    yield "Reduce_scatter_block", lambda: [MPI.IN_PLACE, values(dtype, count * size), op]
    yield "Scan", lambda: [values(dtype, count), blank(dtype, count), op]
    yield "Exscan", lambda: [values(dtype, count), blank(dtype, count), op]


def collectives(comm: uzipmpi.Comm) -> None:
    """All collectives: types, sizes, forms, algorithms, operators."""
    for place, dtype in enumerate(FLOATS):
        for method, make in moving(dtype, COUNTS[2 + place % 3]):
            same(comm, forms(method)[place % 3], make)
        op = (MPI.SUM, MPI.MAX, uzipmpi.AVG if comm.config.compress == "always" else MPI.MIN)[
            place % 3
        ]
        for method, make in reducing(dtype, COUNTS[2 + (place + 1) % 3], op):
            same(comm, forms(method)[(place + 1) % 3], make)
    for count in COUNTS:
        for method, make in (
            *moving(DType.BFLOAT16, count),
            *reducing(DType.BFLOAT16, count, MPI.SUM),
        ):
            same(comm, method, make)
    for name in ("two_shot", "ring", "one_shot"):
        with comm.options(allreduce=name):
            for _, make in list(reducing(DType.BFLOAT16, 9000, MPI.SUM))[:2]:
                same(comm, "Allreduce", make)
    integers = np.arange(1000, dtype=np.int32)
    same(comm, "Allgather", lambda: [integers + rank, np.zeros(1000 * size, np.int32)])
    same(comm, "Allreduce", lambda: [integers + rank, np.zeros(1000, np.int32), MPI.SUM])
    if comm.config.compress == "always":
        half = uzipmpi.Op(lambda x, y: 0.5 * x + y, commute=False)
        for method, make in reducing(DType.FLOAT16, 3000, half):
            same(comm, method, make)


def messages(comm: uzipmpi.Comm, dtypes: Sequence[DType], counts: Sequence[int]) -> None:
    """All ways to send and receive."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in dtypes:
        for count in counts:
            for put_sent, put_received in (
                (DeviceBuffer, DeviceBuffer),
                (DeviceBuffer, np.copy),
                (np.copy, DeviceBuffer),
            ):
                expected = values(dtype, count)
                want = MPI.Intracomm(comm).sendrecv(expected, right, 9, source=left, recvtag=9)

                def spec(buffer: Any, dtype: DType = dtype) -> Any:
                    typed = isinstance(buffer, DeviceBuffer) and dtype is DType.FLOAT8_E5M2
                    return [buffer, dtype.numpy.name] if typed else buffer

                for way in WAYS:
                    sent, received = put_sent(expected), put_received(blank(dtype, count))
                    way(comm, spec(sent), right, spec(received), left)
                    assert content(received) == want.tobytes(), (way.__name__, dtype, count)
                both = put_sent(expected)
                comm.Sendrecv_replace(spec(both), right, 3, left, 3)
                assert content(both) == want.tobytes(), (dtype, count)


def sendrecv(comm: uzipmpi.Comm, sent: Any, right: int, received: Any, left: int) -> None:
    """In one call."""
    status = MPI.Status()
    comm.Sendrecv(sent, right, 3, received, left, 3, status)
    assert status.Get_source() == left


def begun(comm: uzipmpi.Comm, sent: Any, right: int, received: Any, left: int) -> None:
    """Nonblocking, completed together."""
    requests = [comm.Irecv(received, left, 4), comm.Isend(sent, right, 4)]
    uzipmpi.waitall(requests)


def matched(comm: uzipmpi.Comm, sent: Any, right: int, received: Any, left: int) -> None:
    """Received through a probe."""
    request = comm.Issend(sent, right, 5)
    comm.Mprobe(left, 5).Recv(received)
    request.Wait()


def matched_begun(comm: uzipmpi.Comm, sent: Any, right: int, received: Any, left: int) -> None:
    """Received through a probe, nonblocking."""
    request = comm.Isend(sent, right, 5)
    comm.Mprobe(left, 5).Irecv(received).Wait()
    request.Wait()


def buffered(comm: uzipmpi.Comm, sent: Any, right: int, received: Any, left: int) -> None:
    """From the attached buffer."""
    comm.Bsend(sent, right, 6)
    comm.Recv(received, left, 6)


def persistent(comm: uzipmpi.Comm, sent: Any, right: int, received: Any, left: int) -> None:
    """Two rounds."""
    requests = [comm.Recv_init(received, left, 7), comm.Send_init(sent, right, 7)]
    for _ in range(2):
        uzipmpi.Prequest.Startall(requests)
        uzipmpi.waitall(requests)
    for request in requests:
        request.Free()


def in_one_request(comm: uzipmpi.Comm, sent: Any, right: int, received: Any, left: int) -> None:
    """Both in one request."""
    comm.Isendrecv(sent, right, 8, received, left, 8).Wait()


WAYS = (sendrecv, begun, matched, matched_begun, buffered, persistent, in_one_request)


def truncated(comm: uzipmpi.Comm) -> None:
    """A buffer that is too small: an error, nothing behind it, and the sender is not hung."""
    right, left = (rank + 1) % size, (rank - 1) % size
    request = comm.Isend(DeviceBuffer(values(DType.BFLOAT16, 9000)), right, 1)
    received = DeviceBuffer(blank(DType.BFLOAT16, 5000))
    with pytest.raises(MPI.Exception) as raised:
        comm.Recv(received, left, 1)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    request.Wait()


def in_pieces() -> None:
    """Messages that MPI takes from GPU memory go in one piece, unless a size was asked for."""
    sent, received = DeviceBuffer(values(DType.FLOAT32, 100_000)), blank(DType.FLOAT32, 100_000)
    for chunk_bytes in (None, 1 << 17):
        options = {} if chunk_bytes is None else {"chunk_bytes": chunk_bytes}
        comm = uzipmpi.Comm(MPI.COMM_WORLD.Dup(), compress="always", min_bytes=0, **options)
        sendrecv(comm, sent, (rank + 1) % size, DeviceBuffer(received), (rank - 1) % size)
        whole = comm.config.transport == "mpi-device" and chunk_bytes is None
        assert set(comm.stats["Sendrecv"].algorithms) == {"whole" if whole else "chunked"}
        comm.Free()


def main() -> None:
    in_pieces()
    MPI.Attach_buffer(bytearray(1 << 20))
    for compress in ("always", "never"):
        comm = uzipmpi.Comm(
            MPI.COMM_WORLD.Dup(), compress=compress, min_bytes=0, chunk_bytes=8192, allreduce="auto"
        )
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        collectives(comm)
        messages(comm, [DType.BFLOAT16], COUNTS)
        messages(comm, FLOATS, [1500])
        if compress == "always":
            for name in ("whole", "split", "chunked"):
                with comm.options(p2p=name):
                    messages(comm, [DType.FLOAT32], [6000])
            truncated(comm)
            with comm.options(verify=True):
                messages(comm, [DType.FLOAT16], [68, 5000])
                for method, make in reducing(DType.BFLOAT16, 5000, MPI.SUM):
                    same(comm, method, make)
            assert comm.stats["Allreduce"].wire_bytes
        comm.Free()
    if rank == 0:
        print("all the same")


if __name__ == "__main__":
    main()
