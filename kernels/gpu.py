"""Frames of arrays in GPU memory: the GPU's codec for CuPy, and the only user of CuPy.

As :mod:`uzipmpi.kernels.device_codec`, in CuPy's current stream: ``encode`` and ``decode``, and the
fused ``decode_reduce``, ``decode_reduce_encode`` and ``encode_shards``, wait for nothing and can be
captured in a CUDA graph. ``compress`` and ``decompress`` are like those of the package; they wait
where a size or an error must be known.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from typing import Any, cast

import numpy as np

from uzipmpi.errors import FormatError
from uzipmpi.kernels import codec as cpu
from uzipmpi.kernels import device_codec
from uzipmpi.kernels.device import DeviceMemory, Stream
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = [
    "compress",
    "decode",
    "decode_reduce",
    "decode_reduce_encode",
    "decompress",
    "encode",
    "encode_shards",
    "is_device_array",
]

Array = Any
"""A CuPy array: CuPy has no annotations of its own."""

_ALIGNMENT = 16
# By device and handle; each keeps the scratch of its launches.
_streams: dict[tuple[int, int], Stream] = {}


def is_device_array(array: object) -> bool:
    """Return whether an object is an array in GPU memory."""
    return hasattr(array, "__cuda_array_interface__")


def _cupy() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise ImportError(
            "arrays in GPU memory need CuPy: pip install 'uzipmpi[cuda13]', [cuda12] or [rocm]"
        ) from error


def _bytes(array: Array) -> tuple[Array, DType]:
    """Return the bytes of an array, without a copy, and what they are."""
    array = _cupy().asarray(array)
    if not array.flags.c_contiguous:
        raise ValueError(f"expected a C-contiguous array, found strides {array.strides}")
    return array.reshape(-1).view(np.uint8), DType.of(array.dtype)


def _memory(array: Array) -> tuple[DeviceMemory, DType]:
    """Return the memory of an array, and what it holds."""
    data, dtype = _bytes(array)
    return DeviceMemory(data.data.ptr, data.size, data.device.id, data), dtype


def _memory_of(array: Array) -> DeviceMemory:
    return _memory(array)[0]


def _stream() -> Stream:
    """Return CuPy's current stream."""
    cupy = _cupy()
    handle, device = cupy.cuda.get_current_stream().ptr, cupy.cuda.Device().id
    if (device, handle) not in _streams:
        _streams[device, handle] = Stream.of(handle, device)
    return _streams[device, handle]


def encode(
    values: Array,
    out: Array,
    *,
    dtype: DType | None = None,
    codec: str = "auto",
    menu: int = -1,
    max_blocks: int = 0,
) -> None:
    """Write the frame of an array to ``out``, without waiting: the frame's header says its size.

    Parameters
    ----------
    values
        C-contiguous array in GPU memory.
    out
        ``uint8`` array of at least ``codec.bound`` bytes, aligned to 16.
    dtype
        What the values are, for types that CuPy lacks; else that of the array.
    codec
        ``auto``, ``tier``, ``ans`` or ``raw``.
    menu
        Digit widths of ``tier``, or log2 of the tiles in a block of ``ans``; -1 chooses.
    max_blocks
        Most blocks of the grid; 0: as many as the device holds.

    Raises
    ------
    ValueError
        If ``out`` is too small, or an argument unknown.
    """
    memory, found = _memory(values)
    device_codec.encode(
        memory,
        found if dtype is None else dtype,
        _memory_of(out),
        _stream(),
        codec=codec,
        menu=menu,
        max_blocks=max_blocks,
    )


def decode(
    frame: Array,
    out: Array,
    status: Array,
    *,
    dtype: DType | None = None,
    max_blocks: int = 0,
) -> None:
    """Write the values of a frame to ``out``, without waiting.

    Parameters
    ----------
    frame
        Exactly the bytes of a frame, aligned to 16. Nothing in them is trusted; a checksum is not
        looked at.
    out
        Array of the values.
    status
        One ``uint32`` that is 0. It becomes another number if the frame is malformed; ``out`` is
        unspecified then.
    dtype
        What the values are, for types that CuPy lacks; else that of ``out``.
    max_blocks
        As for :func:`encode`.
    """
    memory, found = _memory(out)
    device_codec.decode(
        _memory_of(frame),
        found if dtype is None else dtype,
        memory,
        _memory_of(status),
        _stream(),
        max_blocks=max_blocks,
    )


def decode_reduce(
    op: str,
    inputs: Sequence[Array],
    out: Array,
    status: Array,
    *,
    plain: Collection[int] = (),
    divisor: int = 1,
    dtype: DType | None = None,
    max_blocks: int = 0,
) -> None:
    """Fold frames, in the order of the sequence, as :func:`uzipmpi.kernels.reduce.fold` does.

    Up to 16 inputs take one launch; the bits are those of a fold on the CPU.

    Parameters
    ----------
    op
        One of ``reduce.OPS``.
    inputs
        Frames of codec ``raw`` or ``tier``, as for :func:`decode`; all of ``out``'s count.
    out
        Array of the result. It may be one of the plain inputs.
    status
        As for :func:`decode`; another number also where a frame is of codec ``ans``.
    plain
        Which of the inputs are values as they are, by their places.
    divisor
        Divides the result before it is rounded.
    dtype
        What the values are, for types that CuPy lacks; else that of ``out``.
    max_blocks
        As for :func:`encode`.

    Raises
    ------
    ValueError
        If the operator is unknown, or sizes differ.
    """
    memory, found = _memory(out)
    device_codec.fold(
        op,
        [_memory_of(array) for array in inputs],
        plain,
        memory,
        found if dtype is None else dtype,
        _memory_of(status),
        _stream(),
        divisor,
        max_blocks=max_blocks,
    )


