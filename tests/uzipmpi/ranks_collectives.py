"""Collectives through the communicator: every way to name a buffer, in place, derived, and wrong.

Moved values are compared with what was sent, reductions with NumPy's in the order of the ranks. The
environment says what is compressed.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from in_order import run_tests
from mpi4py import MPI

import uzipmpi

Array = npt.NDArray[Any]

comm = uzipmpi.Comm(MPI.COMM_WORLD, min_bytes=2048, chunk_bytes=8192)
rank, size = comm.rank, comm.size
DTYPES = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
# Every type in parts and not, every count: 0, 1, odd, of one chunk, of many.
CASES = [(dtype, 3001 + n) for n, dtype in enumerate(DTYPES)]
CASES += [("bfloat16", 0), ("float32", 1), ("float8_e5m2", 7), ("float16", 20_000)]
OURS = {
    "bfloat16": uzipmpi.BFLOAT16,
    "float8_e4m3fn": uzipmpi.FLOAT8_E4M3FN,
    "float8_e5m2": uzipmpi.FLOAT8_E5M2,
    "float16": "e",
    "float32": MPI.FLOAT,
    "float64": "d",
}


def tensor(count: int, dtype: str, of_rank: int = rank) -> Array:
    return np.random.default_rng(of_rank).normal(0, 0.5, count).astype(dtype)


def same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def specs(array: Array, dtype: str) -> list[Any]:
    """Return ways to name all of an array."""
    return [
        array,
        [array, OURS[dtype]],
        [array, (array.size, 0), OURS[dtype]],
        (array, array.size, 0, OURS[dtype]),
        [array.view(np.uint8), dtype if dtype in ("bfloat16",) else OURS[dtype]],
    ]


def test_bcast() -> None:
    for dtype, count in CASES:
        for way in range(5):
            root = (count + way) % size
            values = tensor(count, dtype, root)
            received = values.copy() if rank == root else np.zeros_like(values)
            comm.Bcast(specs(received, dtype)[(way + rank) % 5], root)
            assert same(received, values)


def test_allgather() -> None:
    for dtype, count in CASES:
        expected = np.concatenate([tensor(count, dtype, r) for r in range(size)])
        mine = tensor(count, dtype)
        for way in range(2):
            received = np.zeros_like(expected)
            spec: Any = received if way else [received, count, OURS[dtype]]
            comm.Allgather(specs(mine, dtype)[way], spec)
            assert same(received, expected)
            received = np.zeros_like(expected)
            received[rank * count : (rank + 1) * count] = mine
            comm.Allgather(None if way else MPI.IN_PLACE, spec if way else received)
            assert way or same(received, expected)


def uneven(count: int) -> tuple[list[int], list[int], int]:
    """Return counts that differ between ranks, displacements with gaps, and the size with them."""
    counts = [(count * (r + 1)) // size + r for r in range(size)]
    displs = [sum(counts[:r]) + 3 * r for r in range(size)]
    return counts, displs, sum(counts) + 3 * size


def test_allgatherv_and_gatherv_and_scatterv() -> None:
    for dtype, count in CASES:
        counts, displs, room = uneven(count)
        whole = np.zeros(room, dtype)
        for r in range(size):
            whole[displs[r] : displs[r] + counts[r]] = tensor(counts[r], dtype, r)
        mine = tensor(counts[rank], dtype)
        received = np.zeros_like(whole)
        comm.Allgatherv(mine, [received, (counts, displs), OURS[dtype]])
        assert same(received, whole)
        root = count % size
        received = np.zeros_like(whole)
        target: Any = [received, counts, displs, OURS[dtype]] if rank == root else None
        comm.Gatherv(mine, target, root)
        assert rank != root or same(received, whole)
        if rank == root:  # in place
            received[: displs[rank]] = 0
            received[displs[rank] + counts[rank] :] = 0
        comm.Gatherv(MPI.IN_PLACE if rank == root else mine, target, root)
        assert rank != root or same(received, whole)
        back = np.zeros_like(mine)
        source: Any = [whole, (counts, displs)] if rank == root else None
        comm.Scatterv(source, back, root)
        assert same(back, mine)
        if rank == root:
            comm.Scatterv(source, MPI.IN_PLACE, root)
        else:
            back[:] = 0
            comm.Scatterv(None, back, root)
            assert same(back, mine)


def test_gather_and_scatter() -> None:
    for dtype, count in CASES:
        whole = np.concatenate([tensor(count, dtype, r) for r in range(size)])
        mine = tensor(count, dtype)
        root = (count + 1) % size
        received = np.zeros_like(whole)
        comm.Gather(mine, received if rank == root else None, root)
        assert rank != root or same(received, whole)
        back = np.zeros_like(mine)
        comm.Scatter([whole, count, OURS[dtype]] if rank == root else None, back, root)
        assert same(back, mine)


def test_roots_may_be_numpy_s_integers() -> None:
    root = np.int64(size - 1)
    values = tensor(3001, "bfloat16", size - 1)
    received = values.copy() if rank == root else np.zeros_like(values)
    comm.Bcast(received, root)
    assert same(received, values)
    everything = np.zeros((size, 3001), values.dtype)
    comm.Gather(received, everything if rank == root else None, root)
    assert rank != root or all(same(row, values) for row in everything)
    received[:] = 0
    comm.Scatter(everything if rank == root else None, received, root)
    assert same(received, values)
    comm.Reduce(values, received if rank == root else None, MPI.MAX, root)
    assert rank != root or same(received, values)


def test_alltoall() -> None:
    for dtype, count in CASES:
        mine = tensor(count * size, dtype).reshape(size, count)
        expected = np.stack(
            [tensor(count * size, dtype, r).reshape(size, count)[rank] for r in range(size)]
        )
        received = np.zeros_like(mine)
        comm.Alltoall(mine, received)
        assert same(received, expected)
        received = mine.copy()
        comm.Alltoall(MPI.IN_PLACE, received)
        assert same(received, expected)
        # Rank r sends s elements to rank s, and nothing to itself.
        counts = [0 if r == rank else min(r, count) for r in range(size)]
        taken = [0 if r == rank else min(rank, count) for r in range(size)]
        received = np.zeros((size, count), dtype)
        displs = [r * count for r in range(size)]
        comm.Alltoallv(
            [mine, (counts, displs), OURS[dtype]], [received, (taken, displs), OURS[dtype]]
        )
        for r in range(size):
            assert same(received[r, : taken[r]], expected[r, : taken[r]])
            assert not received[r, taken[r] :].astype(np.float32).any()
        counts = [count // 2] * size
        received = mine.copy()
        comm.Alltoallv(MPI.IN_PLACE, [received, counts, displs, OURS[dtype]])
        assert same(received[:, : count // 2], expected[:, : count // 2])


def in_rank_order(function: Any, dtype: str, count: int, divide: bool = False) -> Array:
    wide = "float64" if dtype == "float64" else "float32"
    total = tensor(count, dtype, 0).astype(wide)
    for r in range(1, size):
        total = function(total, tensor(count, dtype, r).astype(wide))
    return (total / np.asarray(size, wide) if divide else total).astype(dtype)


REDUCTIONS = (
    (MPI.SUM, np.add, False),
    (MPI.PROD, np.multiply, False),
    (MPI.MIN, np.minimum, False),
    (MPI.MAX, np.maximum, False),
    (uzipmpi.AVG, np.add, True),
)


def close(a: Array, b: Array, dtype: str) -> bool:
    """Whether reductions agree: to the bit where we fold, else as far as MPI's own order allows."""
    if dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2") or size <= 2:
        return same(a, b)
    tolerance = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    return np.allclose(a.astype("f8"), b.astype("f8"), rtol=tolerance, atol=tolerance)


