"""Requests: mixed with MPI's own, dropped, tested, and many at once in both directions."""

from __future__ import annotations

import gc
import threading
import time

import ml_dtypes
import numpy as np
import numpy.typing as npt
from mpi4py import MPI

import uzipmpi

Array = npt.NDArray[np.generic]

comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=2048, chunk_bytes=16384)
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size


def tensor(count: int, seed: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).normal(0, 0.02, count).astype(dtype)


def same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def test_waitall_on_a_mixed_list() -> None:
    mine = [tensor(count, 10 * rank + count) for count in (1, 600, 70_001)]
    theirs = [tensor(count, 10 * left + count) for count in (1, 600, 70_001)]
    received = [np.zeros_like(values) for values in theirs]
    reduced = np.zeros(3)
    requests = [comm.Irecv(values, left, tag) for tag, values in enumerate(received)]
    requests += [comm.Isend(values, right, tag) for tag, values in enumerate(mine)]
    requests.append(comm.Iallreduce(np.ones(3), reduced))
    statuses = [MPI.Status() for _ in requests]
    assert all(isinstance(request, MPI.Request) for request in requests)
    MPI.Request.Waitall(requests, statuses)
    assert all(map(same, received, theirs))
    for tag, (values, status) in enumerate(zip(theirs, statuses, strict=False)):
        assert (status.source, status.tag) == (left, tag)
        assert status.Get_count(MPI.FLOAT) == values.size
    assert (reduced == size).all()


def test_waitall_with_null_requests() -> None:
    received = np.zeros(20_000, np.float32)
    requests = [MPI.REQUEST_NULL, comm.Irecv(received, left), MPI.REQUEST_NULL]
    requests.append(comm.Isend(tensor(20_000, rank), right))
    statuses = [MPI.Status() for _ in requests]
    uzipmpi.Request.Waitall(requests, statuses)
    assert same(received, tensor(20_000, left))
    assert statuses[1].source == left


def test_every_way_to_wait() -> None:
    for method in ("Wait", "wait", "Test", "test", "Waitany", "Waitsome", "Testall", "waitall"):
        mine, theirs = tensor(30_000, rank), tensor(30_000, left)
        received = np.zeros_like(theirs)
        requests = [comm.Irecv(received, left), comm.Isend(mine, right)]
        if method in ("Wait", "wait"):
            assert [getattr(request, method)() for request in requests] == [
                True if method == "Wait" else None
            ] * 2
        elif method in ("Test", "test"):
            finished = True if method == "Test" else (True, None)
            for request in requests:
                while getattr(request, method)() != finished:
                    time.sleep(1e-4)
        elif method == "Waitany":
            assert {MPI.Request.Waitany(requests) for _ in requests} == {0, 1}
        elif method == "Waitsome":
            done: set[int] = set()
            while len(done) < 2:
                done |= set(MPI.Request.Waitsome(requests) or ())
        elif method == "Testall":
            while not MPI.Request.Testall(requests):
                time.sleep(1e-4)
        else:
            MPI.Request.waitall(requests)
        assert all(request == MPI.REQUEST_NULL for request in requests)
        assert same(received, theirs)
        assert requests[0].Wait()  # of a null request


def test_dropped_requests() -> None:
    """The values of a send whose request nobody keeps arrive, though their array is gone."""
    for seed in range(10):
        comm.Isend(tensor(50_000, 100 * rank + seed), right, seed)
    gc.collect()
    for seed in range(10):
        received = np.zeros(50_000, np.float32)
        comm.Recv(received, left, seed)
        assert same(received, tensor(50_000, 100 * left + seed))


def test_progress_while_the_program_computes() -> None:
    """A receive ends though this rank calls nothing of MPI's for a while."""
    comm.Barrier()
    received = np.zeros(100_000, np.float32)
    receiving = comm.Irecv(received, left)
    sending = comm.Isend(tensor(100_000, rank), right)
    deadline = time.monotonic() + 20
    while not same(received, tensor(100_000, left)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert same(received, tensor(100_000, left))
    MPI.Request.Waitall([receiving, sending])


def test_threads() -> None:
    """Several threads of a rank exchange messages at once."""
    failed: list[int] = []

    def exchange(tag: int) -> None:
        for turn in range(5):
            mine, theirs = (
                tensor(20_000, 1000 * rank + tag + turn),
                tensor(20_000, 1000 * left + tag + turn),
            )
            received = np.zeros_like(theirs)
            comm.Sendrecv(mine, right, tag, received, left, tag)
            if not same(received, theirs):
                failed.append(tag)

    threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_random_traffic_in_both_directions() -> None:
    """Random sizes, types, orders of posting and ways of sending, all ranks to both neighbours."""
    dtypes = ("float32", "bfloat16", "float8_e5m2", "int64")
    for turn in range(6):
        rng = np.random.default_rng(turn)  # the same on all ranks
        plan = [
            (int(rng.integers(0, 1 << int(rng.integers(1, 16)))), dtypes[int(rng.integers(4))])
            for _ in range(20)
        ]
        requests, arrays = [], []
        order = np.random.default_rng(100 * turn + rank).permutation(2 * len(plan))
        for step in order:
            tag, receives = divmod(int(step), 2)
            count, dtype = plan[tag]
            for peer in (right, left):
                if receives:
                    values = np.zeros(count, dtype)
                    way = 0 if peer == left else 1
                    arrays.append((values, tensor(count, 1000 * peer + tag, dtype)))
                    requests.append(comm.Irecv(values, peer, 2 * tag + way))
                else:
                    way = 0 if peer == right else 1
                    values = tensor(count, 1000 * rank + tag, dtype)
                    requests.append(comm.Isend(values, peer, 2 * tag + way))
        MPI.Request.Waitall(requests)
        for received, expected in arrays:
            assert same(received, expected)


def test_unfinished_business() -> None:
    """The program may end with a receive that nothing matched, and a send on its way."""
    comm.Barrier()
    if rank == 0:
        test_unfinished_business.kept = comm.Irecv(np.zeros(5000, np.float32), 0, 77)  # type: ignore[attr-defined]
    comm.Isend(np.ones(5000, ml_dtypes.bfloat16), right, 78)
    comm.Recv(np.zeros(5000, ml_dtypes.bfloat16), left, 78)


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        comm.Barrier()
        if rank == 0:
            print(name, "passed", flush=True)
