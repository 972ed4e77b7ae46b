"""The GPU's codec on :class:`~uzipmpi.kernels.device.DeviceMemory`, in a stream that is named.

Each call queues its kernels and returns. Frames begin at a multiple of 16 bytes, values at one of
their own size. All memory must be such that the stream's GPU can reach it; it may be another's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from uzipmpi.kernels import codec as cpu
from uzipmpi.kernels.device import DeviceMemory, Stream, gpu_half
from uzipmpi.kernels.reduce import OPS
from uzipmpi.typing import DType

__all__ = ["complaint", "decode", "encode", "encode_shards", "fold", "fold_encode"]

_STATUS = {
    1: "the size, kind or place of a tile or block",
    2: "sizes that do not add up",
    3: "another data type, count or size than the header's",
    4: "no header of version 1",
    5: "frequencies that are none",
    6: "a codec that is not folded",
}


def encode(
    values: DeviceMemory,
    dtype: DType,
    out: DeviceMemory,
    stream: Stream,
    *,
    codec: str = "auto",
    menu: int = -1,
    max_blocks: int = 0,
) -> None:
    """Queue that the frame of some values is written; its header will say its size.

    Parameters
    ----------
    values, dtype
        The values, and what they are.
    out
        At least ``codec.bound`` bytes.
    stream
        Where the launch is queued.
    codec
        ``auto``, ``tier``, ``ans`` or ``raw``.
    menu
        Digit widths of ``tier``, or log2 of the tiles in a block of ``ans``; -1 chooses.
    max_blocks
        Most blocks of the grid; 0: as many as the GPU holds.

    Raises
    ------
    ValueError
        If ``out`` is too small, or an argument unknown.
    RuntimeError
        If memory is not aligned, or the driver refuses.
    """
    count = values.size // dtype.itemsize
    _check_room(out, count, dtype)
    gpu_half().encode(
        values.address,
        count,
        dtype,
        out.address,
        stream.scratch.address,
        codec,
        menu,
        max_blocks,
        stream.device,
        stream.handle,
    )


def encode_shards(
    shards: Sequence[DeviceMemory],
    dtype: DType,
    frames: Sequence[DeviceMemory],
    stream: Stream,
    *,
    codec: str = "auto",
    menu: int = -1,
    max_blocks: int = 0,
) -> None:
    """Queue that the frames of many tensors are written, up to 64 by one launch.

    Parameters
    ----------
    shards, dtype
        The values of each, of one type; there may be any number of them, none as well.
    frames
        For each one what :func:`encode` calls ``out``.
    stream, menu
        As there.
    codec
        ``auto``, ``tier`` or ``raw``.
    max_blocks
        As there; the blocks are those of all tensors together.

    Raises
    ------
    ValueError
        If there are more or fewer frames than tensors, or one is too small.
    RuntimeError
        As for :func:`encode`.
    """
    if len(shards) != len(frames):
        raise ValueError(f"expected {len(shards)} frames, found {len(frames)}")
    gpu = gpu_half()
    counts = [shard.size // dtype.itemsize for shard in shards]
    for count, frame in zip(counts, frames, strict=True):
        _check_room(frame, count, dtype)
    for first in range(0, len(shards), gpu.MAX_SHARDS):
        some = slice(first, first + gpu.MAX_SHARDS)
        gpu.encode_shards(
            [shard.address for shard in shards[some]],
            counts[some],
            [frame.address for frame in frames[some]],
            dtype,
            stream.scratch.address,
            codec,
            menu,
            max_blocks,
            stream.device,
            stream.handle,
        )


def decode(
    frame: DeviceMemory,
    dtype: DType,
    out: DeviceMemory,
    status: DeviceMemory,
    stream: Stream,
    *,
    max_blocks: int = 0,
) -> None:
    """Queue that the values of a frame are written.

    Parameters
    ----------
    frame
        Exactly the bytes of a frame. Nothing in them is trusted; a checksum is not looked at.
    dtype, out
        What the values are, and where all of them go.
    status
        4 bytes that are zero by then; a number other than 0 will say that the frame is malformed,
        or another than ``dtype`` and ``out`` ask for. ``out`` is unspecified then.
    stream, max_blocks
        As for :func:`encode`.

    Raises
    ------
    RuntimeError
        If memory is not aligned, the frame is shorter than a header, or the driver refuses.
    """
    gpu_half().decode(
        frame.address,
        frame.size,
        dtype,
        out.size // dtype.itemsize,
        out.address,
        status.address,
        max_blocks,
        stream.device,
        stream.handle,
    )


def fold(
    op: str,
    inputs: Sequence[DeviceMemory],
    plain: Collection[int],
    out: DeviceMemory,
    dtype: DType,
    status: DeviceMemory,
    stream: Stream,
    divisor: int = 1,
    *,
    max_blocks: int = 0,
) -> None:
    """Queue that frames are decoded and folded, in their order, as ``reduce.fold`` does.

    Parameters
    ----------
    op
        One of ``reduce.OPS``.
    inputs
        Frames of codec ``raw`` or ``tier``, all of ``out``'s count. Up to 16 take one launch.
    plain
        Which of the inputs are values as they are, by their places.
    out, dtype
        Where the result goes, and what it is. It may be the memory of a plain input.
    status
        As for :func:`decode`; another number also where a frame is of codec ``ans``.
    stream, max_blocks
        As for :func:`encode`.
    divisor
        Divides the result before it is rounded.

    Raises
    ------
    ValueError
        If the operator is unknown, or a plain input has another size than ``out``.
    RuntimeError
        If memory is not aligned, or the driver refuses.
    """
    count = out.size // dtype.itemsize
    last, before = _fold_all_but_last(op, inputs, plain, dtype, count, status, stream, max_blocks)
    gpu_half().decode_reduce(
        OPS.index(op),
        dtype,
        count,
        divisor,
        before,
        *last,
        out.address,
        status.address,
        max_blocks,
        stream.device,
        stream.handle,
    )


def fold_encode(
    op: str,
    inputs: Sequence[DeviceMemory],
    plain: Collection[int],
    frame: DeviceMemory,
    count: int,
    dtype: DType,
    status: DeviceMemory,
    stream: Stream,
    divisor: int = 1,
    *,
    out: DeviceMemory | None = None,
    like: DeviceMemory | None = None,
    summed: int = 1,
    max_blocks: int = 0,
) -> None:
    """Queue what :func:`fold` does, and that the result is encoded, in the same launch.

    Parameters
    ----------
    op, inputs, plain, dtype, status, stream, divisor, max_blocks
        As there.
    frame
        At least ``codec.bound`` bytes. If an input is malformed its header becomes zeros, which no
        decoder takes.
    count
        Number of values.
    out
        Where the result goes as well.
    like
        A frame, of which the header is read: the result is coded with its parameters, which cost
        ratio if they do not fit. None: those of the frame of the largest values among the inputs,
        moved by what a sum of independent values grows; without any the frame is raw.
    summed
        How many tensors the sum of which one of the inputs holds already.

    Raises
    ------
    ValueError
        As for :func:`fold`, or if ``frame`` or ``out`` has another size.
    RuntimeError
        If memory is not aligned, or the driver refuses.
    """
    _check_room(frame, count, dtype)
    if out is not None and out.size != count * dtype.itemsize:
        raise ValueError(f"expected room for {count} values, found {out.size} bytes")
    last, before = _fold_all_but_last(op, inputs, plain, dtype, count, status, stream, max_blocks)
    gpu_half().decode_reduce_encode(
        OPS.index(op),
        dtype,
        count,
        divisor,
        before,
        *last,
        0 if like is None else like.address,
        _shift(op, summed, len(inputs), divisor) if like is None else 0,
        0 if out is None else out.address,
        frame.address,
        stream.scratch.address,
        status.address,
        max_blocks,
        stream.device,
        stream.handle,
    )


def _shift(op: str, summed: int, n_inputs: int, divisor: int) -> int:
    """Return by how many binary orders the window of a fold's result lies higher than an input's.

    A sum of n independent values is the square root of n times as large. Where that is no power of
    two the higher window fits better. The frames of partial sums are shifted already.
    """

    def level(n_tensors: int, divisor: int) -> int:
        return math.floor(math.log2(n_tensors) / 2 - math.log2(divisor) + 0.75)

    n_tensors = summed + n_inputs - 1 if op == "sum" else summed
    return level(n_tensors, divisor) - level(summed, 1)


def _fold_all_but_last(
    op: str,
    inputs: Sequence[DeviceMemory],
    plain: Collection[int],
    dtype: DType,
    count: int,
    status: DeviceMemory,
    stream: Stream,
    max_blocks: int,
) -> tuple[tuple[list[int], list[int]], int]:
    """Fold all inputs but those of one launch; return these, and the accumulators' address."""
    if op not in OPS:
        raise ValueError(f"expected one of the operators {', '.join(OPS)}, found {op!r}")
    nbytes = count * dtype.itemsize
    for place in plain:
        if inputs[place].size != nbytes:
            raise ValueError(f"expected {nbytes} bytes of values, found {inputs[place].size}")
    gpu = gpu_half()
    addresses = [memory.address for memory in inputs]
    sizes = [gpu.PLAIN_VALUES if i in plain else m.size for i, m in enumerate(inputs)]
    before = 0
    while len(addresses) > gpu.MAX_INPUTS:
        accumulators = stream.accumulators(count * (8 if dtype is DType.FLOAT64 else 4)).address
        some = slice(gpu.MAX_INPUTS)
        gpu.decode_accumulate(
            OPS.index(op),
            dtype,
            count,
            before,
            addresses[some],
            sizes[some],
            accumulators,
            status.address,
            max_blocks,
            stream.device,
            stream.handle,
        )
        before = accumulators
        del addresses[some], sizes[some]
    return (addresses, sizes), before


def _check_room(frame: DeviceMemory, count: int, dtype: DType) -> None:
    if frame.size < cpu.bound(count, dtype):
        raise ValueError(
            f"expected at least {cpu.bound(count, dtype)} bytes for a frame, found {frame.size}"
        )


def complaint(status: int) -> str:
    """Return what a decoder's status word says is wrong with a frame; nothing if it is 0."""
    return _STATUS[status] if status else ""
