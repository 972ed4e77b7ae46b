"""Requests: mixed with MPI's own, dropped, tested, and many at once in both directions."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from in_order import run_tests
from mpi4py import MPI

import uzipmpi
from uzipmpi.algorithms.sendrecv import Parts
from uzipmpi.head import Head
from uzipmpi.progress import Operation
from uzipmpi.transports.mpi_host import MpiHost
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import DType

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
    comm.Barrier()
    deadline = time.monotonic() + 20
    while operations_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not operations_alive()  # MPI has forgotten the requests as well
    comm.Isend(np.arange(500_000) + rank, right)  # goes as it is
    gc.collect()
    noise = [np.full(500_000, 7) for _ in range(4)]  # where the values were
    received = np.zeros(500_000, np.int64)
    comm.Recv(received, left)
    assert same(received, np.arange(500_000) + left)
    del noise


def operations_alive() -> int:
    """Return how many operations anything still refers to, MPI's requests for them included."""
    gc.collect()
    return sum(isinstance(thing, Operation) for thing in gc.get_objects())


def test_a_copy_of_a_dropped_request() -> None:
    """An object made of a request may outlive it."""
    received = np.zeros(50_000, np.float32)
    receiving = uzipmpi.Request(comm.Irecv(received, left, 1))
    sending = uzipmpi.Request(uzipmpi.Request(comm.Isend(tensor(50_000, rank), right, 1)))
    gc.collect()
    assert sending.Wait()
    assert receiving.Wait()
    assert same(received, tensor(50_000, left))


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


def mixed(tag: int) -> tuple[list[MPI.Request], Array, Array]:
    """Return requests of every kind, and what they bring in and ought to."""
    mine, theirs = tensor(30_000, rank + tag), tensor(30_000, left + tag)
    received = np.zeros_like(theirs)
    persistent = comm.Recv_init(received[:10_000], left, tag)
    persistent.Start()
    requests = [
        MPI.REQUEST_NULL,
        persistent,
        comm.Irecv(received[10_000:], left, tag),
        comm.irecv(source=left, tag=tag),
        MPI.REQUEST_NULL,
        comm.Isend(mine[:10_000], right, tag),
        comm.Isend(mine[10_000:], right, tag),
        comm.isend({"rank": rank}, right, tag),
        comm.Iallreduce(np.ones(3), np.zeros(3)),
        comm.Recv_init(np.zeros(5000, np.float32), left, 99),  # inactive
    ]
    return requests, received, theirs


ACTIVE = {1, 2, 3, 5, 6, 7, 8}


def check_all(requests: list[MPI.Request], received: Array, theirs: Array) -> None:
    assert same(received, theirs)
    for place, request in enumerate(requests):
        assert (request == MPI.REQUEST_NULL) == (place not in (1, 9))
    assert requests[1].Test()
    requests[1].Free()
    requests[9].Free()


def test_all_of_a_mixed_list() -> None:
    for turn, complete in enumerate((uzipmpi.Request, uzipmpi.Prequest, uzipmpi)):
        requests, received, theirs = mixed(turn)
        statuses: list[MPI.Status] = []
        if complete is not uzipmpi:
            assert complete.Waitall(requests, statuses) is True
        else:
            items = uzipmpi.waitall(requests, statuses)
            assert items == [{"rank": left} if place == 3 else None for place in range(10)]
        assert len(statuses) == len(requests)
        assert [status.source for status in statuses[1:4]] == [left] * 3
        assert [status.Get_count(MPI.FLOAT) for status in statuses[1:3]] == [10_000, 20_000]
        check_all(requests, received, theirs)
        requests, received, theirs = mixed(turn)
        statuses = [MPI.Status() for _ in requests]
        if complete is not uzipmpi:
            while not complete.Testall(requests, statuses):
                pass
        else:
            done, found = uzipmpi.testall(requests, statuses)
            while not done:
                assert found is None
                done, found = uzipmpi.testall(requests, statuses)
            assert found is not None
            assert found[3] == {"rank": left}
        assert [status.Get_count(MPI.FLOAT) for status in statuses[1:3]] == [10_000, 20_000]
        check_all(requests, received, theirs)