def test_allreduce_and_reduce() -> None:
    for n, (dtype, count) in enumerate(CASES):
        mine = tensor(count, dtype)
        for op, function, divide in (REDUCTIONS[n % 5], REDUCTIONS[(n + 2) % 5]):
            expected = in_rank_order(function, dtype, count, divide)
            received = np.zeros_like(mine)
            comm.Allreduce(mine, received, op)
            assert close(received, expected, dtype), (dtype, count, op)
            assert len(set(comm.allgather(received.tobytes()))) == 1
            for in_place in (MPI.IN_PLACE, None):
                received = mine.copy()
                comm.Allreduce(in_place, [received, OURS[dtype]], op=op)
                assert close(received, expected, dtype)
            received = mine.copy()
            comm.Allreduce(received, received, op)
            assert close(received, expected, dtype)
            root = count % size
            received = np.zeros_like(mine)
            comm.Reduce(mine, received if rank == root else None, op, root)
            assert rank != root or close(received, expected, dtype)
            if rank == root:
                received = mine.copy()
                comm.Reduce(MPI.IN_PLACE, received, op, root)
                assert close(received, expected, dtype)
            else:
                comm.Reduce(mine, None, op, root)


def test_one_plus_one() -> None:
    """Plain mpi4py adds bfloat16 as bytes on Open MPI, and refuses it on MPICH."""
    for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        for count in (1, 5000):
            total = np.zeros(count, dtype)
            comm.Allreduce(np.ones(count, dtype), total)
            assert (total.astype(np.float32) == size).all()


