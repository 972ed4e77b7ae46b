"""Links between the GPUs of a host, and the kernels that exchange values through them.

Each rank makes :class:`Links`, gives its handle to the others and connects to theirs. From then on
:func:`prepare` makes what queues one kernel at each end, and what one sends the other receives,
coded on the way, without the host. How is in ``link_gpu.hpp``.
"""

from __future__ import annotations

import functools
import os
import struct
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from uzipmpi.kernels.device import DeviceMemory, Stream, gpu_half
from uzipmpi.kernels.link_memory import (
    HANDLE_BYTES,
    Close,
    DeviceShare,
    check_rank,
    place_of,
    process_token,
    reach,
)
from uzipmpi.kernels.reduce import OPS
from uzipmpi.typing import Bytes, DType

__all__ = [
    "Copy",
    "Exchange",
    "Fold",
    "Links",
    "can_access",
    "complaint",
    "count_values",
    "device_identity",
    "fold_fields",
    "prepare",
]

# Process, memory, address, device, rank, size, slots.
_HANDLE = struct.Struct(f"<16s {HANDLE_BYTES}s Q i i i i")
_RAISED = b"\1\0\0\0"

_STATUS = {
    1: "a peer did not come, or did not go on, within the time limit",
    2: "the exchange was aborted, by a peer or by this rank",
    3: "a peer sent another data type or count, or in another call",
    4: "a peer sent what no sender makes",
}


class Links:
    """A rank's links to all others: memory that their kernels write, and theirs for it.

    What is sent to a peer is received in the same order. Of the exchanges that send to one peer,
    one may run at a time, and so of those that receive from it. An exchange that failed ends all
    links of its ranks for good: later ones end at once, with a status.

    Parameters
    ----------
    device
        Ordinal of the GPU.
    rank, size
        Of this rank among those that are linked.
    staging_bytes
        Most bytes of memory for it all, but for what the driver rounds up, and a few records per
        peer at least. The same for all ranks.

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
        gpu = gpu_half()
        check_rank(rank, size)
        self.device = device
        self.rank = rank
        self.size = size
        self._slots_log2: int = gpu.MIN_SLOTS_LOG2
        while (
            self._slots_log2 < gpu.MAX_SLOTS_LOG2
            and (size - 1) * gpu.region_bytes(self._slots_log2 + 1) <= staging_bytes
        ):
            self._slots_log2 += 1
        self._region_bytes: int = gpu.region_bytes(self._slots_log2)
        self._ledger_bytes: int = gpu.ledger_bytes(self._slots_log2)
        n = max(size - 1, 1)
        ledgers = gpu.allocate(n * self._ledger_bytes, device)
        try:
            self._share = DeviceShare(n * self._region_bytes, device)
        except BaseException:
            gpu.release(ledgers, device)
            raise
        self._ledgers: int = ledgers
        self._opened: dict[int, Close] = {}  # what closes other processes' memory, by peer
        self._there: dict[int, int] = {}  # the peers' regions for this rank
        release = functools.partial(gpu.release, ledgers, device)
        self._free = weakref.finalize(self, _release, release, self._share, self._opened)
        self._free.atexit = False  # the driver may be gone before us
        self._stream = Stream(device)
        self._stream.zero(DeviceMemory(ledgers, n * self._ledger_bytes, device, self))
        self._share.clear(self._stream)
        self._stream.synchronize()

    @functools.cached_property
    def handle(self) -> bytes:
        """What the other ranks need to connect.

        Raises
        ------
        RuntimeError
            If the driver cannot export memory.
        """
        return _HANDLE.pack(
            process_token(os.getpid()),
            self._share.handle(),
            self._share.address,
            self.device,
            self.rank,
            self.size,
            self._slots_log2,
        )

    def connect(self, peer: int, handle: bytes) -> None:
        """Link to a peer, of another process or of this one, by its handle.

        Raises
        ------
        ValueError
            If it is another's, of another size, or not of this host.
        OSError, RuntimeError
            If the system or the driver finds no way to its memory.
        """
        process, memory, address, device, *theirs = _HANDLE.unpack(handle)
        mine = [peer, self.size, self._slots_log2]
        if theirs != mine or peer == self.rank:
            raise ValueError(f"expected {_description(*mine)}, found {_description(*theirs)}")
        if peer in self._there:
            return
        address, self._opened[peer] = reach(self._share, process, memory, address, device)
        self._there[peer] = address + self._region_bytes * place_of(self.rank, peer)

    def disconnect(self) -> None:
        """Close the peers' memory, as all ranks must before one of them frees its own."""
        self._there.clear()
        _close(self._opened)

    def close(self) -> None:
        """Disconnect, and free the memory once the GPU is idle; again, it does nothing."""
        self._there.clear()
        self._free()

    def abort(self) -> None:
        """End all exchanges of the linked ranks, also those whose kernels run, for good."""
        for peer, there in self._there.items():
            for region in (self._here(peer), there):
                self._raise_at(region)
        self._stream.synchronize()

    def check_open(self) -> None:
        """Raise ValueError if the links are closed."""
        if not self._free.alive:
            raise ValueError("expected links that are not closed")

    def _raise_at(self, region: int) -> None:
        word = DeviceMemory(region, len(_RAISED), self.device, self)
        self._stream.copy(word, np.frombuffer(_RAISED, np.uint8))

    def _here(self, peer: int) -> int:
        return self._share.address + self._region_bytes * place_of(peer, self.rank)

    def _ledger(self, peer: int) -> int:
        return self._ledgers + self._ledger_bytes * place_of(peer, self.rank)

    def _addresses(self, peers: Iterable[int]) -> list[tuple[int, int, int]]:
        """Return the regions, here and there, of some peers, and the ledgers."""
        self.check_open()
        try:
            return [(self._here(peer), self._there[peer], self._ledger(peer)) for peer in peers]
        except KeyError:
            strangers = [peer for peer in peers if peer not in self._there]
            raise ValueError(f"expected peers that are connected, found {strangers}") from None


