"""Messages of every kind between two ranks, compressed and not, as they meet on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from in_order import run_tests
from mpi4py import MPI

import uzipmpi
from uzipmpi.algorithms import sendrecv
from uzipmpi.algorithms.stream import drive
from uzipmpi.head import HEAD_BYTES, MAGIC, Head
from uzipmpi.typing import DType, Tensor

Array = npt.NDArray[np.generic]

comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=4096, chunk_bytes=32768)
rank, peer = comm.rank, 1 - comm.rank
plain = MPI.Intracomm(MPI.COMM_WORLD)  # mpi4py's own methods on the same handle
DTYPES = (
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "int32",
    "c8",
)
COUNTS = (0, 1, 17, 34, 1023, 4096, 40_001)


def tensor(count: int, dtype: str, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).normal(0, 0.02, count)
    return (values * 1000).astype(dtype)


def same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def test_every_type_and_size() -> None:
    for seed, (dtype, count) in enumerate((d, c) for d in DTYPES for c in COUNTS):
        sent = tensor(count, dtype, seed)
        if rank == 0:
            comm.Send(sent, 1, seed)
            comm.Isend(sent, 1, seed).Wait()
        else:
            status = MPI.Status()
            received = np.zeros_like(sent)
            comm.Recv(received, 0, seed, status)
            assert same(received, sent)
            assert (status.source, status.tag) == (0, seed)
            assert status.Get_elements(MPI.BYTE) == sent.nbytes
            received = np.zeros(count + 50, sent.dtype)  # larger than the message
            request = comm.Irecv(received, MPI.ANY_SOURCE, MPI.ANY_TAG)
            assert request.Wait(status)
            assert same(received[:count], sent)
            assert not received[count:].astype(np.float32).any()
            assert (status.source, status.tag) == (0, seed)
            assert status.Get_elements(MPI.BYTE) == sent.nbytes


def test_it_is_compressed() -> None:
    before = comm.stats["Send"].wire_bytes
    sent = tensor(100_000, "bfloat16")
    if rank == 0:
        comm.Send(sent, 1)
        assert comm.stats["Send"].wire_bytes - before < 0.7 * sent.nbytes
    else:
        # What travels in the user's own space is the head alone.
        message = np.zeros(sent.nbytes, np.uint8)
        status = MPI.Status()
        plain.Recv(message, 0, status=status)
        assert status.Get_count(MPI.BYTE) == HEAD_BYTES
        head = Head.unpack(message[:HEAD_BYTES])
        assert head is not None
        assert head.nbytes == sent.nbytes
        # Bring in the parts by hand.
        received = np.zeros_like(sent)
        context = comm._endpoint.context(head.tag)
        drive([sendrecv.incoming(context, Tensor.of(received), 0, head.tag, head.parts)])
        assert same(received, sent)


def test_plain_messages_as_long_as_a_head() -> None:
    harmless = np.arange(HEAD_BYTES, dtype=np.uint8)
    sly = harmless.copy()
    sly[: len(MAGIC)] = np.frombuffer(MAGIC, np.uint8)
    forged = Head(DType.FLOAT32, 1 << 20, 3, sendrecv.Parts("chunked", 32768)).pack()
    for message in (harmless, sly, forged):
        if rank == 0:
            comm.Send(message, 1)
            comm.Isend(message, 1).Wait()
            comm.Sendrecv(message, 1, recvbuf=None, source=MPI.PROC_NULL)
        else:
            for receive in (comm.Recv, lambda buf: comm.Irecv(buf).Wait(), comm.Recv):
                received = np.zeros(HEAD_BYTES, np.uint8)
                receive(received)
                assert same(received, message)


def test_every_flavour_of_sending() -> None:
    flavours = ("Send", "Ssend", "Bsend", "Isend", "Issend", "Ibsend")
    MPI.Attach_buffer(bytearray(1 << 20))
    for flavour in flavours:
        for nbytes in (0, 8, HEAD_BYTES, 400, 50_000):
            message = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
            if rank == 0:
                request = getattr(comm, flavour)(message, 1)
                if request is not None:
                    request.Wait()
            else:
                received = np.zeros(nbytes, np.uint8)
                comm.Recv(received, 0)
                assert same(received, message)
    MPI.Detach_buffer()
    if rank == 1:  # ready mode wants the receive posted first
        received = np.zeros(5000, np.float32)
        request = comm.Irecv(received, 0)
        plain.Send(np.zeros(0, np.uint8), 0)
        request.Wait()
        assert received.all()
    else:
        plain.Recv(np.zeros(0, np.uint8), 1)
        comm.Rsend(np.ones(5000, np.float32), 1)


def test_order_of_mixed_messages() -> None:
    """Messages with one tag arrive in order, whether they go in parts or not."""
    counts = [int(n) for n in np.random.default_rng(3).integers(0, 20_000, 40)]
    tensors = [tensor(n, "float32", n) for n in counts]
    if rank == 0:
        requests = [comm.Isend(t, 1, 7) for t in tensors[:20]]
        for t in tensors[20:]:
            comm.Send(t, 1, 7)
        MPI.Request.Waitall(requests)
    else:
        buffers = [np.zeros(20_000, np.float32) for _ in tensors]
        requests = [comm.Irecv(buf, 0, 7) for buf in buffers[:30]]
        for buf in buffers[30:]:
            comm.Recv(buf, MPI.ANY_SOURCE, 7)
        statuses = [MPI.Status() for _ in requests]
        MPI.Request.Waitall(requests, statuses)
        for t, status in zip(tensors, statuses, strict=False):
            assert status.Get_count(MPI.FLOAT) == t.size
        for t, buf in zip(tensors, buffers, strict=True):
            assert same(buf[: t.size], t)


def truncated(receive: Callable[[Any], object], buf: Any) -> None:
    with pytest.raises(MPI.Exception) as caught:
        receive(buf)
    assert caught.value.Get_error_class() in (MPI.ERR_TRUNCATE, MPI.ERR_IN_STATUS)


def test_truncation() -> None:
    """A message that is too large is the receiver's error; nothing is overrun, nobody hangs."""
    large = np.ones(25_000_000, np.float32)
    ways: list[Callable[[Array], object]] = [
        lambda buf: comm.Recv(buf, 0),
        lambda buf: comm.Irecv(buf, 0).Wait(),
        lambda buf: MPI.Request.Waitall([comm.Irecv(buf, 0)]),
        lambda buf: comm.Sendrecv(None, MPI.PROC_NULL, recvbuf=buf, source=0),
    ]
    for count, n_ways in ((large.size, 2), (50_000, 4), (500, 4), (35, 4)):
        for size in (size for size in (0, 2, 40) if size < count):
            for receive in ways[:n_ways]:
                if rank == 0:
                    comm.Send(large[:count], 1)
                else:
                    room = np.zeros(size + 1000, np.float32)
                    truncated(receive, room[:size])
                    assert not room[size:].any()


