"""Nonblocking and persistent collectives: what they leave is what the blocking ones leave.

Moved values are compared with what mpi4py moves as bytes, reductions with the blocking form, bit
for bit. The environment says what is compressed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from in_order import run_tests
from mpi4py import MPI

import uzipmpi

Array = npt.NDArray[Any]

comm = uzipmpi.Comm(MPI.COMM_WORLD, min_bytes=2048, chunk_bytes=8192)
plain = MPI.Intracomm(MPI.COMM_WORLD)
rank, size = comm.rank, comm.size
DTYPES = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int32")
CASES = [(dtype, 3001 + n) for n, dtype in enumerate(DTYPES)]
CASES += [("bfloat16", 0), ("float32", 1), ("float8_e5m2", 7), ("float16", 20_000)]
OPERATORS = (MPI.SUM, MPI.MAX, uzipmpi.AVG, MPI.PROD)


def tensor(count: int, dtype: str, of_rank: int = rank) -> Array:
    return np.random.default_rng(of_rank).normal(0, 2, count).astype(dtype)


def raw(array: Any) -> Any:
    return array.view(np.uint8) if isinstance(array, np.ndarray) else array


def same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def as_expected(found: Array | None, expected: Array | None, moves: bool) -> bool:
    """Whether a result is right; MPI's own reductions may fold in another order each time."""
    if found is None or expected is None or same(found, expected):
        return True
    ours = comm.config.compress == "always" and found.nbytes > 4096
    if moves or ours or found.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return False
    a, b = found.astype("f8"), expected.astype("f8")
    tolerance = 1e-2 if found.dtype == np.float16 else 1e-5
    return np.allclose(a, b, rtol=tolerance, atol=tolerance)


class Trial:
    """A collective, how to call it on fresh buffers, and what mpi4py itself makes of it.

    ``make`` returns positional arguments, of which ``made[into]`` receives.
    """

    def __init__(
        self, method: str, make: Callable[[], list[Any]], into: int = 1, moves: bool = True
    ) -> None:
        self.method, self.make, self.into, self.moves = method, make, into, moves

    def expected(self) -> Array | None:
        arguments = self.make()
        if self.moves:
            getattr(plain, self.method)(*map(as_bytes, arguments))
        else:
            getattr(comm, self.method)(*arguments)
        return array_of(arguments[self.into])


def array_of(spec: Any) -> Array | None:
    """The array of a specification; None where nothing is received."""
    array = spec[0] if isinstance(spec, (list, tuple)) else spec
    return array if isinstance(array, np.ndarray) else None


def as_bytes(argument: Any) -> Any:
    """The same values for plain mpi4py: as bytes, with counts in bytes."""
    if isinstance(argument, np.ndarray):
        return raw(argument)
    if isinstance(argument, list):
        array, (counts, displs) = argument
        n = array.itemsize
        return [raw(array), ([c * n for c in counts], [d * n for d in displs])]
    return argument