def decode_reduce_encode(
    op: str,
    inputs: Sequence[Array],
    frame: Array,
    status: Array,
    *,
    count: int,
    dtype: DType,
    out: Array | None = None,
    plain: Collection[int] = (),
    divisor: int = 1,
    like: Array | None = None,
    max_blocks: int = 0,
) -> None:
    """Fold frames as :func:`decode_reduce` does, and encode the result, in the same launch.

    Parameters
    ----------
    op, inputs, status, plain, divisor, max_blocks
        As there.
    frame
        As ``out`` of :func:`encode`. If an input is malformed its header becomes zeros, which no
        decoder takes.
    count, dtype
        How many values there are, and what they are.
    out
        Where the result goes as well.
    like
        A frame, of which the header is read: the result is coded with its parameters, which cost
        ratio if they do not fit. None: those of the frame of the largest values among the inputs,
        moved by what a sum of independent values grows.
    """
    device_codec.fold_encode(
        op,
        [_memory_of(array) for array in inputs],
        plain,
        _memory_of(frame),
        count,
        dtype,
        _memory_of(status),
        _stream(),
        divisor,
        out=None if out is None else _memory_of(out),
        like=None if like is None else _memory_of(like),
        max_blocks=max_blocks,
    )


def encode_shards(
    shards: Sequence[Array],
    frames: Sequence[Array],
    *,
    dtype: DType | None = None,
    codec: str = "auto",
    menu: int = -1,
    max_blocks: int = 0,
) -> None:
    """Write the frames of many arrays, up to 64 in one launch.

    Parameters
    ----------
    shards
        C-contiguous arrays of one type; they may have any sizes, none as well.
    frames
        For each one what :func:`encode` calls ``out``.
    dtype, menu, max_blocks
        As there; the blocks are those of all arrays together.
    codec
        ``auto``, ``tier`` or ``raw``.

    Raises
    ------
    ValueError
        If there are more or fewer frames than arrays, or one is too small.
    """
    memories = [_memory(shard) for shard in shards]
    found = memories[0][1] if memories else DType.BYTES
    device_codec.encode_shards(
        [memory for memory, _ in memories],
        found if dtype is None else dtype,
        [_memory_of(frame) for frame in frames],
        _stream(),
        codec=codec,
        menu=menu,
        max_blocks=max_blocks,
    )


def compress(
    array: Array, codec: str = "auto", out: Array | None = None, *, verify: bool = False
) -> Array:
    """Return the frame of an array in GPU memory, as a ``uint8`` array there.

    As :func:`uzipmpi.compress`. Checksums are the host's work: the values go there and the frame
    back.
    """
    cupy = _cupy()
    memory, dtype = _bytes(array)
    room = cpu.bound(memory.size // dtype.itemsize, dtype)
    if out is not None and out.nbytes < room:
        raise ValueError(f"expected at least {room} bytes for a frame, found {out.nbytes}")
    if verify:
        tensor = Tensor(cupy.asnumpy(memory), dtype)
        frame = np.empty(room, np.uint8)
        size = cpu.encode(tensor, frame, codec=codec, verify=verify)
        out = cupy.empty(room, np.uint8) if out is None else out
        out[:size] = cupy.asarray(frame[:size])
        return out[:size]
    aligned = (
        out if out is not None and out.data.ptr % _ALIGNMENT == 0 else cupy.empty(room, np.uint8)
    )
    encode(memory, aligned, dtype=dtype, codec=codec)
    size = _header(aligned).frame_bytes
    if out is None or aligned is out:
        return aligned[:size]
    out[:size] = aligned[:size]
    return out[:size]


def decompress(frame: Array, out: Array | None = None, *, verify: bool = False) -> Array:
    """Return the values of a frame in GPU memory, as an array there.

    As :func:`uzipmpi.decompress`. Checksums are the host's work: the frame goes there and the
    values back.

    Raises
    ------
    FormatError
        If the frame is malformed, or ``out`` has another type or size.
    """
    cupy = _cupy()
    source, _ = _bytes(frame)
    header = _header(source)
    out = cupy.empty(header.count, header.dtype.numpy) if out is None else out
    memory, dtype = _bytes(out)
    if dtype is not header.dtype or memory.size != header.nbytes:
        raise FormatError(
            f"expected a frame of {memory.size} bytes of {dtype.name}, "
            f"found one of {header.nbytes} bytes of {header.dtype.name}"
        )
    if verify:
        values = Tensor(np.empty(memory.size, np.uint8), dtype)
        cpu.decode(cast(Bytes, cupy.asnumpy(source)), values, verify=verify)
        memory[:] = cupy.asarray(values.memory)
        return out
    if source.data.ptr % _ALIGNMENT != 0:
        source = source.copy()
    status = cupy.zeros(1, np.uint32)
    decode(source, memory, status, dtype=dtype)
    if wrong := device_codec.complaint(int(status[0])):
        raise FormatError(f"malformed frame: {wrong}")
    return out


def _header(frame: Array) -> cpu.FrameInfo:
    return cpu.info(cast(Bytes, _cupy().asnumpy(frame[: cpu.HEADER_BYTES])))
