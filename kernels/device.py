"""GPU memory, streams and events, without any library but the compiled GPU half.

Work on a GPU is queued in a :class:`Stream` and done later, in the order in which it was queued:
memory that it uses must live, and may not be written or given back, until the stream has come past
it. An :class:`Event` tells when that is. Any thread may call; streams and events belong to no one.
"""

from __future__ import annotations

import functools
import weakref
from collections import defaultdict
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np

from uzipmpi.kernels import exchange
from uzipmpi.kernels.device_pool import Allocation, gpu_half, pools
from uzipmpi.typing import Bytes, DType

__all__ = [
    "DeviceArray",
    "DeviceMemory",
    "Event",
    "Memory",
    "Stream",
    "allocate",
    "device_of",
    "give_back",
    "gpu_half",
    "is_available",
    "pinned",
]


@functools.cache
def is_available() -> bool:
    """Return whether the GPU half is installed and finds at least one GPU."""
    try:
        return int(gpu_half().device_count()) > 0
    except (ImportError, RuntimeError):
        return False


def device_of(array: object) -> int | None:
    """Return the GPU that an array is on; None for anything that is not in GPU memory."""
    if isinstance(array, DeviceMemory):
        return array.device
    if exchange.is_torch(array):
        return array.get_device() if array.is_cuda else None  # type: ignore[attr-defined]
    if hasattr(array, "__dlpack_device__"):
        return exchange.dlpack_device(array)
    interface = exchange.interface_of(array)
    return None if interface is None else _device_at(int(interface["data"][0] or 0))


def _device_at(address: int) -> int:
    """Return the GPU that memory belongs to; the current one for the null pointer."""
    if address == 0:
        return cast(int, gpu_half().current_device())
    _, device = gpu_half().place(address)
    if device < 0:
        raise ValueError(f"expected memory that a GPU can reach, found {address:#x}")
    return cast(int, device)


class DeviceMemory:
    """A run of bytes in GPU memory; slices, with step 1, share it and keep it alive.

    Attributes
    ----------
    address, size
        Where it begins, and how many bytes it has.
    device
        Ordinal of its GPU.
    writable
        Whether it may be written: libraries have arrays that may not.
    producer
        Of an array of another library, the raw handle of the stream that must come past what is
        queued in it before the memory holds the array; None if there is nothing to wait for. See
        :meth:`Stream.wait_for`.
    """

    __slots__ = ("__weakref__", "address", "device", "owner", "producer", "size", "writable")

    def __init__(
        self,
        address: int,
        size: int,
        device: int,
        owner: object,
        *,
        writable: bool = True,
        producer: int | None = None,
    ) -> None:
        self.address = address
        self.size = size
        self.device = device
        self.owner = owner
        self.writable = writable
        self.producer = producer

    @classmethod
    def of(cls, array: object, stream: Stream | None = None) -> DeviceMemory:
        """Return the memory of an array of any library, without a copy: see :class:`DeviceArray`"""
        return array if isinstance(array, cls) else DeviceArray.of(array, stream).memory

    @property
    def nbytes(self) -> int:
        """Size in bytes, by NumPy's name."""
        return self.size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """As CuPy, Numba and torch take it; they are not told to wait for any stream."""
        return {
            "version": 3,
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self.address if self.size else 0, not self.writable),
            "strides": None,
        }

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, places: slice) -> DeviceMemory:
        """Return a range of the bytes."""
        start, stop, step = places.indices(self.size)
        if step != 1:
            raise ValueError(f"expected a range of bytes with step 1, found step {step}")
        return DeviceMemory(
            self.address + start,
            max(stop - start, 0),
            self.device,
            self.owner,
            writable=self.writable,
            producer=self.producer,
        )

    def __repr__(self) -> str:
        return f"<{self.size} bytes at {self.address:#x} of GPU {self.device}>"


Memory: TypeAlias = "DeviceMemory | Bytes"
"""What can be copied: memory of a GPU, or a contiguous ``uint8`` array."""