def trials(dtype: str, count: int) -> Iterator[Trial]:
    """Every collective with buffers of a type and a size."""
    root = count % size
    at_root = rank == root
    zeros, mine = np.zeros, tensor
    moving: list[tuple[str, Callable[[], list[Any]], int]] = [
        ("Bcast", lambda: [mine(count, dtype), root], 0),
        ("Gather", lambda: [mine(count, dtype), zeros(count * size, dtype), root], 1),
        ("Scatter", lambda: [mine(count * size, dtype), zeros(count, dtype), root], 1),
        ("Allgather", lambda: [mine(count, dtype), zeros(count * size, dtype)], 1),
        ("Alltoall", lambda: [mine(count * size, dtype), zeros(count * size, dtype)], 1),
    ]
    counts = [0 if r % 3 == 1 else count + r for r in range(size)]
    displs = [sum(counts[:r]) + 3 * r for r in range(size)]
    room = sum(counts) + 3 * size
    own = counts[rank]
    to = [min(counts[r], own) for r in range(size)]
    places = [r * (count + size) for r in range(size)]
    wide = size * (count + size)

    def spread(array: Array) -> list[Any]:
        return [array, (counts, displs)]

    moving += [
        ("Gatherv", lambda: [mine(own, dtype), spread(zeros(room, dtype)), root], 1),
        ("Scatterv", lambda: [spread(mine(room, dtype)), zeros(own, dtype), root], 1),
        ("Allgatherv", lambda: [mine(own, dtype), spread(zeros(room, dtype))], 1),
        (
            "Alltoallv",
            lambda: [[mine(wide, dtype), (to, places)], [zeros(wide, dtype), (to, places)]],
            1,
        ),
    ]
    for method, make, into in moving:
        yield Trial(method, make, into)
    op = OPERATORS[count % 4] if dtype != "int32" else MPI.SUM
    in_place = [MPI.IN_PLACE, None][count % 2]
    reducing: list[tuple[str, Callable[[], list[Any]]]] = [
        ("Allreduce", lambda: [mine(count, dtype), zeros(count, dtype), op]),
        ("Allreduce", lambda: [in_place, mine(count, dtype), op]),
        (
            "Reduce",
            lambda: [mine(count, dtype), zeros(count, dtype) if at_root else None, op, root],
        ),
        ("Reduce_scatter", lambda: [mine(sum(counts), dtype), zeros(own, dtype), counts, op]),
        ("Reduce_scatter", lambda: [mine(sum(counts), dtype), zeros(own, dtype), None, op]),
        ("Reduce_scatter", lambda: [in_place, mine(sum(counts), dtype), counts, op]),
        ("Reduce_scatter_block", lambda: [mine(count * size, dtype), zeros(count, dtype), op]),
        ("Reduce_scatter_block", lambda: [in_place, mine(count * size, dtype), op]),
        ("Scan", lambda: [mine(count, dtype), zeros(count, dtype), op]),
        ("Exscan", lambda: [in_place, mine(count, dtype), op]),
    ]
    for method, make in reducing:
        yield Trial(method, make, 1, moves=False)


def every_trial() -> Iterator[Trial]:
    for dtype, count in CASES:
        yield from trials(dtype, count)


def test_nonblocking() -> None:
    for trial in every_trial():
        expected = trial.expected()
        arguments = trial.make()
        request = getattr(comm, f"I{trial.method.lower()}")(*arguments)
        assert isinstance(request, MPI.Request)
        request.Wait()
        found = array_of(arguments[trial.into])
        assert as_expected(found, expected, trial.moves), trial.method


def test_many_at_once_completed_in_any_order() -> None:
    """All are begun before the first is waited for; MPI completes some, we the others."""
    for dtype, count in (("float32", 3001), ("bfloat16", 5000), ("float64", 10)):
        batch = list(trials(dtype, count))
        expected = [trial.expected() for trial in batch]
        made = [trial.make() for trial in batch]
        requests = [
            getattr(comm, f"I{trial.method.lower()}")(*arguments)
            for trial, arguments in zip(batch, made, strict=True)
        ]
        order = np.random.default_rng(rank).permutation(len(requests))
        half = len(order) // 2
        for place in order[:half]:
            requests[place].Wait()
        MPI.Request.Waitall([requests[place] for place in order[half:]])
        for trial, arguments, values in zip(batch, made, expected, strict=True):
            found = array_of(arguments[trial.into])
            assert as_expected(found, values, trial.moves), trial.method


def test_beside_blocking_calls_and_messages() -> None:
    for dtype in ("float32", "float8_e4m3fn"):
        mine, total = tensor(9000, dtype), np.zeros(9000, dtype)
        first = comm.Iallreduce(mine, total)
        expected, received = np.zeros(9000, dtype), np.zeros(9000, dtype)
        comm.Allreduce(mine, expected)
        right, left = (rank + 1) % size, (rank - 1) % size
        requests = [comm.Isend(mine, right), comm.Irecv(received, left)]
        whole = np.zeros(9000 * size, dtype)
        second = comm.Iallgather(mine, whole)
        comm.Barrier()
        again = mine.copy()
        comm.Bcast(again, 0)
        MPI.Request.Waitall([second, *requests, first])
        assert as_expected(total, expected, moves=False)
        assert same(received, tensor(9000, dtype, left))
        assert all(same(whole[9000 * r :][:9000], tensor(9000, dtype, r)) for r in range(size))
        assert same(again, tensor(9000, dtype, 0))


