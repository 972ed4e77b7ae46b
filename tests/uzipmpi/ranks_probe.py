"""Probes: what they report, what they leave in order, and how threads get along with them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from in_order import run_tests
from mpi4py import MPI

import uzipmpi
from uzipmpi.head import HEAD_BYTES

Array = npt.NDArray[Any]

comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=2048, chunk_bytes=16384)
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size


def tensor(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)


def test_nothing_there() -> None:
    status = MPI.Status()
    assert comm.Improbe(left, 1, status) is None
    assert comm.improbe(left, 1) is None
    assert not comm.Iprobe(left, 1)
    assert not comm.iprobe(left, 1)
    assert uzipmpi.Message.Iprobe(comm, left, 1) is None
    assert uzipmpi.Message.iprobe(comm, left, 1) is None
    comm.Barrier()


def test_nobody() -> None:
    status = MPI.Status()
    assert comm.Probe(MPI.PROC_NULL, status=status)
    assert (status.source, status.tag, status.count) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
    assert comm.Iprobe(MPI.PROC_NULL)
    for probe in (comm.Mprobe, comm.Improbe):
        message = probe(MPI.PROC_NULL)
        assert message == MPI.MESSAGE_NO_PROC
        message.Recv(None, status)
        assert status.source == MPI.PROC_NULL
        assert message == MPI.MESSAGE_NULL
    assert comm.mprobe(MPI.PROC_NULL).recv() is None
    message = uzipmpi.Message(MPI.MESSAGE_NO_PROC)
    assert message
    assert message == MPI.MESSAGE_NO_PROC
    message.Irecv(None).Wait(status)
    assert status.source == MPI.PROC_NULL
    assert not message
    assert uzipmpi.Message() == MPI.MESSAGE_NULL
    with pytest.raises(MPI.Exception):
        uzipmpi.Message().Recv(bytearray(1))


def test_order_is_kept() -> None:
    """Messages of two tags, small, as long as a head and in parts, with probes in between."""
    counts = [3, 5000, 34, 20_000, 1, 34, 7000, 600, 0, 9000]
    for turn in range(12):
        rng = np.random.default_rng(turn)
        sent = [(count, int(rng.integers(2))) for count in rng.permutation(counts)]
        requests = [
            comm.Isend(tensor(count, 100 * rank + i), right, tag)
            for i, (count, tag) in enumerate(sent)
        ]
        waiting = list(enumerate(sent))
        while waiting:
            tag = int(rng.integers(3))  # 2: any
            wanted = [item for item in waiting if tag in (item[1][1], 2)]
            if not wanted:
                continue
            i, (count, _) = wanted[0]
            source = (left, MPI.ANY_SOURCE)[int(rng.integers(2))]
            receive_next(int(rng.integers(9)), source, tag, (i, *sent[i]))
            waiting.remove((i, (count, sent[i][1])))
        MPI.Request.Waitall(requests)
    comm.Barrier()


def receive_next(way: int, source: int, tag: int, expected: tuple[int, int, int]) -> None:
    """Receive in one of several ways and check that it is the expected message."""
    i, count, sent_tag = expected
    status = MPI.Status()
    received = np.zeros(20_001, np.float32)
    tag = MPI.ANY_TAG if tag == 2 else tag
    if way >= 5:
        comm.Probe(source, tag, status)
        assert (status.tag, status.Get_count(MPI.FLOAT)) == (sent_tag, count)
        source = status.source
    if way in (0, 5):
        comm.Recv(received, source, tag, status)
    elif way in (1, 6):
        comm.Irecv(received, source, tag).Wait(status)
    elif way in (2, 7):
        comm.Mprobe(source, tag).Recv(received, status)
    elif way in (3, 8):
        comm.Sendrecv(None, MPI.PROC_NULL, 0, received, source, tag, status)
    else:
        request = comm.Recv_init(received, source, tag)
        request.Start()
        request.Wait(status)
        request.Free()
    assert (status.source, status.tag, status.Get_count(MPI.FLOAT)) == (left, sent_tag, count)
    assert (received[:count] == tensor(count, 100 * left + i)).all()


def test_objects_among_them() -> None:
    for turn in range(3):
        requests = [
            comm.isend({"turn": turn}, right, 1),
            comm.Isend(tensor(5000, rank), right, 2),
            comm.isend("x" * 200, right, 1),
            comm.isend(b"y" * (HEAD_BYTES - 20), right, 1),
            comm.isend(None, right, 4),
        ]
        status = MPI.Status()
        comm.probe(left, 2, status)
        assert status.Get_count(MPI.FLOAT) == 5000  # the first is held now
        if turn == 0:
            assert comm.recv(source=left, tag=1, status=status) == {"turn": turn}
        elif turn == 1:
            assert comm.irecv(source=left, tag=1).wait(status) == {"turn": turn}
        else:
            assert MPI.Request.waitall([comm.irecv(source=left, tag=1)]) == [{"turn": turn}]
        received = np.zeros(5000, np.float32)
        comm.Mprobe(left, 2).Irecv(received).Wait()
        assert (received == tensor(5000, left)).all()
        assert comm.mprobe(left, 1).recv(status) == "x" * 200
        assert (status.source, status.tag) == (left, 1)
        comm.iprobe(left, 1)
        assert comm.mprobe(left, 1).irecv().wait() == b"y" * (HEAD_BYTES - 20)
        if turn == 0:
            assert comm.irecv(source=left, tag=4).wait() is None
        else:
            assert comm.sendrecv(5, MPI.PROC_NULL, source=left, recvtag=4) is None
        MPI.Request.Waitall(requests)
    assert comm.sendrecv(rank, right, source=left) == left
    comm.Barrier()


def test_a_receive_of_an_object_takes_a_buffer_whole() -> None:
    """Before and after anything was held; it is no object, and its sender is done, as by MPI."""
    for other in (
        uzipmpi.Comm(MPI.COMM_WORLD.Dup(), compress="always", min_bytes=0),
        comm,
    ):
        for receive in (
            lambda other=other: other.recv(source=left, tag=8),
            lambda other=other: other.sendrecv(None, MPI.PROC_NULL, source=left, recvtag=8),
        ):
            request = other.Isend(tensor(40_000, rank), right, 8)
            with pytest.raises(pickle.UnpicklingError):
                receive()
            request.Wait()
        request = other.isend("next", right, 8)
        assert other.recv(source=left, tag=8) == "next"
        request.wait()


def test_truncation() -> None:
    receives: list[Callable[[Array], object]] = [
        lambda buf: comm.Recv(buf, left, 6),
        lambda buf: comm.Mprobe(left, 6).Recv(buf),
        lambda buf: comm.Irecv(buf, left, 6).Wait(),
        lambda buf: comm.Mprobe(left, 6).Irecv(buf).Wait(),
    ]
    for count in (34, 50, 40_000):
        for receive in receives:
            request = comm.Isend(tensor(count, 1), right, 6)
            room = np.zeros(33 + 1000, np.float32)
            comm.Probe(left, 6)
            with pytest.raises(MPI.Exception) as caught:
                receive(room[:33])
            assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
            assert not room[33:].any()
            request.Wait()


def test_wrong_buffers_leave_the_message() -> None:
    for count in (10, 34, 5000):
        request = comm.Isend(tensor(count, 2), right, 7)
        message = comm.Mprobe(left, 7)
        with pytest.raises((TypeError, BufferError, ValueError)):
            message.Recv([1.0])
        assert message
        received = np.zeros(count, np.float32)
        message.Recv(received)
        assert (received == tensor(count, 2)).all()
        request.Wait()


def test_threads() -> None:
    """Each thread has a tag of its own; probes of one hold messages of others."""
    n_threads, n_messages = 3, 12
    failed: list[BaseException] = []

    def sender(tag: int) -> None:
        for i in range(n_messages):
            count = (5, 34, 3000)[(i + tag) % 3]
            comm.Send(tensor(count, 100 * tag + i), right, tag)

    def receiver(tag: int) -> None:
        try:
            for i in range(n_messages):
                count = (5, 34, 3000)[(i + tag) % 3]
                received = np.zeros(count, np.float32)
                status = MPI.Status()
                if tag != 1:
                    comm.Probe(left, tag, status)
                    assert status.Get_count(MPI.FLOAT) == count
                (comm.Recv if i % 2 else recv_matched)(received, left, tag, status)
                assert status.Get_count(MPI.FLOAT) == count
                assert (received == tensor(count, 100 * tag + i)).all()
        except BaseException as error:
            failed.append(error)

    fresh = comm.Dup()  # nothing was held on it
    for communicator in (comm, fresh):
        run_threads(communicator, n_threads, sender, receiver)
        if failed:
            raise failed[0]
    fresh.Free()


def recv_matched(buf: Array, source: int, tag: int, status: MPI.Status) -> None:
    comm.Mprobe(source, tag).Recv(buf, status)


def run_threads(communicator: uzipmpi.Comm, n_threads: int, *tasks: Any) -> None:
    global comm
    before, comm = comm, communicator
    threads = [
        threading.Thread(target=task, args=(tag,)) for tag in range(n_threads) for task in tasks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    comm = before


run_tests(globals(), comm)
