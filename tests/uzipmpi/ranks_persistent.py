"""Persistent requests: rounds, mpi4py's functions on them, errors, freeing."""

from __future__ import annotations

import gc

import numpy as np
import numpy.typing as npt
import pytest
from in_order import run_tests
from mpi4py import MPI

import uzipmpi

Array = npt.NDArray[np.generic]

comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=2048, chunk_bytes=16384)
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size


def tensor(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(0, 0.02, count).astype(np.float32)


def same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def made_of_rounds(sent: Array, received: Array) -> list[MPI.Prequest]:
    return [
        uzipmpi.Prequest(lambda: comm.Irecv(received, left, 3)),
        uzipmpi.Prequest(lambda: comm.Isend(sent, right, 3)),
    ]


def test_rounds() -> None:
    for count in (1, 34, 20_000):
        sent, received = tensor(count, 0), np.zeros(count, np.float32)
        requests = made_of_rounds(sent, received)
        for turn in range(6):
            sent[:] = tensor(count, 10 * rank + turn)
            received[:] = 0
            if turn % 2:
                uzipmpi.Prequest.Startall(requests)
            else:
                for request in requests:
                    request.Start()
            statuses = [MPI.Status(), MPI.Status()]
            if turn == 0:
                assert all(request.Wait() for request in requests)
            elif turn == 1:
                MPI.Request.Waitall(requests, statuses)
                assert (statuses[0].source, statuses[0].tag) == (left, 3)
                assert statuses[0].Get_count(MPI.FLOAT) == count
            elif turn == 2:
                assert {MPI.Request.Waitany(requests) for _ in requests} == {0, 1}
                assert MPI.Request.Waitany(requests) == MPI.UNDEFINED
            elif turn == 3:
                done: list[int] = []
                while len(done) < 2:
                    done += MPI.Request.Testsome(requests) or []
                assert sorted(done) == [0, 1]
            elif turn == 4:
                while not requests[0].Test(statuses[0]):
                    pass
                assert statuses[0].Get_count(MPI.FLOAT) == count
                requests[1].wait()
            else:
                uzipmpi.Request.Waitall(requests)
            assert same(received, tensor(count, 10 * left + turn))
            assert all(requests)
            assert all(request != MPI.REQUEST_NULL for request in requests)
            # Inactive requests are complete, with an empty status.
            assert requests[0].Test(statuses[0])
            assert statuses[0].source == MPI.ANY_SOURCE
            assert requests[1].Wait(statuses[1])
        for request in requests:
            request.Free()
            assert request == MPI.REQUEST_NULL
            assert not request


def test_errors() -> None:
    sent, received = tensor(20_000, rank), np.zeros(20_000, np.float32)
    requests = made_of_rounds(sent, received)
    requests[0].Start()
    with pytest.raises(MPI.Exception) as caught:
        requests[0].Start()
    assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    requests[1].Start()
    MPI.Request.Waitall(requests)
    assert same(received, tensor(20_000, left))
    for request in requests:
        request.Free()
        for wrong in (request.Start, request.Free):
            with pytest.raises(MPI.Exception) as caught:
                wrong()
            assert caught.value.Get_error_class() == MPI.ERR_REQUEST
        request.free()
        assert request.Wait()


def incompressible(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 1 << 31, count).astype(np.uint32)


def test_freed_or_dropped_while_active() -> None:
    for make, count in ((tensor, 10), (tensor, 20_000), (incompressible, 500_000)):
        for drop in (False, True):
            sent = make(count, 10 * rank)
            request = uzipmpi.Prequest(lambda sent=sent: comm.Isend(sent, right, 4))  # type: ignore[misc]
            request.Start()
            if not drop:
                request.Free()
                assert request == MPI.REQUEST_NULL
            del request, sent
            gc.collect()
            noise = [np.full(count, 7, np.uint32) for _ in range(4)]  # where the values were
            received = make(count, 1000)
            comm.Recv(received, left, 4)
            assert same(received, make(count, 10 * left))
            del noise


run_tests(globals(), comm)