def test_dropped_requests() -> None:
    """Nobody waits for them; they end all the same, and their buffers live as long."""
    if comm.config.compress != "always" or size == 1:
        return  # mpi4py's own requests
    totals = np.zeros((5, 20_000), np.float32)
    for total in totals:
        comm.Iallreduce(tensor(20_000, "float32"), total)
        comm.Ibcast(tensor(20_000, "float32", 0), 0)
        gc.collect()
    expected = np.zeros(20_000, np.float32)
    comm.Allreduce(tensor(20_000, "float32"), expected)
    deadline = time.monotonic() + 20
    while not (totals == expected).all():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    comm.Barrier()


def test_test_and_status() -> None:
    total = np.zeros(20_000, np.float32)
    request = comm.Iallreduce(tensor(20_000, "float32"), total)
    deadline = time.monotonic() + 20
    while not request.Test():
        assert time.monotonic() < deadline
    assert request == MPI.REQUEST_NULL
    status = MPI.Status()
    comm.Ibcast(total, 0).Wait(status)
    assert not status.Is_cancelled()


def test_persistent() -> None:
    for trial in every_trial():
        expected = trial.expected()
        arguments = trial.make()
        request = getattr(comm, f"{trial.method}_init")(*arguments)
        assert isinstance(request, MPI.Prequest)
        for _ in range(3):
            for old, new in zip(arguments, trial.make(), strict=True):
                if isinstance(array_of(old), np.ndarray):
                    array_of(old)[...] = array_of(new)
            request.Start()
            request.Wait()
            found = array_of(arguments[trial.into])
            assert as_expected(found, expected, trial.moves), trial.method
        request.Free()


def test_persistent_started_in_any_order() -> None:
    """Ranks start them in different orders; each round sends the values of its time."""
    for dtype in ("float32", "bfloat16"):
        mine = tensor(5000, dtype)
        totals = [np.zeros(5000, dtype) for _ in range(4)]
        wholes = [np.zeros(5000 * size, dtype) for _ in range(4)]
        requests = [comm.Allreduce_init(mine, total) for total in totals]
        requests += [comm.Allgather_init(mine, whole) for whole in wholes]
        small = np.full(3, rank, dtype), np.zeros(3, dtype)
        if comm.config.compress == "always" and dtype == "bfloat16" and size > 1:
            requests.append(comm.Allreduce_init(*small))
        for step in range(3):
            mine[:] = tensor(5000, dtype, rank + step)
            expected = np.zeros(5000, dtype)
            comm.Allreduce(mine, expected)
            order = np.random.default_rng(size * step + rank).permutation(len(requests))
            if comm.config.compress != "always" or size == 1:
                order = np.arange(len(requests))  # MPI's own: fewer promises by older MPIs
            for place in order:
                requests[place].Start()
            MPI.Request.Waitall(requests)
            assert all(as_expected(total, expected, moves=False) for total in totals)
            for whole in wholes:
                parts = (
                    same(whole[5000 * r :][:5000], tensor(5000, dtype, r + step))
                    for r in range(size)
                )
                assert all(parts)
        if len(requests) > 8:
            assert (small[1].astype(float) == sum(range(size))).all()
        for request in requests:
            request.Free()


def test_derived_datatypes() -> None:
    """What a derived datatype names is packed anew for each round."""
    column = MPI.FLOAT.Create_vector(2500, 1, 3).Commit()
    grid = np.zeros((2500, 3), np.float32)
    received = np.zeros((size, 2500), np.float32)
    request = comm.Allgather_init([grid, 1, column], received)
    for step in range(2):
        grid[:, 0] = tensor(2500, "float32", rank + step)
        request.Start()
        request.Wait()
        assert all(same(received[r], tensor(2500, "float32", r + step)) for r in range(size))
    request.Free()
    grid[:] = 0
    if rank == 0:
        grid[:, 0] = tensor(2500, "float32", 0)
    comm.Ibcast([grid, 1, column], 0).Wait()
    assert same(grid[:, 0].copy(), tensor(2500, "float32", 0))
    assert not grid[:, 1:].any()
    column.Free()