def test_any_of_a_mixed_list() -> None:
    for turn, function in enumerate(("Waitany", "Testany", "waitany", "testany")):
        requests, received, theirs = mixed(turn)
        seen, objects = set(), []
        status = MPI.Status()
        while len(seen) < len(ACTIVE):
            result = getattr(uzipmpi.Request, function)(requests, status)
            place, *flag, item = (
                (*result, None)
                if function[0] == "T"
                else ((result, None) if function == "Waitany" else result)
            )
            if flag == [False]:
                assert place == MPI.UNDEFINED
                continue
            assert place not in seen
            seen.add(place)
            objects += [item] if item else []
            if place in (1, 2):
                assert status.source == left
                assert status.Get_count(MPI.FLOAT) == 10_000 * place
        assert seen == ACTIVE
        assert objects == ([{"rank": left}] if function.islower() else [])
        assert uzipmpi.Request.Waitany(requests) == MPI.UNDEFINED
        assert uzipmpi.Request.Testany(requests) == (MPI.UNDEFINED, True)
        check_all(requests, received, theirs)


def test_some_of_a_mixed_list() -> None:
    for turn, function in enumerate(("Waitsome", "Testsome", "waitsome", "testsome")):
        requests, received, theirs = mixed(turn)
        seen, objects = [], []
        while len(seen) < len(ACTIVE):
            statuses: list[MPI.Status] = []
            result = getattr(uzipmpi.Request, function)(requests, statuses)
            places, items = result if function.islower() else (result, [])
            assert places or function[0] in "tT"
            assert len(statuses) == len(places)
            for place, status in zip(places, statuses, strict=True):
                if place in (1, 2):
                    assert status.Get_count(MPI.FLOAT) == 10_000 * place
            seen += places
            objects += [item for item in items if item]
        assert set(seen) == ACTIVE
        assert len(seen) == len(ACTIVE)
        assert objects == ([{"rank": left}] if function.islower() else [])
        assert uzipmpi.Request.Waitsome(requests) is None
        assert uzipmpi.testsome(requests) == (None, None)
        check_all(requests, received, theirs)


def test_truncation_in_a_list() -> None:
    """The error of one receive; the others of the list end as they should."""
    for function in ("Waitall", "Testall", "waitall", "testall", "Waitsome", "Testsome"):
        room, good = np.zeros(3000, np.float32), np.zeros(20_000, np.float32)
        sends = [comm.Isend(tensor(20_000, rank), right, tag) for tag in (0, 1)]
        requests = [
            comm.Irecv(good, left, 1),
            MPI.REQUEST_NULL,
            comm.Irecv(room[:2000], left, 0),
            *sends,
        ]
        statuses: list[MPI.Status] = []
        failed = complete_until_error(getattr(uzipmpi.Request, function), requests, statuses)
        assert failed.Get_error_class() == MPI.ERR_IN_STATUS
        assert not room[2000:].any()
        errors = [MPI.Get_error_class(status.error) for status in statuses]
        assert MPI.ERR_TRUNCATE in errors
        if function[1:] == "aitall":
            assert errors == [0, 0, MPI.ERR_TRUNCATE, 0, 0]
            assert statuses[0].Get_count(MPI.FLOAT) == 20_000
        uzipmpi.waitall(requests)
        assert same(good, tensor(20_000, left))
        comm.Barrier()


def complete_until_error(
    function: Callable[..., object], requests: list[MPI.Request], *statuses: list[MPI.Status]
) -> MPI.Exception:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            function(requests, *statuses)
        except MPI.Exception as error:
            return error
        for given in statuses:
            given.clear()
    raise AssertionError("no error")