def test_derived_datatypes() -> None:
    columns = MPI.FLOAT.Create_vector(3000, 2, 4).Commit()
    grid = tensor(12_000, "float32").reshape(3000, 4)
    packed = np.ascontiguousarray(grid[:, :2])
    small = MPI.FLOAT.Create_vector(5, 2, 4).Commit()
    if rank == 0:
        comm.Send([grid, 1, columns], 1)  # plain, into contiguous memory
        comm.Send(packed, 1)  # in parts, into a derived type
        comm.Send(packed, 1)
        comm.Send(packed[:5], 1)  # 40 bytes, into a derived type
        comm.Send(packed, 1)  # too large for it
        comm.Sendrecv_replace([grid, 1, columns], 1, source=1)
        assert (grid[:, :2] == 7).all()
    else:
        contiguous = np.zeros_like(packed)
        comm.Recv(contiguous, 0)
        assert same(contiguous, packed)
        for receive in (comm.Recv, lambda spec, source: comm.Irecv(spec, source).Wait()):
            strided = np.zeros_like(grid)
            receive([strided, 1, columns], 0)
            assert same(np.ascontiguousarray(strided[:, :2]), packed)
            assert not strided[:, 2:].any()
        strided = np.zeros_like(grid)
        comm.Recv([strided, 1, small], 0)
        assert same(np.ascontiguousarray(strided[:5, :2]), packed[:5])
        truncated(lambda spec: comm.Recv(spec, 0), [strided, 1, small])
        values = np.full_like(packed, 7)
        comm.Sendrecv_replace(values, 0, source=0)
        assert same(values, packed)
    columns.Free()
    small.Free()