def test_statistics() -> None:
    if comm.config.compress != "always" or size == 1:
        return
    comm.stats.reset()
    mine, total = tensor(20_000, "bfloat16"), np.zeros(20_000, "bfloat16")
    comm.Iallreduce(mine, total).Wait()
    request = comm.Allreduce_init(mine, total)
    for _ in range(2):
        request.Start()
        request.Wait()
    request.Free()
    for name, calls in (("Iallreduce", 1), ("Allreduce_init", 2)):
        found = comm.stats[name]
        assert found.calls == calls
        assert 0 < found.frame_bytes < found.coded_bytes


def test_prefix_reductions() -> None:
    """Scan and Exscan fold in rank order, with one rounding, types that MPI would add as bytes."""
    for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        for count in (1, 3000):
            parts = [tensor(count, dtype, r).astype(np.float32) for r in range(size)]
            received = np.zeros(count, dtype)
            comm.Scan(parts[rank].astype(dtype), received)
            assert same(received, reduce(np.add, parts[: rank + 1]).astype(dtype)), (dtype, count)
            received = np.full(count, 3, dtype)
            comm.Exscan(parts[rank].astype(dtype), received)
            before = (
                reduce(np.add, parts[:rank]).astype(dtype) if rank else np.full(count, 3, dtype)
            )
            assert same(received, before), (dtype, count)
    received = np.zeros(5, np.float64)
    comm.Scan(np.ones(5), received)
    assert (received == rank + 1).all()
    with pytest.raises(ValueError, match="mismatch in send count 4 and receive count 5"):
        comm.Scan(np.ones(4), received) if rank >= 0 else None


def test_alltoallw() -> None:
    for dtype, kind in (("bfloat16", uzipmpi.BFLOAT16), ("float8_e5m2", "float8_e5m2")):
        mine = tensor(100 * size, dtype)
        received = np.zeros_like(mine)
        counts, displs = [100] * size, [100 * r * mine.itemsize for r in range(size)]
        spec = [counts, displs, [kind] * size]
        for form in ("Alltoallw", "Ialltoallw", "Alltoallw_init"):
            received[:] = 0
            request = getattr(comm, form)([mine, *spec], [received, *spec])
            if form == "Alltoallw_init":
                request.Start()
            if request is not None:
                request.Wait()
            for r in range(size):
                whole = tensor(100 * size, dtype, r)
                assert same(received[100 * r :][:100], whole[100 * rank :][:100])
            if isinstance(request, MPI.Prequest):
                request.Free()


def test_neighbours() -> None:
    ring = comm.Create_cart([size], [True])
    for dtype, kind in (("bfloat16", uzipmpi.BFLOAT16), ("float32", MPI.FLOAT)):
        mine, received = tensor(100, dtype), np.zeros(200, dtype)
        twice = np.concatenate([mine, mine])
        expected = np.concatenate([tensor(100, dtype, peer) for peer in ring.Shift(0, 1)])
        counts = [100, 100]
        spec = [counts, [0, 100 * mine.itemsize], [kind] * 2]
        calls: dict[str, tuple[Any, Any]] = {
            "allgather": (mine, received),
            "allgatherv": (mine, [received, counts]),
            "alltoall": (twice, received),
            "alltoallv": ([twice, counts], [received, counts]),
            "alltoallw": ([twice, *spec], [received, *spec]),
        }
        for name, arguments in calls.items():
            for form in (f"Neighbor_{name}", f"Ineighbor_{name}", f"Neighbor_{name}_init"):
                received[:] = 0
                request = getattr(ring, form)(*arguments)
                if isinstance(request, MPI.Prequest):
                    request.Start()
                if request is not None:
                    request.Wait()
                assert same(received, expected), form
                if isinstance(request, MPI.Prequest):
                    request.Free()
    ring.Free()


run_tests(globals(), comm)
