"""Memory of a rank that its peers write as well: of its GPU, or of the host."""

from __future__ import annotations

import functools
import mmap
import os
import struct
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from uzipmpi.kernels.device import Stream, gpu_half

__all__ = [
    "HANDLE_BYTES",
    "Close",
    "DeviceShare",
    "HostShare",
    "check_rank",
    "place_of",
    "process_token",
    "reach",
]

_FILE = struct.Struct("<q q Q")  # a process, its file, the bytes of it
Close: TypeAlias = Callable[[], None]

HANDLE_BYTES = 64
TOKEN_BYTES = 16


@functools.cache
def process_token(_pid: int) -> bytes:
    """Return what no other process of this or another host has."""
    return os.urandom(TOKEN_BYTES)


def check_rank(rank: int, size: int) -> None:
    """Raise ValueError unless it is a rank, among no more than there can be."""
    most = gpu_half().MAX_PEERS + 1
    if not 0 <= rank < size <= most:
        raise ValueError(f"expected a rank of at most {most}, found rank {rank} of {size}")


def place_of(rank: int, owner: int) -> int:
    """Return which of its owner's regions is for a rank."""
    return rank - (rank > owner)


def reach(
    share: DeviceShare | HostShare, process: bytes, handle: bytes, address: int, owner: int
) -> tuple[int, Close]:
    """Return where a peer's memory is for the GPU of a share of the same kind, and what closes it.

    Parameters
    ----------
    share
        This rank's.
    process, handle, address, owner
        The peer's process token, its share's handle and address, and its GPU.
    """
    if process == process_token(os.getpid()):
        return share.adopt(address, owner, share.device), lambda: None
    return share.open(handle, share.device)


class DeviceShare:
    """Memory of a GPU, for kernels of GPUs that reach it.

    Parameters
    ----------
    nbytes
        At least; drivers export whole blocks, and nobody else's memory is to be in them.
    device
        Whose memory it is.

    Attributes
    ----------
    address, nbytes
        Where it is, and its size.
    """

    def __init__(self, nbytes: int, device: int) -> None:
        gpu = gpu_half()
        block = gpu.PEER_BLOCK_BYTES
        self.device = device
        self.nbytes = -(-nbytes // block) * block
        self.address: int = gpu.allocate_for_peers(self.nbytes, device)

    def handle(self) -> bytes:
        """Return what another process opens it by.

        Raises
        ------
        RuntimeError
            If the driver cannot export memory.
        """
        return bytes(gpu_half().export_memory(self.address, self.device))

    def clear(self, stream: Stream) -> None:
        """Queue that all becomes zero."""
        gpu_half().set_bytes(self.address, 0, self.nbytes, self.device, stream.handle)

    def close(self) -> None:
        """Free it, once the GPU is idle."""
        gpu_half().release(self.address, self.device)

    @staticmethod
    def open(handle: bytes, device: int) -> tuple[int, Close]:
        """Return the address of another process' memory for a GPU, and what closes it."""
        address = gpu_half().open_memory(handle, device)
        return address, functools.partial(gpu_half().close_memory, address, device)

    @staticmethod
    def adopt(address: int, owner: int, device: int) -> int:
        """Return the address, for a GPU, of memory of this process that is another GPU's."""
        gpu_half().enable_peer(device, owner)
        return address


class HostShare:
    """Page-locked memory of the host, zero at first: a file in memory, which peers map as well.

    Parameters
    ----------
    nbytes
        How much.
    device
        Whose driver locks it.

    Attributes
    ----------
    address, nbytes
        Where the GPU's kernels find it, and its size.
    """

    def __init__(self, nbytes: int, device: int) -> None:
        self.device = device
        self.nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._file = os.memfd_create("uzipmpi", os.MFD_CLOEXEC)
        try:
            # A peer that opens another file than this will not find the token behind its end.
            os.pwrite(self._file, process_token(os.getpid()), self.nbytes)
            self.address, self._unmap = _mapped(self._file, self.nbytes, device)
        except BaseException:
            os.close(self._file)
            raise

    def handle(self) -> bytes:
        """Return what another process opens it by."""
        fields = _FILE.pack(os.getpid(), self._file, self.nbytes)
        return (fields + process_token(os.getpid())).ljust(HANDLE_BYTES, b"\0")

    def close(self) -> None:
        """Give it back; the GPU must have done with it."""
        self._unmap()
        os.close(self._file)

    @staticmethod
    def open(handle: bytes, device: int) -> tuple[int, Close]:
        """Return the address of another process' memory for a GPU, and what closes it.

        Raises
        ------
        OSError
            If the process cannot be looked into.
        ValueError
            If it has another file there: it is not of this host.
        """
        process, number, nbytes = _FILE.unpack_from(handle)
        token = handle[_FILE.size : _FILE.size + TOKEN_BYTES]
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.pread(file, TOKEN_BYTES, nbytes) != token:
                raise ValueError("expected a peer's memory, found another file in its place")
            return _mapped(file, nbytes, device)
        finally:
            os.close(file)

    @staticmethod
    def adopt(address: int, owner: int, device: int) -> int:
        """Return the address: all GPUs of a process find its memory there."""
        return address


def _mapped(file: int, nbytes: int, device: int) -> tuple[int, Close]:
    """Map and page-lock a file; return its address for a GPU, and what undoes both."""
    gpu = gpu_half()
    mapping = mmap.mmap(file, nbytes)
    memory = np.frombuffer(mapping, np.uint8)
    address = memory.ctypes.data
    gpu.pin(address, nbytes, device)

    def undo() -> None:
        nonlocal memory
        gpu.unpin(address, device)
        del memory
        mapping.close()

    return int(gpu.device_address(address, device)), undo
