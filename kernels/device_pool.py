"""Memory of GPUs, and page-locked memory of the host, that is used again.

Allocating either waits for the GPU or takes as long as copying megabytes, so what is given back is
kept, up to a bound.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uzipmpi.kernels.kept import Kept

__all__ = ["Allocation", "Pool", "Pools", "gpu_half", "pools"]

GRANULE = 512
"""Bytes: what the driver rounds up to anyway."""
KEPT_DEVICE_BYTES = 1 << 30
KEPT_PINNED_BYTES = 256 << 20


@functools.cache
def gpu_half() -> Any:
    """Return the compiled GPU half.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    try:
        return importlib.import_module("uzipmpi.kernels._gpu")
    except ImportError as error:
        raise ImportError(
            "this uzipmpi was installed without its GPU half: "
            "in its sources, UZIPMPI_GPU=cuda pip install --force-reinstall --no-deps . brings it"
        ) from error


class Allocation:
    """Memory from a pool, which gets it back when nobody holds the allocation any more.

    Attributes
    ----------
    address, room, device
        Where it is, its size in bytes, and the GPU for which it was allocated.
    """

    def __init__(self, pool: Pool, address: int, room: int, device: int) -> None:
        self.address = address
        self.room = room
        self.device = device
        self._pools = [pool]

    def give_back(self) -> None:
        """Give the memory back at once; again, it does nothing."""
        try:
            pool = self._pools.pop()
        except IndexError:
            return
        pool.give(self.address, self.room, self.device)

    def __del__(self) -> None:
        # At exit the driver may be gone before us; it frees all memory itself.
        if not sys.is_finalizing():
            self.give_back()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's: for page-locked memory only."""
        return {
            "version": 3,
            "shape": (self.room,),
            "typestr": "|u1",
            "data": (self.address, False),
        }


class Pool:
    """Free memory by device and size; threads share it.

    Sizes are rounded up, to four for each power of two, so that a few dozen serve all.

    Parameters
    ----------
    allocate, release
        ``allocate(nbytes, device)`` returns an address, ``release(address, device)`` frees it.
    kept_bytes
        Most bytes that are kept free per device.
    """

    def __init__(
        self,
        allocate: Callable[[int, int], int],
        release: Callable[[int, int], None],
        kept_bytes: int,
    ) -> None:
        self._new = allocate
        self._release = release
        self._most_bytes = kept_bytes
        self._by_device: dict[int, Kept[int]] = {}

    def kept_bytes(self, device: int) -> int:
        """Return the size of what is kept free for a device."""
        return self._kept(device).nbytes

    def take(self, nbytes: int, device: int) -> Allocation:
        """Return at least ``nbytes`` of arbitrary content, aligned to 256 bytes.

        Raises
        ------
        RuntimeError
            If there is not so much memory, or no such device.
        """
        room = rounded_up(nbytes)
        address = self._kept(device).take(room) or self._allocate(room, device)
        return Allocation(self, address, room, device)

    def give(self, address: int, room: int, device: int) -> None:
        """Take memory back; what the pool may not keep is freed, which waits for the GPU."""
        self._kept(device).give(room, address)

    def trim(self, device: int) -> None:
        """Free all that is kept for a device."""
        self._kept(device).clear()

    def _kept(self, device: int) -> Kept[int]:
        kept = self._by_device.get(device)
        if kept is None:
            new: Kept[int] = Kept(self._most_bytes, lambda address: self._release(address, device))
            kept = self._by_device.setdefault(device, new)
        return kept

    def _allocate(self, room: int, device: int) -> int:
        try:
            return self._new(room, device)
        except RuntimeError:
            self.trim(device)
        try:
            return self._new(room, device)
        except RuntimeError as error:
            raise RuntimeError(f"cannot allocate {room} bytes for GPU {device}: {error}") from error


def rounded_up(nbytes: int) -> int:
    """Return the size of the memory that is taken for ``nbytes``."""
    step = max((1 << max(nbytes - 1, 0).bit_length()) >> 3, GRANULE)
    return max(-(-nbytes // step), 1) * step


@dataclass(frozen=True)
class Pools:
    """The pools of a process.

    Attributes
    ----------
    device, pinned
        Memory of GPUs, and page-locked memory of the host.
    own
        Memory of GPUs that is freed as soon as it is given back. That waits for the GPU: for memory
        of which nobody can know when the GPU has done with it.
    """

    device: Pool
    pinned: Pool
    own: Pool


@functools.cache
def pools() -> Pools:
    """Return the pools on the GPU half; they are made at the first call.

    Raises
    ------
    ImportError
        If the GPU half is not installed.
    """
    gpu = gpu_half()
    return Pools(
        device=Pool(gpu.allocate, gpu.release, KEPT_DEVICE_BYTES),
        pinned=Pool(gpu.allocate_pinned, gpu.release_pinned, KEPT_PINNED_BYTES),
        own=Pool(gpu.allocate, gpu.release, 0),
    )
