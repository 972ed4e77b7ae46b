"""Every way to send meets every way to receive, whatever is in the message.

The argument is the option ``compress``: ``always``, or ``never`` for a wire that is plain MPI's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from in_order import run_tests
from mpi4py import MPI

import uzipmpi
from uzipmpi.algorithms import sendrecv
from uzipmpi.head import HEAD_BYTES, MAGIC, Head
from uzipmpi.typing import DType

Array = npt.NDArray[Any]

comm = uzipmpi.Comm(MPI.COMM_WORLD, compress=sys.argv[1], min_bytes=0, chunk_bytes=32768)
rank, size = comm.rank, comm.size
peer = 1 - rank if size > 1 else rank
plain = MPI.Intracomm(MPI.COMM_WORLD).Dup()  # to say that a receive is posted


def normal(count: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(count).normal(0, 0.02, count).astype(dtype)


def sly() -> Array:
    """Return a message that looks like a head as far as a probe may see."""
    message = np.arange(HEAD_BYTES, dtype=np.uint8)
    message[: len(MAGIC)] = np.frombuffer(MAGIC, np.uint8)
    return message


def messages() -> dict[str, Array]:
    incompressible = np.random.default_rng(0).integers(0, 256, 40_000).astype(np.uint8)
    return {
        "empty": normal(0),
        "one value": normal(1),
        "few and alike": np.ones(20),
        "one value less than a head": normal(33),
        "as long as a head": normal(34),
        "one value more than a head": normal(35),
        "like a head": sly(),
        "a forged head": Head(DType.FLOAT32, 1 << 20, 3, sendrecv.Parts("whole", 32768)).pack(),
        "bytes as long as a head": np.arange(HEAD_BYTES, dtype=np.uint8),
        "bfloat16": normal(5000, "bfloat16"),
        "large": normal(60_000, "float64"),
        "incompressible": incompressible.view(np.float32),
        "integers": np.arange(9000),
    }


def persistent(make: Callable[..., MPI.Prequest]) -> Callable[..., MPI.Prequest]:
    def start(*arguments: Any) -> MPI.Prequest:
        request = make(*arguments)
        request.Start()
        return request

    return start


SENDS: dict[str, Callable[..., MPI.Request | None]] = {
    name: getattr(comm, name)
    for name in ("Send", "Ssend", "Bsend", "Isend", "Issend", "Ibsend", "Rsend", "Irsend")
}
SENDS |= {
    name: persistent(getattr(comm, name))
    for name in ("Send_init", "Ssend_init", "Bsend_init", "Rsend_init")
}
SENDS["Sendrecv"] = lambda buf, dest, tag: comm.Sendrecv(buf, dest, tag, None, MPI.PROC_NULL)
SENDS["Isendrecv"] = lambda buf, dest, tag: comm.Isendrecv(buf, dest, tag, None, MPI.PROC_NULL)


def probed(buf: Any, source: int, tag: int, status: MPI.Status) -> None:
    comm.Probe(source, tag, status)
    sent = status.Get_elements(MPI.BYTE)
    assert (status.source, status.tag) == (peer, tag)
    comm.Recv(buf, source, tag, status)
    assert status.Get_elements(MPI.BYTE) == sent


def iprobed(buf: Any, source: int, tag: int, status: MPI.Status) -> None:
    while not comm.Iprobe(source, tag, status):
        pass
    sent = status.Get_elements(MPI.BYTE)
    comm.Irecv(buf, status.source, status.tag).Wait(status)
    assert status.Get_elements(MPI.BYTE) == sent


def matched(buf: Any, source: int, tag: int, status: MPI.Status) -> None:
    message = comm.Mprobe(source, tag, status)
    sent = status.Get_elements(MPI.BYTE)
    assert (status.source, status.tag) == (peer, tag)
    assert message
    assert message != MPI.MESSAGE_NULL
    message.Recv(buf, status)
    assert status.Get_elements(MPI.BYTE) == sent
    assert not message
    assert message == MPI.MESSAGE_NULL


def imatched(buf: Any, source: int, tag: int, status: MPI.Status) -> None:
    while (message := uzipmpi.Message.Iprobe(comm, source, tag, status)) is None:
        pass
    sent = status.Get_elements(MPI.BYTE)
    request = message.Irecv(buf)
    assert not message
    MPI.Request.Waitall([request], statuses := [status])
    assert statuses[0].Get_elements(MPI.BYTE) == sent


def recv_init(buf: Any, source: int, tag: int, status: MPI.Status) -> None:
    request = comm.Recv_init(buf, source, tag)
    request.Start()
    request.Wait(status)
    assert request != MPI.REQUEST_NULL
    request.Free()


RECEIVES: dict[str, Callable[[Any, int, int, MPI.Status], object]] = {
    "Recv": comm.Recv,
    "Irecv": lambda buf, source, tag, status: comm.Irecv(buf, source, tag).Wait(status),
    "Recv_init": recv_init,
    "Sendrecv": lambda buf, source, tag, status: comm.Sendrecv(
        None, MPI.PROC_NULL, 0, buf, source, tag, status
    ),
    "Isendrecv": lambda buf, source, tag, status: comm.Isendrecv(
        None, MPI.PROC_NULL, 0, buf, source, tag
    ).Wait(status),
    "Probe": probed,
    "Iprobe": iprobed,
    "Mprobe": matched,
    "Improbe": imatched,
}


def send_to_oneself(send: str, message: Array, tag: int) -> MPI.Request:
    """Begin to send; blocking forms would wait for the receive of this very rank."""
    begin = {"Send": "Isend", "Ssend": "Issend", "Rsend": "Irsend", "Sendrecv": "Isend"}
    request = SENDS[begin.get(send, send)](message, peer, tag)
    return MPI.REQUEST_NULL if request is None else request


def test_every_pair() -> None:
    space = bytearray(1 << 20)
    for name, message in messages().items():
        for tag, send in enumerate(SENDS):
            for receive in RECEIVES:
                ready = send.startswith(("R", "Ir"))
                if ready and (size == 1 or receive not in ("Irecv", "Recv_init")):
                    continue
                if rank == 0 or size == 1:
                    MPI.Attach_buffer(space)
                    if ready:
                        plain.Recv(bytearray(1), peer)
                    if size == 1:
                        request = send_to_oneself(send, message, tag)
                    else:
                        request = SENDS[send](message, peer, tag) or MPI.REQUEST_NULL
                if rank == 1 or size == 1:
                    received = np.zeros(message.size + 200, message.dtype)
                    status = MPI.Status()
                    if ready:
                        again = comm.Recv_init if receive == "Recv_init" else comm.Irecv
                        request = again(received, peer, tag)
                        if receive == "Recv_init":
                            request.Start()
                        plain.Send(bytearray(1), peer)
                        request.Wait(status)
                        request.free()
                    else:
                        RECEIVES[receive](received, (peer, MPI.ANY_SOURCE)[tag % 2], tag, status)
                    what = f"{name}: {send} to {receive}"
                    assert status.Get_elements(MPI.BYTE) == message.nbytes, what
                    assert (status.source, status.tag) == (peer, tag), what
                    assert received[: message.size].tobytes() == message.tobytes(), what
                    assert not received[message.size :].view(np.uint8).any(), what
                if rank == 0 or size == 1:
                    request.Wait()
                    request.free()
                    MPI.Detach_buffer()


def test_derived_types() -> None:
    """Two of four columns, packed or not, with as many bytes as a head and more."""
    for rows in (17, 3000):
        grid = normal(4 * rows).reshape(rows, 4)
        packed = np.ascontiguousarray(grid[:, :2])
        columns = MPI.FLOAT.Create_vector(rows, 2, 4).Commit()
        for send in ("Isend", "Issend", "Isendrecv", "Send_init"):
            for receive in RECEIVES:
                for is_derived in (False, True):
                    spec = [grid, 1, columns] if is_derived else packed
                    request = SENDS[send](spec, peer, 5)
                    received = np.zeros_like(grid)
                    RECEIVES[receive]([received, 1, columns], peer, 5, MPI.Status())
                    assert (received[:, :2] == packed).all()
                    assert not received[:, 2:].any()
                    assert request is not None
                    request.Wait()
                    request.free()
        columns.Free()


def test_a_derived_type_that_looks_like_a_head() -> None:
    content = np.zeros((HEAD_BYTES, 2), np.uint8)
    content[:, 0] = sly()
    column = MPI.BYTE.Create_vector(HEAD_BYTES, 1, 2).Commit()
    for send in ("Isend", "Issend", "Ibsend"):
        MPI.Attach_buffer(bytearray(1 << 20))
        request = SENDS[send]([content, 1, column], peer, 1)
        received = np.zeros(HEAD_BYTES, np.uint8)
        comm.Recv(received, peer, 1)
        assert (received == sly()).all()
        assert request is not None
        request.Wait()
        MPI.Detach_buffer()
    column.Free()


def test_a_synchronous_send_waits_for_its_receive() -> None:
    """Also if a probe has seen the message, and whether it goes in parts or not."""
    for message in (normal(5000), normal(34), np.arange(HEAD_BYTES, dtype=np.uint8)):
        for send in (comm.Issend, persistent(comm.Ssend_init)):
            request = send(message, peer, 2)
            status = MPI.Status()
            comm.Probe(peer, 2, status)
            assert status.Get_elements(MPI.BYTE) == message.nbytes
            comm.Barrier()
            for _ in range(20):
                assert not request.Test()
            comm.Barrier()
            received = np.zeros_like(message)
            comm.Recv(received, peer, 2)
            assert (received == message).all()
            request.Wait()
            request.free()


def test_exchanges() -> None:
    for count in (1, 34, 5_000, 100_001):
        mine, theirs = normal(count) + rank, normal(count) + peer
        received = np.zeros_like(mine)
        status = MPI.Status()
        comm.Isendrecv(mine, peer, 1, received, peer, 1).Wait(status)
        assert (received == theirs).all()
        if sys.argv[1] == "always":  # MPICH's own has an empty status
            assert (status.source, status.tag, status.Get_count(MPI.FLOAT)) == (peer, 1, count)
        request = comm.Isendrecv_replace(received, peer, 1, peer, 1)
        MPI.Request.Waitall([request])
        assert (received == mine).all()
        comm.Sendrecv_replace(received, peer, 1, peer, 1)
        assert (received == theirs).all()
    comm.Isendrecv(None, MPI.PROC_NULL, 0, None, MPI.PROC_NULL).Wait()
    comm.Isendrecv_replace(None, MPI.PROC_NULL, 0, MPI.PROC_NULL).Wait()


def test_partitioned() -> None:
    for message in (normal(4096, "bfloat16"), normal(4096)):
        received = np.zeros_like(message)
        try:
            sending = comm.Psend_init(message, 4, peer, 3)
        except NotImplementedError:
            return
        receiving = comm.Precv_init(received, 4, peer, 3)
        for request in (receiving, sending):
            request.Start()
        for partition in range(4):
            sending.Pready(partition)
        MPI.Request.Waitall([receiving, sending])
        assert (received == message).all()
        sending.Free()
        receiving.Free()


run_tests(globals(), comm)
plain.Free()
