"""What the pools of memory hand out: bounded by ``max_staging_bytes``, and given back.

ranks_limits.py MODULE: on the emulated GPU.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated_module
import numpy as np
from mpi4py import MPI

import uzipmpi
from uzipmpi.kernels import device_pool
from uzipmpi.kernels.device_pool import Allocation, Pool
from uzipmpi.typing import DType

gpu_half = emulated_module.install(Path(sys.argv[1]))
from device_buffer import DeviceBuffer  # noqa: E402

MIB = 1 << 20
CALLS = 10_000
BF16 = DType.BFLOAT16.numpy
rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
peer = size - 1 - rank


class Ledger:
    """What a pool has handed out and not got back, and the most that this ever was."""

    def __init__(self, pool: Pool) -> None:
        self.held_bytes = self.most_bytes = 0
        self._take, self._give = pool.take, pool.give
        pool.take = self.take  # type: ignore[method-assign]
        pool.give = self.give  # type: ignore[method-assign]

    def take(self, nbytes: int, gpu: int) -> Allocation:
        """Count what is handed out."""
        allocation = self._take(nbytes, gpu)
        self.held_bytes += allocation.room
        self.most_bytes = max(self.most_bytes, self.held_bytes)
        return allocation

    def give(self, address: int, room: int, gpu: int) -> None:
        """Count what comes back."""
        self.held_bytes -= room
        self._give(address, room, gpu)


on_gpu, pinned = Ledger(device_pool.pools().device), Ledger(device_pool.pools().pinned)


def values(count: int) -> DeviceBuffer:
    """Return values of which no frame is small: what is staged is as large as it gets."""
    numbers = np.random.default_rng(rank).integers(0, 1 << 16, count, np.uint16) & 0xBFFF
    return DeviceBuffer(numbers.view(BF16))


def blank(count: int) -> DeviceBuffer:
    return DeviceBuffer(np.zeros(count, BF16))


def most_staged(comm: uzipmpi.Comm, call: Callable[[], Any]) -> int:
    """Return how many bytes a call has on the GPU at a time, beyond what there was before."""
    gc.collect()
    before = on_gpu.most_bytes = on_gpu.held_bytes
    call()
    return on_gpu.most_bytes - before


def bounded() -> None:
    """Tensors larger than the bound are cut; messages that are under way together take turns."""
    large = 700_000  # 1.4 MB
    one, other = values(large), blank(large)
    some = [(values(120_000), blank(120_000)) for _ in range(6)]

    def messages(comm: uzipmpi.Comm) -> None:
        requests = [comm.Irecv(received, peer, tag) for tag, (_, received) in enumerate(some)]
        requests += [comm.Isend(sent, peer, tag) for tag, (sent, _) in enumerate(some)]
        uzipmpi.waitall(requests)

    def whole(comm: uzipmpi.Comm) -> None:
        with comm.options(p2p="whole"):
            comm.Sendrecv(one, peer, 0, other, peer, 0)

    def from_host(comm: uzipmpi.Comm) -> None:
        with comm.options(p2p="whole"):
            comm.Sendrecv(one.get() if rank else one, peer, 0, other, peer, 0)

    calls: dict[str, Callable[[uzipmpi.Comm], Any]] = {
        "messages": messages,
        "whole": whole,
        "from_host": from_host,
        "Allreduce": lambda comm: comm.Allreduce(one, other, MPI.MAX),
        "Allgather": lambda comm: comm.Allgather(some[0][0], other_of(2 * 120_000)),
    }
    receiving = {}

    def other_of(count: int) -> DeviceBuffer:
        return receiving.setdefault(count, blank(count))

    other_of(2 * 120_000)
    for name, call in calls.items():
        found = {}
        for bound in (MIB, 64 * MIB):
            comm = uzipmpi.Comm(
                MPI.COMM_WORLD.Dup(),
                compress="always",
                min_bytes=0,
                chunk_bytes=16 * MIB,
                max_staging_bytes=bound,
            )
            found[bound] = most_staged(comm, lambda call=call, comm=comm: call(comm))
            comm.Free()
        assert 0 < found[MIB] <= MIB, (name, found)
        if name in ("messages", "whole"):
            assert found[64 * MIB] > MIB, (name, found)
        if name == "Allreduce":
            assert found[64 * MIB] > found[MIB], (name, found)
    others = MPI.COMM_WORLD.sendrecv(one.get(), peer, source=peer)
    assert other.get().tobytes() == np.maximum(one.get(), others).tobytes()


def steady() -> None:
    """Small calls leave memory where it was."""
    comm = uzipmpi.Comm(MPI.COMM_WORLD.Dup(), compress="always", min_bytes=0)
    sent, received, reduced = values(64), blank(64), blank(64)
    gathered = blank(64 * size)
    calls = (
        lambda: comm.Sendrecv(sent, peer, 0, received, peer, 0),
        lambda: uzipmpi.waitall([comm.Irecv(received, peer), comm.Isend(sent, peer)]),
        lambda: comm.Allreduce(sent, reduced),
        lambda: comm.Allgather(sent, gathered),
        lambda: comm.Bcast(sent),
    )

    def some(n: int) -> tuple[int, int, int]:
        for number in range(n):
            calls[number % len(calls)]()
        gc.collect()
        return on_gpu.held_bytes, pinned.held_bytes, len(gc.get_objects())

    before = some(100)
    pools = device_pool.pools()
    on_gpu.most_bytes = pinned.most_bytes = 0
    kept = pools.device.kept_bytes(rank % 2), pools.pinned.kept_bytes(rank % 2)
    after = some(CALLS)
    assert after[:2] == before[:2], (before, after)
    assert after[2] < before[2] + 100, (before, after)
    assert kept == (pools.device.kept_bytes(rank % 2), pools.pinned.kept_bytes(rank % 2))
    comm.Free()


if __name__ == "__main__":
    bounded()
    steady()
    if rank == 0:
        print("bounded and steady")