class DeviceArray(NamedTuple):
    """What an array of another library in GPU memory is.

    Attributes
    ----------
    memory
        Its bytes; they keep the library's array alive.
    dtype
        What they are; ``BYTES`` for all but the six floats.
    shape
        Values along each dimension.
    """

    memory: DeviceMemory
    dtype: DType
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: object, stream: Stream | None = None) -> DeviceArray:
        """Describe an array with ``__cuda_array_interface__`` or DLPack, without a copy.

        Parameters
        ----------
        array
            A C-contiguous array: CuPy's, torch's, JAX', Numba's, or any other library's.
        stream
            A library that can will make this stream wait for the array; ``memory.producer`` is
            None then.

        Raises
        ------
        TypeError
            If it is no array in GPU memory.
        ValueError
            If it is not C-contiguous.
        """
        if isinstance(array, DeviceMemory):
            return cls(array, DType.BYTES, (array.size,))
        found = exchange.export(array, None if stream is None else stream.handle)
        device = _device_at(found.address) if found.device is None else found.device
        memory = DeviceMemory(
            found.address,
            found.nbytes,
            device,
            found.owner,
            writable=found.writable,
            producer=found.producer,
        )
        return cls(memory, found.dtype, found.shape)


def allocate(nbytes: int, device: int) -> DeviceMemory:
    """Return memory of a GPU with arbitrary content, aligned to 256 bytes.

    It comes from a pool, and goes back when the last that shares it is gone, or by
    :func:`give_back`; who gets it next may use it at once. So hold it until the streams that use it
    have come past their work.

    Raises
    ------
    RuntimeError
        If the GPU has not so much memory left.
    """
    allocation = pools().device.take(nbytes, device)
    return DeviceMemory(allocation.address, nbytes, device, allocation)


def pinned(nbytes: int, device: int | None = None) -> Bytes:
    """Return page-locked memory of the host, with arbitrary content.

    GPUs copy to and from it without staging, while the caller goes on. It is pooled as the memory
    of :func:`allocate` is. Any GPU may use it; ``device`` is the one whose driver context locks it,
    the current one if None.

    Raises
    ------
    RuntimeError
        If so much memory cannot be locked.
    """
    where = cast(int, gpu_half().current_device()) if device is None else device
    return np.asarray(pools().pinned.take(nbytes, where))[:nbytes]


def give_back(memory: Memory) -> None:
    """Give memory back to its pool at once; nobody may use it, nor any part of it, any more.

    Raises
    ------
    TypeError
        If it is not from :func:`allocate` or :func:`pinned`.
    """
    owner: object = memory
    if isinstance(owner, DeviceMemory):
        owner = owner.owner
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, Allocation):
        raise TypeError(f"expected memory from a pool, found memory of {type(owner).__name__}")
    owner.give_back()


class Event:
    """What was queued in a stream up to a moment; made by :meth:`Stream.record`.

    Attributes
    ----------
    handle
        Of the driver's event.
    device
        Of the stream.
    """

    # The driver's events that nobody holds, by device: a call records dozens.
    _unused: ClassVar[defaultdict[int, list[int]]] = defaultdict(list)
    handle = 0

    def __init__(self, stream: int, device: int) -> None:
        self.device = device
        try:
            self.handle = self._unused[device].pop()
        except IndexError:
            self.handle = gpu_half().create_event(device)
        gpu_half().record_event(self.handle, device, stream)
        self._done = False

    def __del__(self) -> None:
        if self.handle:
            self._unused[self.device].append(self.handle)

    def query(self) -> bool:
        """Return whether all of it is done; never blocks."""
        self._done = self._done or gpu_half().query_event(self.handle, self.device)
        return self._done

    def synchronize(self) -> None:
        """Wait until all of it is done."""
        if not self._done:
            gpu_half().synchronize_event(self.handle, self.device)
            self._done = True