def test_truncation_of_any() -> None:
    for function in ("Waitany", "Testany", "waitany", "testany"):
        sending = comm.Isend(tensor(20_000, rank), right)
        room = np.zeros(3000, np.float32)
        requests = [MPI.REQUEST_NULL, comm.Irecv(room[:2000], left)]
        failed = complete_until_error(getattr(uzipmpi.Request, function), requests)
        assert failed.Get_error_class() == MPI.ERR_TRUNCATE
        assert requests[1] == MPI.REQUEST_NULL
        assert not room[2000:].any()
        sending.Wait()


def test_receives_into_the_same_memory() -> None:
    """As bandwidth tests post them; each message is received, the last one stays."""
    for count in (1, 34, 600, 30_000):
        for shift in (0, 7):
            memory = np.zeros(count + shift, np.float32)
            places = [memory[shift * (i % 2) :][:count] for i in range(8)]
            requests = [comm.Irecv(place, left, 3) for place in places]
            sends = [comm.Isend(tensor(count, rank), right, 3) for _ in range(8)]
            statuses: list[MPI.Status] = []
            uzipmpi.Request.Waitall(requests, statuses)
            assert [status.Get_count(MPI.FLOAT) for status in statuses] == [count] * 8
            uzipmpi.Request.Waitall(sends)
            if not shift:
                assert same(memory, tensor(count, left))
    received = np.zeros(30_000, np.float32)  # the memory is free again
    request = comm.Irecv(received, left, 3)
    comm.Send(tensor(30_000, rank), right, 3) if size > 1 else comm.Isend(received, 0, 3)
    request.Wait()


def test_same_memory_out_of_order() -> None:
    """The message of the second receive comes first."""
    memory = np.zeros(20_000, np.float32)
    first, second = comm.Irecv(memory, left, 1), comm.Irecv(memory, left, 2)
    for tag, request in ((2, second), (1, first)):
        sending = comm.Isend(tensor(20_000, 10 * rank + tag), right, tag)
        request.Wait()
        assert same(memory, tensor(20_000, 10 * left + tag))
        sending.Wait()
        comm.Barrier()


def test_cancelled_receives() -> None:
    comm.Barrier()
    for complete in (uzipmpi.waitall, MPI.Request.Waitall):
        requests = [comm.Irecv(np.zeros(5000, np.float32), left, 50 + tag) for tag in range(3)]
        for request in requests[:2]:
            request.Cancel()
        sending = comm.Isend(tensor(5000, rank), right, 52)
        sending.Cancel()  # a send is not withdrawn
        statuses = [MPI.Status() for _ in requests]
        complete(requests, statuses)
        assert [status.Is_cancelled() for status in statuses] == [True, True, False]
        status = MPI.Status()
        sending.Wait(status)
        assert not status.Is_cancelled()


def test_threads_that_wait() -> None:
    """Several threads, each with requests of its own, in all ways of waiting."""
    failed: list[BaseException] = []

    def exchange(tag: int) -> None:
        try:
            for turn in range(6):
                mine, theirs = tensor(9000, rank + tag + turn), tensor(9000, left + tag + turn)
                received = np.zeros_like(theirs)
                requests = [comm.Irecv(received, left, tag), comm.Isend(mine, right, tag)]
                if turn % 3 == 0:
                    for request in requests:
                        request.Wait()
                elif turn % 3 == 1:
                    uzipmpi.waitall(requests)
                else:
                    MPI.Request.Waitall(requests)
                assert same(received, theirs)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=exchange, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_another_type_than_expected() -> None:
    """Delivers the bytes, as MPI does; with ``verify`` it is an error, and nobody hangs."""
    sent, received = tensor(9000, rank), np.zeros(4500)
    sending = comm.Isend(sent, right)
    comm.Recv(received, left)
    assert received.tobytes() == tensor(9000, left).tobytes()
    sending.Wait()
    checked = comm.Dup()
    with checked.options(verify=True):
        for receive in (checked.Recv, lambda buf, source: checked.Irecv(buf, source).Wait()):
            sending = checked.Isend(sent, right)
            with pytest.raises(uzipmpi.MismatchError, match="FLOAT64, found one of FLOAT32"):
                receive(received, left)
            sending.Wait()
        sending = checked.Isend(sent, right)
        with pytest.raises(uzipmpi.MismatchError, match="FLOAT64, found one of FLOAT32"):
            uzipmpi.waitall([checked.Irecv(received, left)])
        sending.Wait()
        sending = checked.Isend(sent, right)  # bytes are bytes
        checked.Recv([received, MPI.BYTE], left)
        assert received.tobytes() == tensor(9000, left).tobytes()
        sending.Wait()
    checked.Free()