def test_nobody_and_oneself() -> None:
    status = MPI.Status()
    comm.Send(None, MPI.PROC_NULL)
    comm.Sendrecv_replace(None, MPI.PROC_NULL, source=MPI.PROC_NULL)
    comm.Isend(np.zeros(5000, np.float32), MPI.PROC_NULL).Wait()
    comm.Recv(None, MPI.PROC_NULL, status=status)
    assert (status.source, status.Get_count(MPI.BYTE)) == (MPI.PROC_NULL, 0)
    comm.Irecv(np.zeros(5000, np.float32), MPI.PROC_NULL).Wait(status)
    assert status.source == MPI.PROC_NULL
    sent = tensor(30_000, "float32", rank)
    for send in (comm.Isend, comm.Issend):
        received = np.zeros_like(sent)
        request = send(sent, rank, 9)
        comm.Recv(received, rank, 9)
        request.Wait()
        assert same(received, sent)
    received = np.zeros_like(sent)
    comm.Sendrecv(sent, rank, recvbuf=received, source=rank)
    assert same(received, sent)
    comm.Sendrecv_replace(received, rank, source=rank)
    assert same(received, sent)
    empty = np.zeros(0, np.float32)
    comm.Sendrecv(empty, peer, recvbuf=received, source=peer, status=status)
    assert status.Get_count(MPI.FLOAT) == 0


def test_exchanges() -> None:
    for count in (1, 34, 5_000, 100_001):
        mine, theirs = tensor(count, "bfloat16", rank), tensor(count, "bfloat16", peer)
        received = np.zeros_like(mine)
        status = MPI.Status()
        comm.Sendrecv(mine, peer, 1, received, peer, 1, status)
        assert same(received, theirs)
        assert status.Get_elements(MPI.BYTE) == theirs.nbytes
        comm.Sendrecv_replace(received, peer, 1, peer, 1)
        assert same(received, mine)


def test_cancel() -> None:
    received = np.zeros(5000, np.float32)
    request = comm.Irecv(received, peer, 99)
    request.Cancel()
    status = MPI.Status()
    request.Wait(status)
    assert status.Is_cancelled()
    request = comm.Irecv(received, peer, 98)  # the next is not disturbed
    comm.Send(np.ones(5000, np.float32), peer, 98)
    request.Wait(status)
    assert not status.Is_cancelled()
    assert received.all()


def test_bad_arguments() -> None:
    values = np.zeros(5000, np.float32)
    for bad in (2, -7):
        with pytest.raises(MPI.Exception) as caught:
            comm.Send(values, bad)
        assert caught.value.Get_error_class() == MPI.ERR_RANK
        with pytest.raises(MPI.Exception):
            comm.Irecv(values, bad)
    with pytest.raises(TypeError, match="integer"):
        comm.Send(values, "1")  # type: ignore[arg-type]
    with pytest.raises(MPI.Exception) as caught:
        comm.Send(values, peer, -5)
    assert caught.value.Get_error_class() == MPI.ERR_TAG
    comm.Barrier()
    read_only = values.copy()
    read_only.flags.writeable = False
    for wrong, error in ((values[::2], BufferError), (read_only, BufferError), ([1.0], TypeError)):
        with pytest.raises((error, ValueError)):
            comm.Recv(wrong, peer)
    with pytest.raises(ValueError, match="expected a buffer of at least"):
        comm.Send([values, 6000, MPI.FLOAT], peer)


run_tests(globals(), comm)
