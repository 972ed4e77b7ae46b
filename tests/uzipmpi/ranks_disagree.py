"""Ranks call a collective with arguments that do not fit together: errors, no garbage, no hang.

Rank 0 differs from the others. Every trial says who must get an error; afterwards the communicator
works.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from in_order import run_tests
from mpi4py import MPI

import uzipmpi

comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=0, chunk_bytes=8192)
rank, size = comm.rank, comm.size
odd = rank == 0  # the rank that differs
FORM = sys.argv[1]
LIMIT = 20.0


def call(method: str, *arguments: Any) -> None:
    """Call a collective in the form that this run is about."""
    if FORM == "blocking":
        getattr(comm, method)(*arguments)
    elif FORM == "nonblocking":
        getattr(comm, f"I{method.lower()}")(*arguments).Wait()
    else:
        request = getattr(comm, f"{method}_init")(*arguments)
        try:
            request.Start()
            request.Wait()
        finally:
            request.Free()


def outcome(action: Callable[[], Any]) -> str:
    try:
        action()
    except (uzipmpi.Error, MPI.Exception, ValueError, TypeError, BufferError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def trial(action: Callable[[], Any], *words: str, who: str = "all") -> None:
    """Every rank of ``who`` must fail, and some of them say all the words."""
    started = time.monotonic()
    found = MPI.COMM_WORLD.allgather(outcome(action))
    assert time.monotonic() - started < LIMIT, found
    concerned = found if who == "all" else found[1:]
    if who == "all":
        assert all(found), found
    assert any(all(word in text for word in words) for text in concerned), (words, found)
    total = np.zeros(100, np.float32)
    comm.Allreduce(np.ones(100, np.float32), total)
    assert (total == size).all()


def values(count: int = 25_200, dtype: str = "float32") -> Any:
    return np.random.default_rng(rank).normal(0, 1, count).astype(dtype)


def test_operator() -> None:
    op = MPI.MAX if odd else MPI.SUM
    trial(lambda: call("Allreduce", values(), values(), op), "operator max", "operator sum")
    trial(lambda: call("Reduce", values(), values(), op, 1), "operator max", "operator sum")
    counts = [25_200 // size] * size
    mine = values(sum(counts))
    trial(lambda: call("Reduce_scatter", mine, values(counts[0]), counts, op), "operator max")
    # Small bfloat16 goes through MPI's own gather.
    with comm.options(min_bytes=1 << 20) if FORM != "persistent" else contextlib.nullcontext():
        small = values(10, "bfloat16")
        trial(lambda: call("Allreduce", small, small.copy(), op), "operator max", "operator sum")


def test_root() -> None:
    root = 0 if odd else 1
    trial(lambda: call("Reduce", values(), values(), MPI.SUM, root), "root 0", "root 1")


def test_data_type() -> None:
    dtype = "float16" if odd else "bfloat16"
    mine, total = values(dtype=dtype), values(dtype=dtype)
    trial(lambda: call("Allreduce", mine, total), "float16", "bfloat16")
    with comm.options(min_bytes=1 << 20) if FORM != "persistent" else contextlib.nullcontext():
        dtype = "float8_e4m3fn" if odd else "float8_e5m2"
        small = values(10, dtype)
        trial(lambda: call("Allreduce", small, small.copy()), "float8_e4m3fn", "float8_e5m2")


def test_count() -> None:
    count = 19_000 if odd else 25_200
    trial(
        lambda: call("Allreduce", values(count), values(count)),
        "MismatchError",
        "expected",
        "found",
    )
    trial(
        lambda: call("Reduce", values(count), values(count)), "MismatchError", "expected", "found"
    )
    trial(
        lambda: call("Allgather", values(count), values(count * size)),
        "MismatchError",
        "expected",
        "found",
    )
    trial(
        lambda: call("Alltoall", values(count * size), values(count * size)),
        "MismatchError",
        "expected",
        "found",
    )
    # Chunks of one size, only more of them.
    count = 1 << (16 if odd else 17)
    trial(lambda: call("Allgather", values(count), values(count * size)), "the counts of the ranks")
    trial(lambda: call("Bcast", values(count), 0), "MismatchError", who="others")


def test_operation() -> None:
    if odd:
        trial(lambda: call("Allreduce", values(), values()), "allreduce", "alltoall")
    else:
        trial(lambda: call("Alltoall", values(), values()), "allreduce", "alltoall")


def test_algorithm() -> None:
    def allreduce() -> None:
        with comm.options(allreduce="ring" if odd else "two_shot"):
            call("Allreduce", values(), values())

    trial(allreduce, "(ring)", "(two_shot)")


def test_wrong_arguments_of_one_rank() -> None:
    """It alone sees what is wrong; the others learn that it failed."""
    if FORM == "persistent":
        return  # it fails when the request is made; nobody else can know
    read_only = values()
    read_only.flags.writeable = False
    wrong: Any = read_only if odd else values()
    trial(lambda: call("Allreduce", values(), wrong), "that rank failed", who="others")
    other = values(dtype="float64") if odd else values()
    trial(lambda: call("Allreduce", values(), other), "that rank failed", who="others")
    fewer = values(10_000) if odd else values()
    trial(lambda: call("Allreduce", values(), fewer), "that rank failed", who="others")
    integers = np.arange(25_200, dtype=np.int32) if odd else values()
    trial(
        lambda: call("Allreduce", integers, integers.copy(), uzipmpi.AVG),
        "that rank failed",
        who="others",
    )
    whole = values(25_200 * size)
    short = values(25_200 * size - 1) if odd else values(25_200 * size)
    trial(lambda: call("Allgather", values(), short), "that rank failed", who="others")
    trial(lambda: call("Alltoall", whole, short), "that rank failed", who="others")
    share = values(25_200 // size)
    share.flags.writeable = not odd
    trial(lambda: call("Reduce_scatter", values(), share), "rank 0", who="others")
    strided = values(50_400)[::2] if odd else values()
    trial(lambda: call("Reduce", values() if not odd else strided, values(), MPI.SUM, 0), "")
    shares = values(25_200 * size) if rank else [values(25_200 * size), 25_201, MPI.FLOAT]
    trial(lambda: call("Scatter", shares, values(), 0), "that rank failed", who="others")
    # The root does not hear of it, but does not hang either.
    trial(lambda: call("Bcast", wrong, 1), "", who="others")


run_tests(globals(), comm)
