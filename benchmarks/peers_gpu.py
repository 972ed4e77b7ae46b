"""The codecs that codec_throughput.py compares on a GPU: ours, and nvCOMP's ANS by its C interface.

A peer works on tensors in GPU memory, each in a slot. Its calls queue work in CuPy's current stream
and neither wait nor allocate, so that they can be captured in a CUDA graph. What nvCOMP writes is
a buffer for each chunk; that these are moved together is part of its encoding, as a frame of ours
is one run of bytes.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import cupy
import numpy as np
from peers import Measured, MissingPeerError
from throughput_gpu import GpuGraph, GpuQueue, draw, n_slots, stream_on

from uzipmpi.kernels import codec, gpu
from uzipmpi.typing import Bytes, DType

__all__ = ["PEERS", "Peer", "Slots", "make_slots", "measure", "sample_of"]

Array = Any


@dataclass(frozen=True)
class Slots:
    """Tensors of one size and type, as bytes in GPU memory, and room for what is decoded."""

    values: list[Array]
    decoded: list[Array]
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Size of a tensor."""
        return int(self.values[0].size)


class Peer(Protocol):
    """A codec on the tensors of some slots."""

    def encode(self, slot: int) -> None:
        """Queue that a tensor is encoded."""

    def settle(self) -> int:
        """Wait until all slots are encoded; return the bytes of all."""

    def decode(self, slot: int) -> None:
        """Queue that a tensor is decoded; its size is that of the last :meth:`settle`."""

    def check(self) -> None:
        """Wait, and raise RuntimeError if anything failed."""