def test_damage() -> None:
    """A damaged head or part is an error where it is received; the sender ends."""
    plain = MPI.Intracomm(MPI.COMM_WORLD)
    head = Head(DType.FLOAT32, 1 << 20, 3, Parts("whole", 1 << 20)).pack().copy()
    head[50] ^= 1
    for receive in (comm.Recv, lambda buf, source: comm.Irecv(buf, source).Wait()):
        sending = plain.Isend(head, right)
        with pytest.raises(uzipmpi.FormatError, match="damaged message head"):
            receive(np.zeros(5000, np.float32), left)
        sending.Wait()
    sends = MpiHost.isend
    with comm.options(verify=True):
        for receive in (comm.Recv, lambda buf, source: comm.Irecv(buf, source).Wait()):
            MpiHost.isend = damaging(sends)  # type: ignore[method-assign]
            sending = comm.Isend(tensor(40_000, rank), right)
            received = np.zeros(40_000, np.float32)
            with pytest.raises(uzipmpi.FormatError, match="rank"):
                receive(received, left)
            sending.Wait()
            MpiHost.isend = sends  # type: ignore[method-assign]
            comm.Barrier()
            sending = comm.Isend(tensor(40_000, rank), right)  # the next is not disturbed
            receive(received, left)
            assert same(received, tensor(40_000, left))
            sending.Wait()


def test_exchange_that_fails_on_one_side() -> None:
    """The other side gets what was sent to it."""
    plain = MPI.Intracomm(MPI.COMM_WORLD)
    mine, theirs = tensor(40_000, rank), tensor(40_000, left)
    head = Head(DType.FLOAT32, 1 << 20, 3, Parts("whole", 1 << 20)).pack().copy()
    head[50] ^= 1
    for probing in (False, True):
        for wrong in (np.arange(600), tensor(20_000, rank), head):
            sending = (plain if wrong is head else comm).Isend(wrong, right, 1)
            received = np.zeros_like(theirs)
            receiving = comm.Irecv(received, left, 2)
            if probing:  # the message is held then
                comm.Probe(left, 1)
            room = np.zeros(
                20_000, np.float32
            )  # Open MPI writes all of a plain message that is too large
            with pytest.raises((MPI.Exception, uzipmpi.FormatError)):
                comm.Sendrecv(mine, right, 2, room[:100], left, 1)
            receiving.Wait()
            assert same(received, theirs)
            sending.Wait()


def damaging(isend: Callable[..., Transfer]) -> Callable[..., Transfer]:
    def damaged(self: MpiHost, memory: npt.NDArray[np.uint8], dest: int, tag: int) -> Transfer:
        if memory.size > 100:
            memory = memory.copy()
            memory[memory.size // 2] ^= 4
        return isend(self, memory, dest, tag)

    return damaged


def test_unfinished_business() -> None:
    """The program may end with a receive that nothing matched, and a send on its way."""
    comm.Barrier()
    if rank == 0:
        test_unfinished_business.kept = comm.Irecv(np.zeros(5000, np.float32), 0, 77)  # type: ignore[attr-defined]
    comm.Isend(np.ones(5000, ml_dtypes.bfloat16), right, 78)
    comm.Recv(np.zeros(5000, ml_dtypes.bfloat16), left, 78)


run_tests(globals(), comm)