def _description(rank: int, size: int, slots_log2: int) -> str:
    return f"rank {rank} of {size} with 2^{slots_log2} slots"


def _close(opened: dict[int, Close]) -> None:
    while opened:
        opened.popitem()[1]()


def _release(ledgers: Close, share: DeviceShare, opened: dict[int, Close]) -> None:
    ledgers()  # which waits for the GPU
    _close(opened)
    share.close()


@dataclass(frozen=True)
class Fold:
    """A fold of one tensor of every rank, in rank order, as ``reduce.fold`` does it.

    Attributes
    ----------
    op
        One of ``reduce.OPS``.
    own, out
        This rank's tensor, and where the result goes; they may be the same memory.
    divisor
        Divides the result before it is rounded.
    """

    op: str
    own: DeviceMemory
    out: DeviceMemory
    divisor: int = 1


class Copy(NamedTuple):
    """A copy in a GPU's memory."""

    destination: DeviceMemory
    source: DeviceMemory


class Exchange:
    """One kernel that sends, receives and folds, to be queued any number of times."""

    __slots__ = ("_kernel", "_links")

    def __init__(self, links: Links, kernel: Any) -> None:
        self._links, self._kernel = links, kernel

    def launch(self, stream: Stream) -> None:
        """Queue the kernel in a stream of the links' GPU; a CUDA graph can capture that.

        Raises
        ------
        ValueError
            If the links are closed.
        RuntimeError
            If the driver refuses, or memory is not aligned to its values.
        """
        self._links.check_open()
        self._kernel.launch(stream.handle)


