"""Making communicators: options and their agreement, duplicates, subsets, statistics, threads."""

from __future__ import annotations

import os

import numpy as np
import pytest
from in_order import run_tests
from mpi4py import MPI

import uzipmpi
from uzipmpi import handle as handles

world = MPI.COMM_WORLD
rank, size = world.rank, world.size


def test_the_same_handle() -> None:
    comm = uzipmpi.Comm(world, min_bytes=1000)
    assert comm == world
    assert isinstance(comm, MPI.Intracomm)
    assert comm.config.min_bytes == 1000
    again = uzipmpi.Comm(world)
    assert again.config.min_bytes == 1000
    assert again.stats is comm.stats
    assert uzipmpi.Comm(comm, codec="raw").config.codec == "raw"
    with pytest.raises(uzipmpi.ConfigError, match="min_bytes: expected 1000"):
        uzipmpi.Comm(world, min_bytes=2000)
    assert world.allreduce(1) == size


def test_options_that_ranks_must_agree_on() -> None:
    mine = 100 if rank == size - 1 else 200
    expected = {100, 200} if size > 1 else {100}
    comm = world.Dup()
    if size == 1:
        assert uzipmpi.Comm(comm, min_bytes=mine).config.min_bytes == 100
    else:
        with pytest.raises(uzipmpi.ConfigError) as caught:
            uzipmpi.Comm(comm, min_bytes=mine, chunk_bytes=1000 * mine)
        texts = world.allgather(str(caught.value))
        assert len(set(texts)) == 1
        assert all(word in texts[0] for word in ("min_bytes", "chunk_bytes", f"rank {size - 1}"))
        assert all(str(value) in texts[0] for value in expected)
        # The handle can be wrapped again.
        assert uzipmpi.Comm(comm, min_bytes=5).config.min_bytes == 5
    comm.Free()


def test_options_that_are_a_rank_s_own_affair() -> None:
    comm = uzipmpi.Comm(
        world.Dup(), codec="raw" if rank else "ans", threads=rank, compress="always"
    )
    assert comm.config.codec == ("raw" if rank else "ans")
    values = np.ones(100_000, np.float32)
    total = np.zeros_like(values)
    comm.Allreduce(values, total)
    assert (total == size).all()
    comm.Free()


def test_wrong_options_raise_on_all_ranks() -> None:
    for wrong in ({"codec": "zip"}, {"colour": 1}, {"allreduce": "carousel"}, {"p2p": "ring"}):
        comm = world.Dup()
        with pytest.raises(uzipmpi.ConfigError, match=r"rank 0: .*(zip|colour|carousel|ring)"):
            uzipmpi.Comm(comm, **(wrong if rank == 0 else {}))
        comm.Free()


def test_precedence() -> None:
    os.environ["UZIPMPI_MIN_BYTES"] = "4k"
    os.environ["UZIPMPI_CODEC"] = "raw"
    uzipmpi.rc.codec = "ans"
    try:
        comm = uzipmpi.Comm(world.Dup(), chunk_bytes=8192)
    finally:
        uzipmpi.rc.codec = None
        del os.environ["UZIPMPI_MIN_BYTES"], os.environ["UZIPMPI_CODEC"]
    config = comm.config
    assert (config.min_bytes, config.codec, config.chunk_bytes) == (4096, "ans", 8192)
    comm.Free()


class Mine(uzipmpi.Comm):
    """A subclass that a user might write."""


def test_children_inherit() -> None:
    comm = Mine(world.Dup(), compress="always", min_bytes=512)
    group = comm.Get_group()
    children = [
        comm.Dup(),
        comm.Clone(),
        comm.Dup_with_info(MPI.INFO_NULL),
        comm.Split(rank % 2, -rank),
        comm.Split_type(MPI.COMM_TYPE_SHARED),
        comm.Create(group),
        comm.Create_group(group),
    ]
    for nonblocking in (comm.Idup, lambda: comm.Idup_with_info(MPI.INFO_NULL)):
        child, request = nonblocking()
        request.Wait()
        children.append(child)
    for child in children:
        assert type(child) is Mine
        assert child.config == comm.config
        values = np.full(5000, child.rank, np.float32)
        total = np.zeros_like(values)
        child.Allreduce(values, total)
        assert (total == child.size * (child.size - 1) / 2).all()
        if child.size > 1:
            assert child.stats["Allreduce"].frame_bytes < child.stats["Allreduce"].coded_bytes
        child.Sendrecv_replace(values, (child.rank + 1) % child.size)
        assert (values == (child.rank - 1) % child.size).all()
        child.Free()
        assert child == MPI.COMM_NULL
        with pytest.raises(MPI.Exception) as caught:
            child.Send(values, 0)
        assert caught.value.Get_error_class() == MPI.ERR_COMM
        with pytest.raises(MPI.Exception):
            child.Bcast(values)
    nobody = comm.Split(MPI.UNDEFINED)
    assert nobody == MPI.COMM_NULL
    first = comm.Create(group.Incl([0]))
    assert (first == MPI.COMM_NULL) == (rank > 0)
    first.free()
    group.Free()
    comm.Free()


