"""What one rank sends is damaged on the way: errors that name ranks, no wrong values, no hang.

ranks_damaged.py blocking | begun | persistent | messages

Each trial runs one operation with one fault. Then every rank has an error or the right result, one
has an error that names the sender and the receiver, and the communicator goes on working.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from operations import COLLECTIVES, Operations

import uzipmpi
from uzipmpi.transports.mpi_host import MpiHost
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes

FORMS = {
    "blocking": COLLECTIVES,
    "begun": tuple(f"I{name.lower()}" for name in COLLECTIVES),
    "persistent": tuple(f"{name}_init" for name in COLLECTIVES),
    "messages": (
        *("Send", "Ssend", "Isend", "Send_init", "Sendrecv"),
        *("Recv", "Irecv", "Waitall", "MPI.Waitall", "Probe", "Mprobe", "Recv_init"),
    ),
}
CHUNK_BYTES = 8192
# Each operation meets so many of the faults and places: the next one goes on with the others.
TURNS = 5
_isend = MpiHost.isend


def flip_header(message: Bytes) -> Bytes:
    return np.concatenate([message[:1] ^ np.uint8(0xFF), message[1:]])


def flip_body(message: Bytes) -> Bytes:
    damaged = message.copy()
    damaged[damaged.size // 2] ^= 4
    return damaged


def flip_end(message: Bytes) -> Bytes:
    damaged = message.copy()
    damaged[-1] ^= 4
    return damaged


def truncate(message: Bytes) -> Bytes:
    return message[: message.size // 2]


class Wire:
    """Stands between this rank and the transport.

    Attributes
    ----------
    fault
        What happens to a message: a function of its bytes, "swap" (it goes after the next one to
        the same rank) or "repeat" (the next one goes out as a copy of it). None: nothing.
    countdown
        How many messages are spared before.
    hit
        Whether a message was damaged.
    """

    def __init__(self) -> None:
        self.fault: Callable[[Bytes], Bytes] | str | None = None
        self.countdown = 0
        self.hit = False
        self._held: dict[tuple[int, int], Bytes] = {}
        self._alive: list[Transfer] = []

    def isend(self, host: MpiHost, memory: Bytes, dest: int, tag: int) -> Transfer:
        """Send a message, or do to it what the fault says."""
        if (dest, tag) in self._held:
            return self._after(host, memory, dest, tag)
        if self.fault is None or self.hit or self._spared():
            return _isend(host, memory, dest, tag)
        if isinstance(self.fault, str):
            self._held[dest, tag] = memory.copy()
            if self.fault == "swap":
                return Transfer(MPI.Request())
            return _isend(host, memory, dest, tag)
        self.hit = True
        return _isend(host, self.fault(memory), dest, tag)

    def _spared(self) -> bool:
        self.countdown -= 1
        return self.countdown >= 0

    def _after(self, host: MpiHost, memory: Bytes, dest: int, tag: int) -> Transfer:
        held = self._held.pop((dest, tag))
        self.hit = True
        if self.fault == "repeat":
            return _isend(host, held, dest, tag)
        second = _isend(host, memory, dest, tag)
        self._alive.append(_isend(host, held, dest, tag))
        return second


wire = Wire()
BYTE_FAULTS = (flip_header, flip_body, flip_end, truncate)
FAULTS = (*BYTE_FAULTS, "swap", "repeat")


def outcome(operations: Operations, name: str) -> str:
    try:
        operations.run(name)
    except (uzipmpi.Error, MPI.Exception) as error:
        return f"{type(error).__name__}: {error}"
    return "right" if operations.is_right(name) else "wrong"


def attempt(operations: Operations, name: str, culprit: int, fault: Any, spared: int) -> bool:
    """Run an operation with a fault; return whether a message was damaged."""
    comm = operations.comm
    wire.__init__()  # type: ignore[misc]
    if comm.rank == culprit:
        wire.fault, wire.countdown = fault, spared
    found = MPI.COMM_WORLD.allgather(outcome(operations, name))
    hit = MPI.COMM_WORLD.allreduce(wire.hit, MPI.LOR)
    label = name, culprit, getattr(fault, "__name__", fault), spared, found
    assert "wrong" not in found, label
    if hit:
        assert set(found) != {"right"}, label
        named = (set(re.findall(r"rank (\d+)", text)) for text in found)
        # MPI passes on codes, not texts; slices of a frame are looked at when it is whole.
        opaque = name == "MPI.Waitall" or comm.config.p2p == "split"
        assert opaque or any(str(culprit) in ranks and len(ranks) > 1 for ranks in named), label
    wire.__init__()  # type: ignore[misc]
    after = MPI.COMM_WORLD.allgather(outcome(operations, name))
    assert set(after) == {"right"}, (*label, "afterwards", after)
    return bool(hit)


def main() -> None:
    MpiHost.isend = lambda *arguments: wire.isend(*arguments)  # type: ignore[method-assign]
    (form,) = sys.argv[1:]
    options = {"compress": "always", "min_bytes": 0, "chunk_bytes": CHUNK_BYTES, "verify": True}
    comm = uzipmpi.Comm(MPI.COMM_WORLD, **options)
    operations = Operations(comm)
    for algorithm, faults in ("chunked", FAULTS), ("split", FAULTS), ("whole", BYTE_FAULTS):
        names = FORMS[form] if algorithm == "chunked" else ("Send", "Isend", "Irecv", "Mprobe")
        if algorithm != "chunked" and form != "messages":
            continue
        turns = itertools.cycle(itertools.product(faults, (0, 1)))
        with comm.options(p2p=algorithm):
            for name in names:
                for fault, spared in itertools.islice(turns, TURNS):
                    ranks = 0, comm.size - 1
                    hits = [attempt(operations, name, rank, fault, spared) for rank in ranks]
                    # A message of one frame has no second one.
                    assert any(hits) or (algorithm, spared) == ("whole", 1), (name, fault, "missed")


if __name__ == "__main__":
    main()