def prepare(
    links: Links,
    dtype: DType,
    *,
    sends: Sequence[tuple[int, DeviceMemory]] = (),
    receives: Sequence[tuple[int, DeviceMemory]] = (),
    fold: Fold | None = None,
    copy: Copy | None = None,
    word: int = 0,
    status: Bytes,
    codec: str = "auto",
    menu: int = -1,
    max_blocks: int = 0,
    at_once: int = 1,
    timeout: float,
) -> Exchange:
    """Return one kernel that sends, receives, folds and copies.

    A message has as many values as its memory; in each
    direction of a link there is one at most, of which a fold takes one from every other rank. All
    memory must live until a stream has come past the kernel, and none that is written overlaps
    other memory of the call, but for ``out``: it may be ``own`` and, between two ranks, all that is
    sent.

    Parameters
    ----------
    links
        Connected to all peers that are named; to all ranks for a fold.
    dtype
        What the values are.
    sends, receives
        A peer's rank and the values for it, or the memory for what comes from it.
    fold
        A fold of this rank's values and what all others send.
    copy
        A copy in the GPU's memory.
    word
        32 bits that both ends of a message must agree on.
    status
        4 bytes of page-locked memory, zero before; a number other than 0 will say what failed, see
        :func:`complaint`. What was to be written is unspecified then.
    codec
        ``auto``, ``tier`` or ``raw``.
    menu
        Digit widths of ``tier``; -1 chooses.
    max_blocks
        Most blocks of the grid, but for one per message and fold; 0: half of what the GPU holds.
    at_once
        How many launches may have to run side by side: they share that half.
    timeout
        Seconds without any progress after which a kernel gives up.

    Raises
    ------
    ValueError
        If a peer is not connected, memory is no whole number of values, or an argument unknown.
    """
    places: dict[int, int] = {}  # of peers, in what the kernel is given
    if fold is not None:
        places = {peer: place_of(peer, links.rank) for peer in range(links.size)}
        del places[links.rank]
    for peer, _ in (*sends, *receives):
        places.setdefault(peer, len(places))
    kernel = gpu_half().prepare_exchange(
        dtype,
        word,
        codec,
        menu,
        max_blocks,
        at_once,
        int(timeout * 1e9),
        status.ctypes.data,
        links._slots_log2,
        links._addresses(places),
        [(places[peer], memory.address, count_values(memory, dtype)) for peer, memory in sends],
        [(places[peer], memory.address, count_values(memory, dtype)) for peer, memory in receives],
        None if fold is None else fold_fields(fold, links.rank, range(links.size - 1), dtype),
        None if copy is None else (copy.source.address, copy.destination.address, copy.source.size),
        links.device,
    )
    return Exchange(links, kernel)


def count_values(memory: DeviceMemory, dtype: DType) -> int:
    """Return how many values memory holds; ValueError if they are no whole number."""
    count, rest = divmod(memory.size, dtype.itemsize)
    if rest:
        raise ValueError(
            f"expected a whole number of values of {dtype.itemsize} bytes, found {memory.size}"
        )
    return count


def fold_fields(
    fold: Fold, rank: int, peers: Iterable[int], dtype: DType
) -> tuple[int, int, int, list[int], int, int, int]:
    """Return what the compiled half is told of a fold; ``peers`` are as it names them."""
    if fold.op not in OPS:
        raise ValueError(f"expected one of the operators {', '.join(OPS)}, found {fold.op!r}")
    if fold.own.size != fold.out.size:
        raise ValueError(f"expected {fold.own.size} bytes for the result, found {fold.out.size}")
    op, count = OPS.index(fold.op), count_values(fold.own, dtype)
    return op, fold.divisor, rank, list(peers), fold.own.address, fold.out.address, count


def complaint(status: int) -> str:
    """Return what a status word says went wrong; nothing if it is 0."""
    return _STATUS[status] if status else ""


def device_identity(device: int) -> str:
    """Return what names a GPU to all processes of its host.

    Raises
    ------
    RuntimeError
        If there is no such GPU.
    """
    place, uuid = gpu_half().identify_device(device)
    return f"{place}/{uuid}"


def can_access(device: int, identity: str) -> bool:
    """Return whether a GPU reaches the memory of another, or of its own in another process.

    A GPU that this process does not see cannot be asked for; then it is true, and
    :meth:`Links.connect` will tell.
    """
    mine, _, _ = device_identity(device).partition("/")
    place, _, _ = identity.partition("/")
    if mine == place:  # parts of one GPU do not reach each other
        return device_identity(device) == identity
    peer = gpu_half().find_device(place)
    return peer < 0 or bool(gpu_half().can_access_peer(device, peer))
