"""A GPU's driver fails, or a frame is damaged on its way to one: errors, no wrong values, no hang.

ranks_faults.py MODULE: the emulated GPU, whose runtime is made to fail. Every rank then has an
error or the right result, and the communicator goes on working.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import emulated_module
import numpy as np
from mpi4py import MPI

import uzipmpi
from uzipmpi.algorithms import gpu_steps
from uzipmpi.kernels import codec, device, device_pool
from uzipmpi.transports.mpi_host import MpiHost
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes

gpu_half = emulated_module.install(Path(sys.argv[1]))
from device_buffer import DeviceBuffer  # noqa: E402
from device_operations import DeviceOperations  # noqa: E402

# What fails, and what the driver says. Memory is asked for once more when all that is kept is free.
FAILURES = {
    "allocate": ("out of memory", 2),
    "encode": ("too many resources requested for launch", 1),
    "decode": ("too many resources requested for launch", 1),
    "decode_reduce": ("too many resources requested for launch", 1),
    "decode_reduce_encode": ("too many resources requested for launch", 1),
    "copy": ("invalid argument", 1),
    "query_event": ("an illegal memory access was encountered", 1),
}
MESSAGES = ("Send", "Isend", "Recv", "Irecv", "Sendrecv")
MOVING = ("Bcast", "Igather", "Scatter", "Allgather_init", "Ialltoall")
ALLREDUCES = ("one_shot", "two_shot", "ring")


class Driver:
    """Stands before the emulated runtime; what is armed fails."""

    def __init__(self, module: ModuleType) -> None:
        self.armed = ""
        self.paused = False
        self.spared = self.left = self.hits = 0
        for name in FAILURES:
            setattr(module, name, self._guarded(name, getattr(module, name)))

    def arm(self, name: str, spared: int) -> None:
        """Let a function fail after ``spared`` calls."""
        self.armed, self.spared, self.hits = name, spared, 0
        self.left = FAILURES[name][1] if name else 0
        for gpu in range(gpu_half.device_count()):
            device_pool.pools().device.trim(gpu)  # so that memory is asked for

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let nothing fail meanwhile."""
        self.paused = True
        yield
        self.paused = False

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name == self.armed and self.left and not self.paused:
                self.spared -= 1
                if self.spared < 0:
                    self.left -= 1
                    self.hits += 1
                    raise RuntimeError(FAILURES[name][0])
            return function(*arguments)

        return call


def outcome(operations: DeviceOperations, name: str) -> str:
    try:
        operations.run(name)
    except (uzipmpi.Error, MPI.Exception) as error:
        return f"{type(error).__name__}: {error}"
    return "right" if operations.is_right(name) else "wrong"


def nothing_held() -> bool:
    """Whether no step that failed kept its room."""
    return all(
        gpu_steps.gpu_at(ordinal)._staging._held_bytes == 0
        for ordinal in range(gpu_half.device_count())
    )


def attempt(operations: DeviceOperations, name: str, culprit: int, what: str, spared: int) -> bool:
    """Run an operation while the driver of one rank fails; return whether it did."""
    comm = operations.comm
    is_culprit = comm.rank == culprit
    driver.arm(what if is_culprit else "", spared)
    mine = outcome(operations, name)
    found = MPI.COMM_WORLD.allgather(mine)
    label = name, comm.config.allreduce, comm.config.p2p, culprit, what, spared, found
    assert "wrong" not in found, label
    hit = is_culprit and driver.hits == FAILURES[what][1]
    # Without room for a message in the GPU's memory it takes the way of the host.
    if hit and not (what == "allocate" and comm.config.transport == "mpi-device"):
        assert mine.startswith("Exception: "), label
        assert FAILURES[what][0] in mine, label
    driver.arm("", 0)
    assert nothing_held(), label
    after = MPI.COMM_WORLD.allgather(outcome(operations, name))
    assert set(after) == {"right"}, (*label, "afterwards", after)
    return bool(MPI.COMM_WORLD.allreduce(hit, MPI.LOR))


