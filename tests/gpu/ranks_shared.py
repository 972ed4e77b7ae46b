"""Large frames of GPU buffers stay in memory that the ranks of a node share.

ranks_shared.py MODULE: on the emulated GPU.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import emulated_module
import numpy as np
from mpi4py import MPI

import uzipmpi
from uzipmpi.algorithms import gpu_steps
from uzipmpi.transports import shared
from uzipmpi.typing import Bytes

gpu_half = emulated_module.install(Path(sys.argv[1]))
from device_buffer import DeviceBuffer  # noqa: E402
from device_operations import DeviceOperations  # noqa: E402

COUNT = 30_000
rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
_note = shared.note
shared.LEAST_BYTES = 4096  # a GPU that is emulated takes long for more


class Notes:
    """Counts the notes that this rank sends; may damage what the next one stands for."""

    def __init__(self) -> None:
        self.sent = 0
        self.damages = False
        shared.note = self.note

    def note(self, memory: Bytes, dest: int) -> Any:
        """Do what the transport asks for."""
        found = _note(memory, dest)
        if found is not None:
            self.sent += 1
            if self.damages:
                self.damages = False
                memory[0] ^= 0xFF
        return found


def run(comm: uzipmpi.Comm, name: str) -> str:
    """Run an operation; return what is wrong."""
    operations = DeviceOperations(comm, COUNT)
    try:
        operations.run(name)
    except uzipmpi.Error as error:
        return str(error)
    return "" if operations.is_right(name) else "wrong"


def everything(comm: uzipmpi.Comm) -> None:
    """All ways; several messages at a time; ranks with buffers on the host among them."""
    for name in ("Isend", "Issend", "Send_init", "Mprobe", "Sendrecv"):
        assert run(comm, name) == "", name
    for name in ("Bcast", "Gather", "Iscatter", "Allgather_init", "Alltoall", "Reduce"):
        assert run(comm, name) == "", name
    for algorithm in ("one_shot", "two_shot", "ring"):
        with comm.options(allreduce=algorithm):
            assert run(comm, "Allreduce") == "", algorithm
    with comm.options(allgather="ring"):
        assert run(comm, "Allgather") == ""
    peer = (rank + 1) % size
    values = np.random.default_rng(rank).standard_normal(COUNT, np.float32)
    for put_sent, put_received in ((DeviceBuffer, np.copy), (np.copy, DeviceBuffer)):
        sent, received = put_sent(values), put_received(np.zeros_like(values))
        comm.Sendrecv(sent, peer, 0, received, (rank - 1) % size, 0)
        found = received if isinstance(received, np.ndarray) else received.get()
        source = np.random.default_rng((rank - 1) % size).standard_normal(COUNT, np.float32)
        assert found.tobytes() == source.tobytes()


def refused(comm: uzipmpi.Comm) -> None:
    """A damaged frame is refused, and its memory goes back."""
    for name in ("Isend", "Alltoall"):
        notes.damages = rank == 0
        found = MPI.COMM_WORLD.allgather(run(comm, name))
        assert any("frame from rank 0" in one for one in found), found
        assert not notes.damages
        assert MPI.COMM_WORLD.allgather(run(comm, name)) == [""] * size


def returned() -> bool:
    """Whether the pools have all segments that were ever made, and no peer's message is held."""
    gc.collect()
    pools = [gpu_steps.gpu_at(gpu).shared._pool for gpu in range(gpu_half.device_count())]
    kept = sum(len(some) for pool in pools for some in pool._kept._free.values())
    made = next(shared.Segment._serials) - 1
    return kept == made


notes = Notes()
comm = uzipmpi.Comm(
    MPI.COMM_WORLD.Dup(), compress="always", min_bytes=0, chunk_bytes=1 << 20, transport="mpi-host"
)
assert comm.Dup().config.transport == "mpi-host"
everything(comm)
refused(comm)
assert notes.sent > 10, notes.sent
assert returned()
if rank == 0:
    print(notes.sent, "notes")
