"""Pipes between GPUs of a host that do not reach each other: copy engines and the codec's kernels.

:class:`Pipes` and :func:`prepare` are what ``kernels.link`` has by other means: what one rank sends
the other receives, coded on the way, in the order in which both queue it. How is in
``pipe_gpu.hpp``.
"""

from __future__ import annotations

import functools
import os
import struct
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from uzipmpi.kernels.device import DeviceMemory, Stream, gpu_half
from uzipmpi.kernels.link import Copy, Fold, count_values, fold_fields
from uzipmpi.kernels.link_memory import (
    HANDLE_BYTES,
    Close,
    HostShare,
    check_rank,
    place_of,
    process_token,
    reach,
)
from uzipmpi.kernels.pipe_watch import ABORTED, Head, Watch, Watched
from uzipmpi.typing import DType

__all__ = ["Exchange", "Pipes", "prepare"]

# Process, memory, address, device, rank, size, bytes of a slot.
_HANDLE = struct.Struct(f"<16s {HANDLE_BYTES}s Q i i i q")


class Pipes:
    """A rank's pipes to all others: memory of the host that both ends of each map.

    What is sent to a peer is received in the same order. An exchange that failed ends all pipes of
    its ranks for good: later ones do nothing.

    Parameters
    ----------
    device
        Ordinal of the GPU.
    rank, size
        Of this rank among those that are connected.
    staging_bytes
        Most bytes of the GPU's memory, and of the host's, but for the least that the slots need.
        The same for all ranks.

    Attributes
    ----------
    device, rank, size
        As given.

    Raises
    ------
    ValueError
        If there are too many ranks.
    OSError, RuntimeError
        If the system or the driver refuses.
    """

    def __init__(self, device: int, rank: int, size: int, staging_bytes: int) -> None:
        check_rank(rank, size)
        self.device = device
        self.rank = rank
        self.size = size
        self._slot_bytes = _slot_bytes(staging_bytes // max(size - 1, 1))
        self._region_bytes: int = gpu_half().pipe_region_bytes(self._slot_bytes)
        self._share = HostShare(max(size - 1, 1) * self._region_bytes, device)
        self._watch = Watch()
        self._opened: dict[int, Close] = {}
        self._pipes: dict[int, int] = {}
        self._is_open = True
        self._disconnect = functools.partial(_close, self._watch, self._pipes, self._opened)
        self._free = weakref.finalize(self, _release, self._disconnect, self._share)
        self._free.atexit = False  # the driver may be gone before us

    @property
    def handle(self) -> bytes:
        """What the other ranks need to connect."""
        return _HANDLE.pack(
            process_token(os.getpid()),
            self._share.handle(),
            self._share.address,
            self.device,
            self.rank,
            self.size,
            self._slot_bytes,
        )

    def connect(self, peer: int, handle: bytes) -> None:
        """Connect to a peer, of another process or of this one, by its handle.

        Raises
        ------
        ValueError
            If it is another's, of another size, or not of this host.
        OSError, RuntimeError
            If the system or the driver finds no way to its memory, or has no memory left.
        """
        self.check_open()
        process, memory, address, device, *theirs = _HANDLE.unpack(handle)
        mine = [peer, self.size, self._slot_bytes]
        if theirs != mine or peer == self.rank:
            raise ValueError(f"expected {_description(*mine)}, found {_description(*theirs)}")
        if peer in self._pipes:
            return
        address, self._opened[peer] = reach(self._share, process, memory, address, device)
        there = address + self._region_bytes * place_of(self.rank, peer)
        here = self._share.address + self._region_bytes * place_of(peer, self.rank)
        pipe: int = gpu_half().open_pipe(self.device, here, there, self._slot_bytes)
        self._pipes[peer] = pipe
        self._watch.pipes.append(Watched(pipe, Head(here), Head(there)))

    def disconnect(self) -> None:
        """Leave the peers' memory for good, as all ranks must before one of them frees its own.

        What is still under way is ended.
        """
        self._is_open = False
        self._disconnect()

    def close(self) -> None:
        """Disconnect, and free the memory; again, it does nothing."""
        self._is_open = False
        self._free()

    def abort(self) -> None:
        """End all exchanges of the connected ranks, also those under way, for good."""
        self._watch.give_up(ABORTED)

    def check_open(self) -> None:
        """Raise ValueError if the pipes are closed."""
        if not self._is_open:
            raise ValueError("expected links that are not closed")

    def settle(self) -> None:
        """Wait for all that is queued."""
        for pipe in self._pipes.values():
            gpu_half().settle_pipe(pipe)

    @property
    def ended_by(self) -> int:
        """Why all exchanges have ended, see ``link.complaint``; 0: they go on."""
        return self._watch.ended_by

    def watch(self, timeout: float) -> None:
        """Look after what has been queued."""
        self._watch.begin(timeout)

    def pipes(self, peers: Iterable[int]) -> list[int]:
        """Return the pipes to some peers.

        Raises
        ------
        ValueError
            If one is not connected, or all are closed.
        """
        self.check_open()
        peers = list(peers)
        if strangers := [peer for peer in peers if peer not in self._pipes]:
            raise ValueError(f"expected peers that are connected, found {strangers}")
        return [self._pipes[peer] for peer in peers]

    def others(self) -> list[int]:
        """Return the pipes to all other ranks, in their order."""
        return self.pipes(peer for peer in range(self.size) if peer != self.rank)


def _slot_bytes(staging_bytes: int) -> int:
    """Return the bytes of a slot, such that a pipe needs no more memory of the GPU."""
    gpu = gpu_half()
    page = 4096
    most = (staging_bytes // 2 - page) // gpu.PIPE_SLOTS // page * page
    return int(max(gpu.LEAST_SLOT_BYTES, min(gpu.MOST_SLOT_BYTES, most)))


def _description(rank: int, size: int, slot_bytes: int) -> str:
    return f"rank {rank} of {size} with slots of {slot_bytes} bytes"


def _release(disconnect: Close, share: HostShare) -> None:
    disconnect()
    share.close()


def _close(watch: Watch, pipes: dict[int, int], opened: dict[int, Close]) -> None:
    if any(one.is_pending() for one in watch.pipes):
        watch.give_up(ABORTED)
    for pipe in pipes.values():
        gpu_half().settle_pipe(pipe)
    watch.stop()
    watch.pipes.clear()
    while pipes:
        gpu_half().close_pipe(pipes.popitem()[1])
    while opened:
        opened.popitem()[1]()


class Exchange:
    """Messages, a fold and a copy, to be queued any number of times."""

    __slots__ = ("_pipes", "_prepared", "_timeout")

    def __init__(self, pipes: Pipes, prepared: Any, timeout: float) -> None:
        self._pipes, self._prepared, self._timeout = pipes, prepared, timeout

    def launch(self, stream: Stream) -> None:
        """Queue it after what is in a stream of the pipes' GPU, unless all has ended.

        The stream goes on when what comes is there, and what is sent may change: that it has been
        taken is known later.

        Raises
        ------
        ValueError
            If the pipes are closed.
        RuntimeError
            If the driver refuses, memory is not aligned to its values, or the stream is captured.
        """
        self._pipes.check_open()
        if self._pipes.ended_by:
            return
        try:
            self._prepared.launch(stream.handle)
        finally:
            self._pipes.watch(self._timeout)


def prepare(
    links: Pipes,
    dtype: DType,
    *,
    sends: Sequence[tuple[int, DeviceMemory]] = (),
    receives: Sequence[tuple[int, DeviceMemory]] = (),
    fold: Fold | None = None,
    copy: Copy | None = None,
    word: int = 0,
    codec: str = "auto",
    menu: int = -1,
    max_blocks: int = 0,
    timeout: float,
) -> Exchange:
    """Return what queues messages, a fold and a copy; the parameters are ``link.prepare``'s.

    What goes wrong is in :attr:`Pipes.ended_by`.
    """

    def messages(jobs: Sequence[tuple[int, DeviceMemory]]) -> list[tuple[int, int, int]]:
        pipes = links.pipes([peer for peer, _ in jobs])
        return [
            (pipe, memory.address, count_values(memory, dtype))
            for pipe, (_, memory) in zip(pipes, jobs, strict=True)
        ]

    prepared = gpu_half().prepare_pipes(
        dtype,
        word,
        codec,
        menu,
        max_blocks,
        messages(sends),
        messages(receives),
        None if fold is None else fold_fields(fold, links.rank, links.others(), dtype),
        None if copy is None else (copy.source.address, copy.destination.address, copy.source.size),
        links.device,
    )
    return Exchange(links, prepared, timeout)