class Memcpy:
    """A copy within the GPU by a kernel, both ways the same."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.frames = [cupy.empty_like(values) for values in slots.values]
        self.copy = cupy.ElementwiseKernel("uint64 x", "uint64 y", "y = x", "uzipmpi_copy")

    def encode(self, slot: int) -> None:
        self._copy(self.slots.values[slot], self.frames[slot])

    def settle(self) -> int:
        return sum(frame.nbytes for frame in self.frames)

    def decode(self, slot: int) -> None:
        self._copy(self.frames[slot], self.slots.decoded[slot])

    def check(self) -> None:
        cupy.cuda.get_current_stream().synchronize()

    def _copy(self, source: Array, to: Array) -> None:
        whole = source.size // 8 * 8
        self.copy(source[:whole].view(np.uint64), to[:whole].view(np.uint64))
        if whole < source.size:
            to[whole:] = source[whole:]


class Ours:
    """One of our codecs, of which ``menu`` may be given."""

    def __init__(self, slots: Slots, name: str, menu: int = -1) -> None:
        self.slots, self.name, self.menu = slots, name, menu
        room = codec.bound(slots.nbytes // slots.dtype.itemsize, slots.dtype)
        self.room = [cupy.empty(room, np.uint8) for _ in slots.values]
        self.frames = self.room
        self.status = cupy.zeros(1, np.uint32)

    def encode(self, slot: int) -> None:
        gpu.encode(
            self.slots.values[slot],
            self.room[slot],
            dtype=self.slots.dtype,
            codec=self.name,
            menu=self.menu,
        )

    def settle(self) -> int:
        headers = [codec.info(cupy.asnumpy(frame[: codec.HEADER_BYTES])) for frame in self.room]
        sizes = [header.frame_bytes for header in headers]
        self.frames = [frame[:size] for frame, size in zip(self.room, sizes, strict=True)]
        return sum(sizes)

    def decode(self, slot: int) -> None:
        gpu.decode(
            self.frames[slot],
            self.slots.decoded[slot],
            self.status,
            dtype=self.slots.dtype,
        )

    def check(self) -> None:
        if found := int(self.status[0]):
            raise RuntimeError(f"{self.name}: expected status 0, found {found}")


class _CompressOptions(ctypes.Structure):
    """``nvcompBatchedANSCompressOpts_t`` of nvCOMP 6."""

    _fields_ = (
        ("algorithm", ctypes.c_int),
        ("data_type", ctypes.c_int),
        ("max_sub_chunk_count", ctypes.c_uint8),
        ("states_per_lane", ctypes.c_uint8),
        ("histogram_reduction_log2", ctypes.c_uint8),
        ("reserved", ctypes.c_char * 53),
    )


class _DecompressOptions(ctypes.Structure):
    """``nvcompBatchedANSDecompressOpts_t``."""

    _fields_ = (
        ("backend", ctypes.c_int),
        ("data_type", ctypes.c_int),
        ("max_sub_chunk_count", ctypes.c_uint8),
        ("states_per_lane", ctypes.c_uint8),
        ("skip_validate", ctypes.c_uint8),
        ("reserved", ctypes.c_char * 53),
    )


_WHEEL = "nvidia-libnvcomp-cu13"
_NVCOMP_TYPES = {
    DType.BFLOAT16: 10,  # "all half-precision formats"
    DType.FLOAT16: 10,
    DType.FLOAT32: 11,
    DType.FLOAT8_E4M3FN: 9,
}

# Chunks are given places that are multiples of 16, as the decoder wants them.
_COMPACTION = r"""
extern "C" __global__ void find_places(const size_t* sizes, unsigned n, size_t out,
                                       size_t* places) {
  __shared__ size_t sums[1024];
  const unsigned share = (n + 1023) / 1024, first = threadIdx.x * share;
  size_t mine = 0;
  for (unsigned i = first; i < first + share && i < n; ++i) mine += (sizes[i] + 15) / 16 * 16;
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned by = 1; by < 1024; by *= 2) {
    const size_t before = threadIdx.x >= by ? sums[threadIdx.x - by] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  size_t place = out + sums[threadIdx.x] - mine;
  for (unsigned i = first; i < first + share && i < n; ++i) {
    places[i] = place;
    place += (sizes[i] + 15) / 16 * 16;
  }
}
extern "C" __global__ void compact(const uint4* const* chunks, const size_t* sizes,
                                   uint4* const* places) {
  const unsigned n = (sizes[blockIdx.x] + 15) / 16;
  for (unsigned i = blockIdx.y * blockDim.x + threadIdx.x; i < n; i += gridDim.y * blockDim.x) {
    places[blockIdx.x][i] = chunks[blockIdx.x][i];
  }
}
"""


@functools.cache
def _nvcomp() -> ctypes.CDLL:
    try:
        files = importlib.metadata.files(_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        raise MissingPeerError(f"not installed: pip install {_WHEEL}") from None
    for file in files:
        if file.name.startswith("libnvcomp.so."):
            return ctypes.CDLL(str(file.locate()))
    raise MissingPeerError(f"expected a library libnvcomp.so in {_WHEEL}, found none")


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_nvcomp(), f"nvcompBatchedANS{name}")(*arguments)
    if status:
        raise RuntimeError(f"nvCOMP's {name}: expected status 0, found {status}")


def _address(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr)


class _Chunked:
    """What nvCOMP writes and reads for a slot: an element of each array is of a chunk."""

    def __init__(self, values: Array, decoded: Array, chunk_bytes: int, stride: int) -> None:
        starts = np.arange(0, values.size, chunk_bytes, dtype=np.uint64)
        self.n = len(starts)
        self.values = cupy.asarray(values.data.ptr + starts)
        self.decoded = cupy.asarray(decoded.data.ptr + starts)
        self.nbytes = cupy.asarray(np.minimum(chunk_bytes, values.size - starts))
        self.room = cupy.empty(self.n * stride, np.uint8)
        places = self.room.data.ptr + np.arange(self.n, dtype=np.uint64) * np.uint64(stride)
        self.chunks = cupy.asarray(places)
        self.sizes = cupy.zeros(self.n, np.uint64)
        self.found = cupy.zeros(self.n, np.uint64)
        self.statuses = cupy.zeros(2 * self.n, np.int32)
        self.frame = cupy.empty(self.n * stride, np.uint8)
        self.places = cupy.zeros(self.n, np.uint64)


class NvcompAns:
    """nvCOMP's ANS with its best settings: the decoder is told the type and does not validate."""

    def __init__(self, slots: Slots, chunk_bytes: int) -> None:
        if slots.dtype not in _NVCOMP_TYPES:
            raise MissingPeerError(f"has no {slots.dtype.name.lower()}")
        kind = _NVCOMP_TYPES[slots.dtype]
        self.chunk_bytes, self.nbytes = chunk_bytes, slots.nbytes
        self.compress_options = _CompressOptions(data_type=kind)
        self.decompress_options = _DecompressOptions(data_type=kind, skip_validate=1)
        most = ctypes.c_size_t()
        _call(
            "CompressGetMaxOutputChunkSize",
            ctypes.c_size_t(chunk_bytes),
            self.compress_options,
            ctypes.byref(most),
        )
        stride = -(-most.value // 16) * 16
        self.chunked = [
            _Chunked(*pair, chunk_bytes, stride)
            for pair in zip(slots.values, slots.decoded, strict=True)
        ]
        self.temporary = cupy.empty(max(self._temporary_bytes(), 16), np.uint8)
        self.find_places = cupy.RawKernel(_COMPACTION, "find_places")
        self.compact = cupy.RawKernel(_COMPACTION, "compact")

    def _temporary_bytes(self) -> int:
        most, found = 0, ctypes.c_size_t()
        for way, options in (
            ("Compress", self.compress_options),
            ("Decompress", self.decompress_options),
        ):
            _call(
                f"{way}GetTempSize",
                ctypes.c_size_t(self.chunked[0].n),
                ctypes.c_size_t(self.chunk_bytes),
                options,
                ctypes.byref(found),
                ctypes.c_size_t(self.nbytes),
                self._stream(),
            )
            most = max(most, found.value)
        return most

    @staticmethod
    def _stream() -> ctypes.c_void_p:
        return ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)

    def encode(self, slot: int) -> None:
        chunked = self.chunked[slot]
        _call(
            "CompressAsync",
            _address(chunked.values),
            _address(chunked.nbytes),
            ctypes.c_size_t(self.chunk_bytes),
            ctypes.c_size_t(chunked.n),
            _address(self.temporary),
            ctypes.c_size_t(self.temporary.size),
            _address(chunked.chunks),
            _address(chunked.sizes),
            self.compress_options,
            _address(chunked.statuses),
            self._stream(),
        )
        out = np.uint64(chunked.frame.data.ptr)
        self.find_places((1,), (1024,), (chunked.sizes, np.uint32(chunked.n), out, chunked.places))
        # Few chunks are copied by several blocks each.
        grid = (chunked.n, max(1, 1024 // chunked.n))
        self.compact(grid, (256,), (chunked.chunks, chunked.sizes, chunked.places))

    def settle(self) -> int:
        return sum(int(((c.sizes + 15) // 16 * 16).sum()) for c in self.chunked)

    def decode(self, slot: int) -> None:
        chunked = self.chunked[slot]
        _call(
            "DecompressAsync",
            _address(chunked.places),
            _address(chunked.sizes),
            _address(chunked.nbytes),
            _address(chunked.found),
            ctypes.c_size_t(chunked.n),
            _address(self.temporary),
            ctypes.c_size_t(self.temporary.size),
            _address(chunked.decoded),
            self.decompress_options,
            ctypes.c_void_p(chunked.statuses.data.ptr + 4 * chunked.n),
            self._stream(),
        )

    def check(self) -> None:
        for chunked in self.chunked:
            if bool(chunked.statuses.any()):
                raise RuntimeError(f"nvCOMP: expected status 0, found {chunked.statuses.max()}")


PEERS: dict[str, Callable[[Slots], Peer]] = {
    "memcpy": Memcpy,
    "tier": lambda slots: Ours(slots, "tier"),
    "tier-2/2/2": lambda slots: Ours(slots, "tier", 2),
    "tier-3": lambda slots: Ours(slots, "tier", 1),
    "ans": lambda slots: Ours(slots, "ans"),
    "auto": lambda slots: Ours(slots, "auto"),
    "raw": lambda slots: Ours(slots, "raw"),
    "nvcomp-64k": lambda slots: NvcompAns(slots, 64 << 10),
    "nvcomp-256k": lambda slots: NvcompAns(slots, 256 << 10),
}


SAMPLE_BYTES = 16 << 20


def make_slots(data: str, dtype: DType, size: int) -> Slots:
    """Return as many tensors as the GPU's caches do not hold."""
    cupy.get_default_memory_pool().free_all_blocks()
    source = draw(data, dtype, size)
    values = [source.copy() for _ in range(n_slots(size))]
    return Slots(values, [cupy.empty_like(source) for _ in values], dtype)


def sample_of(slots: Slots) -> Bytes:
    """Return the beginning of a tensor."""
    return np.asarray(cupy.asnumpy(slots.values[0][:SAMPLE_BYTES]))


def measure(
    names: list[str] | None, slots: Slots, n_rounds: int, multiprocessors: int
) -> dict[str, Measured]:
    """Time all codecs in turn, round after round; memcpy is the first."""
    cupy.cuda.Device().synchronize()
    timer = GpuQueue if multiprocessors else GpuGraph
    with stream_on(multiprocessors):
        launches = {}
        for name in dict.fromkeys(["memcpy", *(names or PEERS)]):
            try:
                launches[name] = Launches(PEERS[name](slots), slots, timer)
            except MissingPeerError as reason:
                print(f"# {name} is left out: {reason}")
        for _ in range(n_rounds):
            for found in launches.values():
                found.run_round()
        return {name: found.result() for name, found in launches.items()}


class Launches:
    """A codec's launches for all slots, and how long they took."""

    def __init__(self, peer: Peer, slots: Slots, timer: type[GpuGraph] | type[GpuQueue]) -> None:
        self.peer, self.slots = peer, slots
        n = len(slots.values)
        peer.encode(0)  # what a first call allocates is no part of a graph
        self.encoding = timer(peer.encode, n)
        self.measured = Measured([], [], peer.settle())
        self.decoding = timer(peer.decode, n)

    def run_round(self) -> None:
        """Encode all, then decode all."""
        self.measured.encode.append(self.encoding.seconds())
        self.measured.decode.append(self.decoding.seconds())

    def result(self) -> Measured:
        """Decode once more, to memory that holds something else, and compare."""
        for decoded in self.slots.decoded:
            decoded[...] = 0xA5
        self.decoding.seconds()
        self.peer.check()
        for values, decoded in zip(self.slots.values, self.slots.decoded, strict=True):
            self.measured.lossless &= bool((values == decoded).all())
        return self.measured
