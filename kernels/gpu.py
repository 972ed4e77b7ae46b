"""Frames of arrays in GPU memory: the face of the compiled GPU codec, and the only user of CuPy.

``encode`` and ``decode``, and the fused ``decode_reduce``, ``decode_reduce_encode`` and
``encode_shards``, work in CuPy's current stream, wait for nothing and can be captured in a CUDA
graph. ``compress`` and ``decompress`` are like those of the package; they wait where a size or an
error must be known.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection, Sequence
from typing import Any, cast

import numpy as np

from uzipmpi.errors import FormatError
from uzipmpi.kernels import codec as cpu
from uzipmpi.kernels.device import gpu_half
from uzipmpi.kernels.device_codec import accumulator_bytes, complaint, fold_all_but_last
from uzipmpi.kernels.reduce import OPS
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
# Kernels go to the thread's current device, which CuPy keeps.
_CURRENT = -1
_scratches: dict[tuple[int, int], Array] = {}


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


def _memory(array: Array) -> tuple[Array, DType]:
    """Return the bytes of an array, without a copy, and what they are."""
    array = _cupy().asarray(array)
    if not array.flags.c_contiguous:
        raise ValueError(f"expected a C-contiguous array, found strides {array.strides}")
    return array.reshape(-1).view(np.uint8), DType.of(array.dtype)


def _stream() -> int:
    return int(_cupy().cuda.get_current_stream().ptr)


def _queue() -> tuple[int, int]:
    """Return what the compiled functions take last: a device and a stream."""
    return _CURRENT, _stream()


def _scratch() -> Array:
    """Return the zeroed scratch of this device and stream: calls in one stream take turns."""
    cupy = _cupy()
    key = (cupy.cuda.Device().id, _stream())
    if key not in _scratches:
        _scratches[key] = cupy.zeros(gpu_half().SCRATCH_BYTES * gpu_half().MAX_SHARDS, np.uint8)
    return _scratches[key]


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
    dtype = found if dtype is None else dtype
    count = memory.size // dtype.itemsize
    if out.nbytes < cpu.bound(count, dtype):
        raise ValueError(
            f"expected at least {cpu.bound(count, dtype)} bytes for a frame, found {out.nbytes}"
        )
    scratch = _scratch().data.ptr
    gpu_half().encode(
        memory.data.ptr,
        count,
        dtype,
        out.data.ptr,
        scratch,
        codec,
        menu,
        max_blocks,
        *_queue(),
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
    dtype = found if dtype is None else dtype
    count = memory.size // dtype.itemsize
    gpu_half().decode(
        frame.data.ptr,
        frame.size,
        dtype,
        count,
        memory.data.ptr,
        status.data.ptr,
        max_blocks,
        *_queue(),
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
    accumulators: Array | None = None,
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
    accumulators
        For more than 16 inputs: room for a float32 of each value, a float64 for float64.
    max_blocks
        As for :func:`encode`; of the launch that makes the result.

    Raises
    ------
    ValueError
        If the operator is unknown, sizes differ, or accumulators are needed and not given.
    """
    memory, found = _memory(out)
    dtype = found if dtype is None else dtype
    count = memory.size // dtype.itemsize
    last, before = _fold_all_but_last(op, inputs, plain, dtype, count, status, accumulators)
    gpu_half().decode_reduce(
        OPS.index(op),
        dtype,
        count,
        divisor,
        before,
        *last,
        memory.data.ptr,
        status.data.ptr,
        max_blocks,
        *_queue(),
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
    accumulators: Array | None = None,
    max_blocks: int = 0,
) -> None:
    """Fold frames as :func:`decode_reduce` does, and encode the result, in the same launch.

    Parameters
    ----------
    op, inputs, status, plain, divisor, accumulators, max_blocks
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
        ratio if they do not fit. None: those of the first frame of codec ``tier`` among the inputs,
        moved by what a sum of independent values grows.
    """
    memory = None if out is None else _memory(out)[0]
    if memory is not None and memory.size != count * dtype.itemsize:
        raise ValueError(f"expected room for {count} values, found {memory.size} bytes")
    if frame.nbytes < cpu.bound(count, dtype):
        raise ValueError(
            f"expected at least {cpu.bound(count, dtype)} bytes for a frame, found {frame.nbytes}"
        )
    last, before = _fold_all_but_last(op, inputs, plain, dtype, count, status, accumulators)
    growth = math.log2(len(inputs)) / 2 if op == "sum" else 0
    gpu_half().decode_reduce_encode(
        OPS.index(op),
        dtype,
        count,
        divisor,
        before,
        *last,
        0 if like is None else like.data.ptr,
        round(growth - math.log2(divisor)) if like is None else 0,
        0 if memory is None else memory.data.ptr,
        frame.data.ptr,
        _scratch().data.ptr,
        status.data.ptr,
        max_blocks,
        *_queue(),
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
    gpu = gpu_half()
    if len(shards) != len(frames):
        raise ValueError(f"expected {len(shards)} frames, found {len(frames)}")
    memories = [_memory(shard) for shard in shards]
    for first in range(0, len(shards), gpu.MAX_SHARDS):
        some = slice(first, first + gpu.MAX_SHARDS)
        kind = memories[first][1] if dtype is None else dtype
        counts = [memory.size // kind.itemsize for memory, _ in memories[some]]
        for count, frame in zip(counts, frames[some], strict=True):
            if frame.nbytes < cpu.bound(count, kind):
                raise ValueError(
                    f"expected at least {cpu.bound(count, kind)} bytes for a frame, "
                    f"found {frame.nbytes}"
                )
        gpu.encode_shards(
            [memory.data.ptr for memory, _ in memories[some]],
            counts,
            [frame.data.ptr for frame in frames[some]],
            kind,
            _scratch().data.ptr,
            codec,
            menu,
            max_blocks,
            *_queue(),
        )


def _fold_all_but_last(
    op: str,
    inputs: Sequence[Array],
    plain: Collection[int],
    dtype: DType,
    count: int,
    status: Array,
    accumulators: Array | None,
) -> tuple[tuple[list[int], list[int]], int]:
    """Fold all inputs but those of one launch; return these, and the accumulators' address."""
    gpu = gpu_half()
    if op not in OPS:
        raise ValueError(f"expected one of the operators {', '.join(OPS)}, found {op!r}")
    nbytes = count * dtype.itemsize
    for place in plain:
        if inputs[place].nbytes != nbytes:
            raise ValueError(f"expected {nbytes} bytes of values, found {inputs[place].nbytes}")
    memories = [_memory(array)[0] for array in inputs]
    addresses = [memory.data.ptr for memory in memories]
    sizes = [gpu.PLAIN_VALUES if i in plain else m.size for i, m in enumerate(memories)]
    wide = accumulator_bytes(count, dtype)
    if len(inputs) > gpu.MAX_INPUTS and (accumulators is None or accumulators.nbytes < wide):
        raise ValueError(
            f"expected accumulators of at least {wide} bytes for more than {gpu.MAX_INPUTS} inputs"
        )
    room = 0 if accumulators is None else accumulators.data.ptr
    return fold_all_but_last(op, (addresses, sizes), dtype, count, room, status.data.ptr, _queue())


def compress(
    array: Array, codec: str = "auto", out: Array | None = None, *, verify: bool = False
) -> Array:
    """Return the frame of an array in GPU memory, as a ``uint8`` array there.

    As :func:`uzipmpi.compress`. Checksums are the host's work: the values go there and the frame
    back.
    """
    cupy = _cupy()
    memory, dtype = _memory(array)
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
    source, _ = _memory(frame)
    header = _header(source)
    out = cupy.empty(header.count, header.dtype.numpy) if out is None else out
    memory, dtype = _memory(out)
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
    if wrong := complaint(int(status[0])):
        raise FormatError(f"malformed frame: {wrong}")
    return out


def _header(frame: Array) -> cpu.FrameInfo:
    return cpu.info(cast(Bytes, _cupy().asnumpy(frame[: cpu.HEADER_BYTES])))
