"""Ranks of one process, linked to each other, each with a stream of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from samples import tensor_of

from uzipmpi.kernels import device, link, reduce
from uzipmpi.kernels.device import DeviceMemory, Stream, gpu_half
from uzipmpi.typing import Bytes, DType, Tensor

GUARD = 64  # bytes on both sides of memory, which must stay as they are
POISON = 0x5A
TIMEOUT = 20.0
TIMED_OUT = 1  # a status

Rank = TypeVar("Rank", bound="LinkedRank")


class LinkedRank:
    """A rank with links to others, and memory on its GPU."""

    def __init__(self, rank: int, size: int, staging_bytes: int = 0) -> None:
        self.rank = rank
        self.device = rank % gpu_half().device_count()
        self.links = self._links(rank, size, staging_bytes)
        self.stream = Stream(self.device)
        self._guarded: list[tuple[DeviceMemory, int]] = []
        self._statuses: list[Bytes] = []

    def _links(self, rank: int, size: int, staging_bytes: int) -> Any:
        return link.Links(self.device, rank, size, staging_bytes)

    def put(self, values: Bytes, offset: int = 0) -> DeviceMemory:
        """Return a guarded copy of bytes, ``offset`` bytes behind a multiple of 16."""
        whole = np.full(values.size + 2 * GUARD + offset, POISON, np.uint8)
        start = GUARD + offset
        whole[start : start + values.size] = values
        there = device.allocate(whole.size, self.device)
        self.stream.copy(there, whole)
        self.stream.synchronize()  # the bytes may be gone soon
        self._guarded.append((there, start))
        return there[start : start + values.size]

    def room(self, nbytes: int, offset: int = 0) -> DeviceMemory:
        """Return guarded memory with arbitrary content."""
        return self.put(np.full(nbytes, POISON, np.uint8), offset)

    def get(self, memory: DeviceMemory) -> Bytes:
        """Return what is in memory once all that is queued is done."""
        out = device.pinned(memory.size, self.device)
        self.stream.copy(out, memory)
        self.stream.synchronize()
        return out

    def exchange(self, dtype: DType, **arguments: Any) -> None:
        """Queue an exchange."""
        status = device.pinned(4, self.device)
        status[:] = 0
        self._statuses.append(status)
        arguments.setdefault("timeout", TIMEOUT)
        link.prepare(self.links, dtype, status=status, **arguments).launch(self.stream)

    def statuses(self) -> list[int]:
        """Wait for all that is queued; return the status of each exchange since the last time."""
        self.stream.synchronize()
        found = [int(status.view(np.uint32)[0]) for status in self._statuses]
        self._statuses.clear()
        return found

    def finish(self) -> list[int]:
        """Return the same, once all that surrounds memory was found as it had been."""
        found = self.statuses()
        for memory, start in self._guarded:
            around = self.get(memory)
            size = memory.size - start - GUARD
            assert (around[:start] == POISON).all(), "written before memory's beginning"
            assert (around[start + size :] == POISON).all(), "written behind memory's end"
        return found


def linked(n: int, staging_bytes: int = 0) -> list[LinkedRank]:
    """Return ranks that are connected; without staging bytes with as few slots as can be."""
    return connected([LinkedRank(rank, n, staging_bytes) for rank in range(n)])


def connected(ranks: list[Rank]) -> list[Rank]:
    """Connect each to all others."""
    for one in ranks:
        for other in ranks:
            if one is not other:
                one.links.connect(other.rank, other.links.handle)
    return ranks


def finish(ranks: Sequence[LinkedRank]) -> list[int]:
    """Wait for all ranks; return all statuses."""
    return [status for rank in ranks for status in rank.finish()]


def send_both_ways(
    ranks: Sequence[LinkedRank], tensors: list[Tensor], offset: int = 0, **arguments: object
) -> list[Bytes]:
    """Exchange two tensors, one from each rank; return what arrived at each."""
    arrived = []
    for rank, tensor, other in zip(ranks, tensors, tensors[::-1], strict=True):
        peer = 1 - rank.rank
        out = rank.room(other.nbytes, offset)
        sends = [(peer, rank.put(tensor.memory, offset))]
        rank.exchange(tensor.dtype, sends=sends, receives=[(peer, out)], **arguments)
        arrived.append((rank, out))
    found = [rank.get(out) for rank, out in arrived]
    assert finish(ranks) == [0, 0]
    return found


def contributions(n: int, dtype: DType, count: int) -> list[Tensor]:
    """Return a tensor for each rank."""
    patterns = ("normal", "outliers", "random_bits", "zero_heavy")
    return [tensor_of(patterns[rank % 4], dtype, count, rank) for rank in range(n)]


def folded(op: str, tensors: list[Tensor], divisor: int = 1) -> Bytes:
    """Return what the CPU makes of them."""
    out = Tensor(np.empty_like(tensors[0].memory), tensors[0].dtype)
    reduce.fold(op, tensors, out, divisor=divisor)
    return out.memory


def outlives_its_peer(kind: type[LinkedRank], gpu_module: Path) -> None:
    """What it has sent is there; then the receiver waits no longer than it was told to."""
    program = Path(__file__).with_name("linked_peer.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, program, gpu_module, kind.__module__, kind.__name__]
    with subprocess.Popen(command, **pipes) as peer:
        rank = kind(0, 2)
        print(rank.links.handle.hex(), file=peer.stdin, flush=True)
        rank.links.connect(1, bytes.fromhex(peer.stdout.readline()))
        out = rank.room(100_000)
        for _ in range(3):
            rank.exchange(DType.FLOAT32, receives=[(1, out)])
            assert rank.finish() == [0]
        assert not rank.get(out).any()
        peer.kill()
        peer.wait(10)
        status = 0
        while not status:
            begin = time.monotonic()
            rank.exchange(DType.FLOAT32, receives=[(1, out)], timeout=0.5)
            (status,) = rank.finish()
            assert time.monotonic() - begin < 10
        assert status == TIMED_OUT
        rank.links.close()
