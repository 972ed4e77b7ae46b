"""What a call asks of the driver once memory is there: few calls a chunk, nothing that waits.

ranks_costs.py MODULE: on the emulated GPU.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import emulated_module
import numpy as np
from mpi4py import MPI

import uzipmpi
from uzipmpi.transports import shared
from uzipmpi.typing import DType

gpu_half = emulated_module.install(Path(sys.argv[1]))
from device_buffer import DeviceBuffer  # noqa: E402

CHUNK_BYTES = 16384
CHUNKS = 8
CALLS = 4
# What takes longer than a chunk: memory, page-locking, streams, and whatever waits for the GPU.
SLOW = ("allocate", "allocate_pinned", "release", "release_pinned", "pin", "unpin")
SLOW += ("create_stream", "create_event", "synchronize_stream", "synchronize_event")
# Of those a few may come: how many frames are under way at a time depends on who is fast.
SLACK = 3
# Most calls for a chunk that is sent and one that is received. A frame that is larger than the one
# before is copied in two parts.
MOST = {"encode": 1, "decode": 1, "decode_reduce": 1, "copy": 3, "set_bytes": 0}
MOST |= {"record_event": 5, "wait_for_event": 2}
shared.LEAST_BYTES = 4096
rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


class Calls:
    """Counts the calls of the GPU half."""

    def __init__(self, module: ModuleType) -> None:
        self.counts: Counter[str] = Counter()
        for name in (*SLOW, *MOST):
            setattr(module, name, self._counted(name, getattr(module, name)))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.counts[name] += 1
            return function(*arguments)

        return call


calls = Calls(gpu_half)


def drawn(nbytes: int) -> DeviceBuffer:
    values = np.random.default_rng(rank).standard_normal(nbytes // 2, np.float32) * 0.02
    return DeviceBuffer(values.astype(DType.BFLOAT16.numpy))


def main() -> None:
    assert size == 2
    peer = 1 - rank
    nbytes = CHUNKS * CHUNK_BYTES
    comm = uzipmpi.Comm(
        MPI.COMM_WORLD.Dup(), compress="always", min_bytes=0, chunk_bytes=CHUNK_BYTES
    )
    transport = uzipmpi.handle.of(comm).transport
    one, other, twice = drawn(nbytes), drawn(nbytes), drawn(2 * nbytes)
    both = drawn(2 * nbytes)
    operations: dict[str, Callable[[], Any]] = {
        "Allreduce": lambda: comm.Allreduce(one, other),
        "Alltoall": lambda: comm.Alltoall(twice, both),
        "Sendrecv": lambda: comm.Sendrecv(one, peer, 0, other, peer, 0),
    }
    for name, operation in operations.items():
        calls.counts.clear()
        for _ in range(2):
            operation()
        assert calls.counts["allocate"] or name != "Allreduce", "the pools were not seen"
        comm.Barrier()
        calls.counts.clear()
        messages = transport.messages_sent
        for _ in range(CALLS):
            operation()
        found = dict(calls.counts)
        assert sum(calls.counts[slow] for slow in SLOW) <= SLACK, (name, found)
        for what, most in MOST.items():
            # Beside the chunks: a rank's own part, and what comes after the buffers' owners.
            assert calls.counts[what] <= CALLS * (CHUNKS * most + 6), (name, what, found)
        assert transport.messages_sent - messages <= CALLS * CHUNKS, name
    comm.Free()
    if rank == 0:
        print("cheap")


if __name__ == "__main__":
    main()