class Stream:
    """A queue of work on a GPU; it waits for no other one unless told.

    Work that is still queued when the stream goes is done all the same.

    Parameters
    ----------
    device
        Ordinal of the GPU.

    Attributes
    ----------
    handle
        Of the driver's stream, as other libraries take it.

    Examples
    --------
    A copy there and back, on a machine with a GPU::

        stream = Stream(0)
        here, there, back = np.zeros(1024, np.uint8), allocate(1024, 0), pinned(1024)
        stream.copy(there, here)
        stream.copy(back, there)
        stream.synchronize()
    """

    def __init__(self, device: int) -> None:
        gpu = gpu_half()
        self.device = device
        self.handle: int = gpu.create_stream(device)
        _finalise(self, gpu.destroy_stream, self.handle, device)
        self._scratch: DeviceMemory | None = None
        self._accumulators: DeviceMemory | None = None

    @classmethod
    def of(cls, stream: object, device: int | None = None) -> Stream:
        """Return another library's stream, which must live as long as the result is used.

        Parameters
        ----------
        stream
            A stream of CuPy (``ptr``), torch (``cuda_stream``) or Numba (``handle``), one with the
            method ``__cuda_stream__``, or the driver's handle as a number.
        device
            Its GPU, the current one if None.

        Raises
        ------
        TypeError
            If it is none of these.
        """
        if isinstance(stream, cls):
            return stream
        known = cls.__new__(cls)
        known.handle = _handle_of(stream)
        known.device = int(gpu_half().current_device()) if device is None else device
        known._scratch = known._accumulators = None
        return known

    def copy(self, destination: Memory, source: Memory) -> None:
        """Queue a copy between any two places of the same size.

        From or to memory of the host that is not page-locked, the driver may wait and copy at once;
        if not, the memory must live until the stream has come past the copy.

        Raises
        ------
        ValueError
            If the sizes differ, or an array is not contiguous or may not be written.
        """
        if destination.nbytes != source.nbytes:
            raise ValueError(f"expected {destination.nbytes} bytes to copy, found {source.nbytes}")
        to, start = _address(destination, written=True), _address(source)
        if source.nbytes:
            gpu_half().copy(to, start, source.nbytes, self.device, self.handle)

    def zero(self, memory: DeviceMemory) -> None:
        """Queue that memory becomes zero."""
        if memory.size:
            address = _address(memory, written=True)
            gpu_half().set_bytes(address, 0, memory.size, self.device, self.handle)

    def record(self) -> Event:
        """Return an event of all that is queued now."""
        return Event(self.handle, self.device)

    def wait(self, event: Event) -> None:
        """Queue that what comes after waits for an event of any stream; the caller does not."""
        gpu_half().wait_for_event(self.handle, self.device, event.handle)

    def wait_for(self, producer: int, device: int | None = None) -> None:
        """Queue that what comes after waits for all that is queued in another library's stream.

        Parameters
        ----------
        producer
            Raw handle of the stream, as in :attr:`DeviceMemory.producer`.
        device
            Its GPU, if it is not this stream's.
        """
        if producer != self.handle:
            self.wait(Event(producer, self.device if device is None else device))

    def is_capturing(self) -> bool:
        """Return whether what is queued goes to a graph instead."""
        return bool(gpu_half().is_capturing(self.handle, self.device))

    def synchronize(self) -> None:
        """Wait until all that is queued is done."""
        gpu_half().synchronize_stream(self.handle, self.device)

    @property
    def scratch(self) -> DeviceMemory:
        """What the encoders need: zero between launches, which take turns in a stream."""
        if self._scratch is None:
            self._scratch = _own(gpu_half().SCRATCH_BYTES * gpu_half().MAX_SHARDS, self.device)
            self.zero(self._scratch)
        return self._scratch

    def accumulators(self, nbytes: int) -> DeviceMemory:
        """Return memory in which folds of this stream, in turn, keep what they have so far."""
        if self._accumulators is None or self._accumulators.size < nbytes:
            self._accumulators = _own(nbytes, self.device)
        return self._accumulators


def _handle_of(stream: object) -> int:
    """Return the driver's handle of a stream of any library."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    for name in ("ptr", "cuda_stream", "handle"):
        if (found := getattr(stream, name, None)) is not None:
            return int(getattr(found, "value", found) or 0)
    if isinstance(stream, int):
        return stream
    raise TypeError(f"expected a stream of a GPU, found {type(stream).__name__}")


def _own(nbytes: int, device: int) -> DeviceMemory:
    """Return memory that is freed when it goes, which waits for what is queued on the GPU."""
    allocation = pools().own.take(nbytes, device)
    return DeviceMemory(allocation.address, nbytes, device, allocation)


def _finalise(handle: object, destroy: Any, *arguments: int) -> None:
    # At exit the driver may be gone before us.
    weakref.finalize(handle, destroy, *arguments).atexit = False


def _address(memory: Memory, *, written: bool = False) -> int:
    if isinstance(memory, DeviceMemory):
        if written and not memory.writable:
            raise ValueError(f"expected memory that may be written, found {memory!r}, read-only")
        return memory.address
    if not memory.flags.c_contiguous or (written and not memory.flags.writeable):
        kind = "contiguous and writable" if written else "contiguous"
        raise ValueError(f"expected a {kind} array, found strides {memory.strides}")
    return memory.ctypes.data