def test_freeing_frees_the_private_duplicate() -> None:
    comm = uzipmpi.Comm(world.Dup())
    private = comm._endpoint.handle.private
    assert handles.of(comm) is not None
    comm.Free()
    assert private == MPI.COMM_NULL
    comm = uzipmpi.Comm(world.Dup())
    private = comm._endpoint.handle.private
    MPI.Comm.Free(comm)
    assert comm == MPI.COMM_NULL
    del comm
    assert private == MPI.COMM_NULL
    for _ in range(3000):  # there are fewer communicators than this
        uzipmpi.Comm(MPI.COMM_SELF.Dup()).Free()


def test_options_for_a_while() -> None:
    comm = uzipmpi.Comm(world.Dup(), compress="always", min_bytes=1)
    before = comm.config
    with comm.options(codec="raw", chunk_bytes=8192) as same:
        assert same is comm
        assert (comm.config.codec, comm.config.chunk_bytes) == ("raw", 8192)
        with pytest.raises(RuntimeError), comm.options(codec="ans"):
            raise RuntimeError
        assert comm.config.codec == "raw"
    assert comm.config == before
    values = np.ones(10_000, np.float32)
    with comm.options(compress="never"):
        comm.Allreduce(values, np.zeros_like(values))
    assert "mpi" in comm.stats["Allreduce"].algorithms or comm.stats["Allreduce"].plain_bytes
    with pytest.raises(uzipmpi.ConfigError), comm.options(codec="zip"):
        pass
    plain = uzipmpi.Comm(world.Dup(), compress="never")
    with pytest.raises(uzipmpi.ConfigError, match="compress"), plain.options(compress="always"):
        pass
    comm.Free()
    plain.Free()


def test_statistics() -> None:
    comm = uzipmpi.Comm(world.Dup(), compress="always", min_bytes=1024)
    values = np.zeros(100_000, np.float32)
    received = np.zeros_like(values)
    right, left = (rank + 1) % size, (rank - 1) % size
    comm.Sendrecv(values, right, recvbuf=received, source=left)
    comm.Sendrecv(values[:10], right, recvbuf=received, source=left)
    comm.Bcast(np.arange(100_000))
    request = comm.Isend(np.random.default_rng(1).bytes(40_000), right)
    comm.Recv(received, left)
    request.Wait()
    stats = comm.stats.as_dict()
    exchanged = stats["Sendrecv"]
    assert exchanged["calls"] == 4  # two sends and two receives
    assert exchanged["algorithms"].pop("plain") == 1
    assert sum(exchanged["algorithms"].values()) == 2
    assert exchanged["fallbacks"] == {"smaller than min_bytes": 1}
    assert exchanged["value_bytes"] == 2 * (values.nbytes + 40)
    assert exchanged["wire_bytes"] < 0.1 * exchanged["value_bytes"]
    assert 0 < exchanged["seconds"] < 60
    assert stats["Isend"]["fallbacks"] == {"not floating point": 1}
    assert stats["Recv"]["value_bytes"] == 40_000
    table = repr(comm.stats)
    assert all(word in table for word in ("Sendrecv", "ratio", "not floating point", "KiB"))
    assert repr(comm.stats) == str(comm.stats)
    comm.stats.reset()
    assert comm.stats.as_dict() == {}
    comm.Send(values[:1], MPI.PROC_NULL)
    assert comm.stats["Send"].calls == 1
    comm.Free()


run_tests(globals(), world)