def test_reduce_scatter() -> None:
    for dtype, count in CASES:
        counts = [count + r for r in range(size)]
        mine = tensor(sum(counts), dtype)
        start = sum(counts[:rank])
        expected = in_rank_order(np.add, dtype, mine.size)[start : start + counts[rank]]
        for given in (counts, None):
            received = np.zeros(counts[rank], dtype)
            comm.Reduce_scatter(mine, received, given)
            assert close(received, expected, dtype)
        received = mine.copy()
        comm.Reduce_scatter(MPI.IN_PLACE, received, counts)
        assert close(received[: counts[rank]], expected, dtype)
        mine = tensor(count * size, dtype)
        expected = in_rank_order(np.add, dtype, mine.size)[rank * count : (rank + 1) * count]
        received = np.zeros(count, dtype)
        comm.Reduce_scatter_block(mine, received)
        assert close(received, expected, dtype)
        received = mine.copy()
        comm.Reduce_scatter_block(MPI.IN_PLACE, received)
        assert close(received[:count], expected, dtype)


def test_operators_that_mpi_lacks() -> None:
    furthest = uzipmpi.Op(lambda x, y: x if abs(x) >= abs(y) else y)
    last = uzipmpi.Op(lambda x, y: y, commute=False)
    for dtype in ("bfloat16", "float32", "float64"):
        for count in (3, 5000):
            received = np.zeros(count, dtype)
            comm.Allreduce(tensor(count, dtype), received, furthest)
            assert same(
                received, in_rank_order(lambda x, y: np.where(abs(x) >= abs(y), x, y), dtype, count)
            )
            comm.Allreduce(tensor(count, dtype), received, last)
            assert same(received, tensor(count, dtype, size - 1))
    with pytest.raises(TypeError, match="avg: expected one of the six float types"):
        comm.Allreduce(np.ones(3, np.int32), np.zeros(3, np.int32), uzipmpi.AVG)