def failing(comm: uzipmpi.Comm) -> None:
    """The driver fails amid each kind of operation."""
    operations = DeviceOperations(comm, 6000, driver.aside)
    hits = dict.fromkeys(FAILURES, 0)
    culprits = itertools.cycle((0, comm.size - 1))
    sparing = itertools.cycle((0, 2, 1))

    def sweep(names: tuple[str, ...], kinds: tuple[str, ...]) -> None:
        for name, what in itertools.product(names, kinds):
            hits[what] += attempt(operations, name, next(culprits), what, next(sparing))

    sweep((*MESSAGES, *MOVING), ("allocate", "encode", "decode", "query_event"))
    for algorithm in ALLREDUCES:
        with comm.options(allreduce=algorithm):
            sweep(("Allreduce",), tuple(FAILURES))
    sweep(("Reduce", "Ireduce_scatter"), ("decode_reduce", "decode_reduce_encode", "copy"))
    assert all(hits.values()), hits


def without_a_copy(comm: uzipmpi.Comm) -> None:
    """In place, what is sent is copied first: if there is no room, the other ranks are told."""
    values = DeviceBuffer(np.ones(6000 * comm.size, np.float32))
    driver.arm("allocate" if comm.rank == 0 else "", 0)
    try:
        comm.Alltoall(MPI.IN_PLACE, values)
        text = ""
    except (uzipmpi.Error, MPI.Exception) as error:
        text = str(error)
    found = MPI.COMM_WORLD.allgather(text)
    assert "out of memory" in found[0], found
    assert all(found), found
    driver.arm("", 0)
    comm.Alltoall(MPI.IN_PLACE, values)


class Wire:
    """Damages the directory of the next frame: only a GPU looks at more than its header."""

    def __init__(self) -> None:
        self.armed = False
        self.on_gpu = False  # whether a message was sent from there

    def isend(self, host: MpiHost, memory: Bytes, dest: int, tag: int) -> Transfer:
        """Send a message, damaged if that is due and it is a frame with a directory."""
        self.on_gpu = self.on_gpu or isinstance(memory, device.DeviceMemory)
        if self.armed and memory.size > codec.HEADER_BYTES:
            content = on_host(memory).copy()
            header = codec.info(content[: codec.HEADER_BYTES])
            if header.codec == "tier" and header.tail_bytes:
                self.armed = False
                memory = content
                tails = header.frame_bytes - header.tail_bytes
                memory[tails - 16 : tails] ^= np.uint8(0x5A)
        return _isend(host, memory, dest, tag)


def on_host(memory: Any) -> Bytes:
    """Return a message's bytes: the emulated GPU's memory is the host's."""
    if isinstance(memory, np.ndarray):
        return memory
    return np.ctypeslib.as_array((ctypes.c_uint8 * memory.size).from_address(memory.address))


def damaged(comm: uzipmpi.Comm) -> None:
    """A GPU refuses a frame."""
    operations = DeviceOperations(comm, 6000, driver.aside)
    culprit = comm.size - 1
    for name in ("Isend", "Bcast", "Alltoall", *(["Allreduce"] * 3), "Reduce_scatter"):
        for algorithm in ALLREDUCES if name == "Allreduce" else ("auto",):
            with comm.options(allreduce=algorithm):
                sender = 0 if name in ("Isend", "Bcast") else culprit
                wire.armed = comm.rank == sender
                found = MPI.COMM_WORLD.allgather(outcome(operations, name))
                label = name, algorithm, found
                assert not MPI.COMM_WORLD.allreduce(wire.armed, MPI.LOR), label
                assert "wrong" not in found, label
                assert any(f"frame from rank {sender}: malformed frame" in one for one in found), (
                    label
                )
                after = MPI.COMM_WORLD.allgather(outcome(operations, name))
                assert set(after) == {"right"}, (*label, "afterwards", after)
    assert nothing_held()
    assert wire.on_gpu == (comm.config.transport == "mpi-device")


driver = Driver(gpu_half)
wire = Wire()
_isend = MpiHost.isend


def main() -> None:
    MpiHost.isend = lambda *arguments: wire.isend(*arguments)  # type: ignore[method-assign]
    comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=0, chunk_bytes=8192)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    failing(comm)
    without_a_copy(comm)
    damaged(comm)


if __name__ == "__main__":
    main()
