"""The life of a communicator: topologies, pickling, error handlers, attributes, Free."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from in_order import run_tests
from mpi4py import MPI

import uzipmpi

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
OPTIONS = {"compress": "always", "min_bytes": 256}


class Mine(uzipmpi.Comm):
    """A subclass that a user might write."""

    greeting = "hello"


class MyCart(uzipmpi.Cartcomm):
    """A topology that a user might write."""


def check_compresses(comm: uzipmpi.Comm) -> None:
    """Check that values cross ``comm`` compressed."""
    assert (comm.config.compress, comm.config.min_bytes) == ("always", 256)
    values = np.full(5000, comm.rank, np.float32)
    total = np.zeros_like(values)
    comm.Allreduce(values, total)
    assert (total == comm.size * (comm.size - 1) / 2).all()
    comm.Sendrecv_replace(values, (comm.rank + 1) % comm.size)
    assert (values == (comm.rank - 1) % comm.size).all()
    if comm.size > 1:
        assert comm.stats["Allreduce"].frame_bytes < comm.stats["Allreduce"].coded_bytes


def test_cartesian() -> None:
    comm = Mine(world.Dup(), **OPTIONS)
    dims = MPI.Compute_dims(size, 2)
    cart = comm.Create_cart(dims, periods=[True, False], reorder=False)
    assert type(cart) is uzipmpi.Cartcomm
    assert isinstance(cart, MPI.Cartcomm)
    assert cart.Get_topo() == (dims, [1, 0], cart.Get_coords(rank))
    assert cart.Get_cart_rank(cart.coords) == rank
    source, dest = cart.Shift(0, 1)
    values = np.full(5000, rank, np.float32)
    received = np.zeros_like(values)
    cart.Sendrecv(values, dest, recvbuf=received, source=source)
    assert (received == source).all()
    neighbours = np.zeros((4, 3), np.float32)
    cart.Neighbor_allgather(np.full(3, rank, np.float32), neighbours)
    assert (neighbours[0] == source).all()
    check_compresses(cart)
    for child, kind in (
        (cart.Dup(), uzipmpi.Cartcomm),
        (cart.Sub([True, False]), uzipmpi.Cartcomm),
        (cart.Split(0), uzipmpi.Comm),
        (MyCart(cart).Sub([False, True]), MyCart),
        (MyCart(cart).Dup(), MyCart),
        (MyCart(cart).Split(rank % 2), uzipmpi.Comm),
    ):
        assert type(child) is kind
        check_compresses(child)
        child.Free()
    sub = cart.Sub([True, False])
    assert (sub.dim, sub.dims, sub.periods) == (1, dims[:1], [1])
    sub.Free()
    too_many = comm.Create_cart([1])
    assert (too_many == MPI.COMM_NULL) == (rank > 0)
    too_many.free()
    cart.Free()
    comm.Free()


def test_options_that_differ_when_a_child_is_made() -> None:
    comm = uzipmpi.Comm(world.Dup(), **OPTIONS)
    other = "ring" if rank == size - 1 else "two_shot"
    with comm.options(allreduce=other, codec="tier" if rank else "ans"):
        if size == 1:
            comm.Split().Free()
        else:
            with pytest.raises(uzipmpi.ConfigError, match=f"'ring' on rank {size - 1}"):
                comm.Split()
        with comm.options(allreduce="ring"):
            child = comm.Split(rank % 2, -rank)
    assert child.config.allreduce == "ring"
    assert child.config.codec == ("tier" if rank else "ans")
    check_compresses(child)
    child.Free()
    comm.Free()


def test_children_know_who_shares_a_node() -> None:
    comm = uzipmpi.Comm(world.Dup(), **OPTIONS)
    handle = comm._endpoint.handle
    handle.nodes = [i // 2 * 2 for i in range(size)]  # as if two ranks had a node each
    reverse = comm.Split(0, -rank)
    as_parent = [size - 1 - i for i in range(size)]
    expected = [min(i for i in range(size) if as_parent[i] // 2 == p // 2) for p in as_parent]
    assert list(reverse._endpoint.handle.nodes) == expected
    reverse.Free()
    comm.Free()


def test_graphs() -> None:
    comm = uzipmpi.Comm(world.Dup(), **OPTIONS)
    left, right = (rank - 1) % size, (rank + 1) % size
    graph = comm.Create_graph([2 * (i + 1) for i in range(size)], ring_edges())
    adjacent = comm.Create_dist_graph_adjacent([left], [right])
    distributed = comm.Create_dist_graph([rank], [1], [right])
    assert [type(made) for made in (graph, adjacent, distributed)] == [
        uzipmpi.Graphcomm,
        uzipmpi.Distgraphcomm,
        uzipmpi.Distgraphcomm,
    ]
    assert graph.neighbors == [left, right]
    for made in (adjacent, distributed):
        assert made.inoutedges == ([left], [right])
        received = np.zeros(3)
        made.Neighbor_alltoall(np.full(3, float(rank)), received)
        assert (received == left).all()
    for made in (graph, adjacent, distributed):
        check_compresses(made)
        half = made.Split(rank % 2)
        assert type(half) is uzipmpi.Comm
        half.Free()
        made.Free()
    comm.Free()


def ring_edges() -> list[int]:
    return [peer % size for i in range(size) for peer in (i - 1, i + 1)]


def test_a_topology_is_of_its_kind() -> None:
    comm = uzipmpi.Comm(world.Dup())
    with pytest.raises(TypeError):
        uzipmpi.Cartcomm(comm)
    cart = world.Create_cart([size])
    wrapped = uzipmpi.Cartcomm(cart, **OPTIONS)
    assert wrapped.dims == [size]
    check_compresses(wrapped)
    with pytest.raises(TypeError):
        uzipmpi.Graphcomm(cart)
    wrapped.Free()
    comm.Free()


def test_intercommunicators_are_mpi4py_s_own() -> None:
    if size == 1:
        return
    comm = uzipmpi.Comm(world.Dup(), **OPTIONS)
    half = comm.Split(rank % 2)
    inter = half.Create_intercomm(0, comm, 1 - rank % 2, tag=7)
    assert type(inter) is MPI.Intercomm
    with pytest.raises(TypeError):
        uzipmpi.Comm(inter)
    merged = inter.Merge()
    assert type(merged) is MPI.Intracomm
    check_compresses(uzipmpi.Comm(merged, **OPTIONS))
    for made in (merged, inter, half, comm):
        made.Free()


def test_from_a_group() -> None:
    group = world.Get_group()
    try:
        comm = Mine.Create_from_group(group, "org.uzipmpi.tests")
    except NotImplementedError:  # before MPI 4
        assert MPI.Get_version() < (4, 0)
        group.Free()
        return
    assert type(comm) is Mine
    assert comm.config.compress == "auto"
    assert comm.allreduce(1) == size
    comm.Free()
    group.Free()


def test_predefined_communicators_stay() -> None:
    for constant in (world, MPI.COMM_SELF):
        comm = uzipmpi.Comm(constant)
        for method in (comm.Free, comm.Disconnect):
            with pytest.raises(MPI.Exception) as caught:
                method()
            assert caught.value.Get_error_class() == MPI.ERR_COMM
        again = uzipmpi.Comm(constant)
        again.free()
        assert not again
        assert comm
        assert constant.allreduce(1) == constant.size
        comm.Barrier()


def test_pickling() -> None:
    comm = Mine(world, codec="raw")
    for copied in (pickle.loads(pickle.dumps(comm)), copy.copy(comm), copy.deepcopy(comm)):
        assert type(copied) is Mine
        assert copied == world
        assert copied.config == comm.config
    everyone = comm.allgather(comm)
    assert all(other == world and other.config == comm.config for other in everyone)
    own = uzipmpi.Comm(MPI.COMM_SELF)
    assert pickle.loads(pickle.dumps(own)) == MPI.COMM_SELF
    null = pickle.loads(pickle.dumps(uzipmpi.Comm()))
    assert type(null) is uzipmpi.Comm
    assert null == MPI.COMM_NULL
    duplicate = comm.Dup()
    with pytest.raises(ValueError, match="cannot serialize"):
        pickle.dumps(duplicate)
    duplicate.Free()


def test_object_model() -> None:
    comm = uzipmpi.Comm(world)
    assert comm == world
    assert comm == uzipmpi.Comm(world)
    assert comm != MPI.COMM_NULL
    assert comm
    assert not uzipmpi.Comm()
    with pytest.raises(TypeError):
        hash(comm)
    assert type(uzipmpi.Comm.fromhandle(comm.handle)) is uzipmpi.Comm
    other = world.Dup()
    assert type(uzipmpi.Comm.fromhandle(other.handle)) is MPI.Intracomm
    other.Free()


def test_attributes_names_and_hints() -> None:
    comm = uzipmpi.Comm(world.Dup())
    keyval = MPI.Comm.Create_keyval(copy_fn=lambda comm, keyval, value: value)
    comm.Set_attr(keyval, {"a": 1})
    child = comm.Dup()
    assert child.Get_attr(keyval) == {"a": 1}
    comm.Delete_attr(keyval)
    assert comm.Get_attr(keyval) is None
    MPI.Comm.Free_keyval(keyval)
    comm.Set_name("mine")
    assert (comm.name, MPI.Intracomm(comm).name) == ("mine", "mine")
    info = MPI.Info.Create({"mpi_assert_allow_overtaking": "false"})
    comm.Set_info(info)
    comm.Get_info().Free()
    third = comm.Dup_with_info(info)
    info.Free()
    assert (comm.is_inter, comm.is_intra, comm.topology) == (False, True, MPI.UNDEFINED)
    assert MPI.Comm.Compare(comm, third) == MPI.CONGRUENT
    for made in (child, third, comm):
        made.Free()


def test_error_handlers() -> None:
    comm = uzipmpi.Comm(world.Dup(), **OPTIONS)
    private = comm._endpoint.handle.private
    assert private.Get_errhandler() == MPI.ERRORS_RETURN
    for handler in (MPI.ERRORS_ARE_FATAL, MPI.ERRORS_RETURN):
        comm.Set_errhandler(handler)
        assert comm.Get_errhandler() == private.Get_errhandler() == handler
    seen = []
    mine = MPI.Comm.Create_errhandler(lambda comm, code: seen.append(comm == used))
    used = comm
    comm.Set_errhandler(mine)
    assert private.Get_errhandler() == MPI.ERRORS_RETURN
    comm.Call_errhandler(MPI.ERR_OTHER)
    assert seen == [True]
    mine.Free()
    comm.Free()


def test_freeing_with_operations_under_way() -> None:
    peer = size - 1 - rank
    values = np.arange(200_000, dtype=np.float32)
    for _ in range(20):
        comm = uzipmpi.Comm(world.Dup(), **OPTIONS)
        received = np.zeros_like(values)
        requests = [comm.Irecv(received, peer), comm.Isend(values, peer)]
        comm.Free()
        for request in requests:
            request.Wait()
        assert (received == values).all()


def test_two_wrappers_and_one_free() -> None:
    first = uzipmpi.Comm(world.Dup(), **OPTIONS)
    second = uzipmpi.Comm(first)
    check_compresses(second)
    private = first._endpoint.handle.private
    first.Free()
    assert private != MPI.COMM_NULL
    del second
    assert private == MPI.COMM_NULL


run_tests(globals(), world)