def test_what_goes_to_mpi_unchanged() -> None:
    for count in (3, 5000):
        total = np.zeros(count, np.int64)
        comm.Allreduce(np.full(count, rank), total)
        assert (total == size * (size - 1) // 2).all()
        comm.Reduce_scatter_block(np.ones(count * size, np.int32), out := np.zeros(count, np.int32))
        assert (out == size).all()
        flags = np.zeros(count, bool)
        comm.Allreduce(np.full(count, rank == 0), flags, MPI.LOR)
        assert flags.all()
        own = MPI.Op.Create(
            lambda a, b, t: np.copyto(np.frombuffer(b, "f4"), np.frombuffer(a, "f4"))
        )
        comm.Allreduce(np.full(count, 5, np.float32), received := np.zeros(count, np.float32), own)
        assert (received == 5).all()
        own.Free()
        complex_ = np.zeros(count, complex)
        comm.Allreduce(np.full(count, 1j), complex_)
        assert (complex_ == size * 1j).all()
    pair = np.array([(float(rank), rank)], dtype=[("a", "f8"), ("b", "i4")])
    comm.Allreduce([pair.copy(), 1, MPI.DOUBLE_INT], [pair, 1, MPI.DOUBLE_INT], MPI.MAXLOC)
    assert pair["b"][0] == size - 1


def test_derived_datatypes_on_some_ranks() -> None:
    """Ranks may name the same values differently; what some cannot compress still arrives."""
    column = MPI.FLOAT.Create_vector(2500, 1, 3).Commit()
    for root in range(size):
        grid = np.zeros((2500, 3), np.float32)
        values = tensor(2500, "float32", root)
        if rank == root:
            grid[:, 0] = values
        spec: Any = [grid, 1, column]
        if rank % 2:
            buffer = np.ascontiguousarray(grid[:, 0])
            comm.Bcast(buffer, root)
            assert same(buffer, values)
        else:
            comm.Bcast(spec, root)
            assert same(np.ascontiguousarray(grid[:, 0]), values)
            assert not grid[:, 1:].any()
    grid = np.zeros((2500, 3), np.float32)
    grid[:, 0] = tensor(2500, "float32")
    received = np.zeros((size, 2500), np.float32)
    comm.Allgather([grid, 1, column] if rank % 2 == 0 else grid[:, 0].copy(), received)
    assert all(same(received[r], tensor(2500, "float32", r)) for r in range(size))
    # Received by a derived type: one column block for each rank.
    resized = column.Create_resized(0, 2500 * 3 * 4).Commit()
    grids = np.zeros((size, 2500, 3), np.float32)
    comm.Allgather(tensor(2500, "float32"), [grids, 1, resized])
    assert all(same(grids[r, :, 0].copy(), tensor(2500, "float32", r)) for r in range(size))
    grids[:] = 0
    comm.Alltoall(np.tile(tensor(2500, "float32"), size), [grids, 1, resized])
    assert all(same(grids[r, :, 0].copy(), tensor(2500, "float32", r)) for r in range(size))
    resized.Free()
    column.Free()


def test_errors_are_mpi4py_s() -> None:
    """Wrong arguments raise what mpi4py's own methods raise, before anything is sent."""
    plain = MPI.Intracomm(MPI.COMM_WORLD)
    f4, f8 = np.zeros(4096, np.float32), np.zeros(4096)
    wrong: list[tuple[str, tuple[Any, ...]]] = [
        ("Allreduce", (f4, f8)),
        ("Allreduce", (f4[:3000], f4)),
        ("Allreduce", (f4[::2], f4)),
        ("Bcast", ([f4, "no such type"],)),
        ("Bcast", ([1.0, 2.0],)),
        ("Bcast", (None,)),
        ("Bcast", ([f4, 1.5, MPI.FLOAT],)),
        ("Bcast", ([f4, -3, MPI.FLOAT],)),
        ("Bcast", (f4.astype(">f4"),)),
        ("Bcast", (f4, size + 3)),
        ("Reduce", (f4, f4.copy(), MPI.SUM, -4)),
        ("Allgather", (f4, [f4, 1, 2, 3, 4])),
    ]
    if size > 1:
        wrong.append(("Alltoall", (np.zeros(4096 * size + 1), np.zeros(4096 * size))))
    for method, arguments in wrong:
        with pytest.raises(Exception) as expected:  # noqa: PT011
            getattr(plain, method)(*arguments)
        with pytest.raises(type(expected.value)) as found:
            getattr(comm, method)(*arguments)
        if not isinstance(expected.value, MPI.Exception):
            assert str(found.value) == str(expected.value), (method, arguments)
    if comm.config.compress == "always":  # else nobody looks, as in mpi4py
        with pytest.raises(ValueError, match="expected a buffer of at least 20000 bytes"):
            comm.Bcast([f4, 5000, MPI.FLOAT])


def test_reductions_of_objects() -> None:
    largest = uzipmpi.Op(farther)
    values = [r * 1.5 - 4 for r in range(size)]
    mine, so_far = values[rank], values[: rank + 1]
    before = sum(values[:rank]) / rank if rank else None
    assert comm.allreduce(mine, op=uzipmpi.AVG) == sum(values) / size
    assert comm.reduce(mine, uzipmpi.AVG, size - 1) == (
        sum(values) / size if rank == size - 1 else None
    )
    assert comm.scan(mine, uzipmpi.AVG) == sum(so_far) / (rank + 1)
    assert comm.exscan(mine, uzipmpi.AVG) == before
    assert comm.allreduce(mine, op=largest) == functools.reduce(farther, values)
    assert comm.scan(mine, largest) == functools.reduce(farther, so_far)
    assert comm.allreduce(mine) == sum(values)
    assert comm.allreduce(np.full(2, mine), op=uzipmpi.AVG).tolist() == [sum(values) / size] * 2


def farther(x: float, y: float) -> float:
    return x if abs(x) > abs(y) else y


run_tests(globals(), comm)
if comm.config.compress == "always" and size > 1:
    compressed = comm.stats["Allreduce"]
    assert 0 < compressed.frame_bytes < compressed.coded_bytes
