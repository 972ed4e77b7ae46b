"""Frames of arrays in GPU memory: the face of the compiled GPU codec, and the only user of CuPy.

``encode`` and ``decode`` work in CuPy's current stream, wait for nothing and can be captured in a
CUDA graph. ``compress`` and ``decompress`` are like those of the package; they wait where a size or
an error must be known.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

import numpy as np

from uzipmpi.errors import FormatError
from uzipmpi.kernels import codec as cpu
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = ["compress", "decode", "decompress", "encode", "is_device_array"]

Array = Any
"""A CuPy array: CuPy has no annotations of its own."""

_ALIGNMENT = 16
_STATUS = {
    1: "the size, kind or place of a tile or block",
    2: "sizes that do not add up",
    3: "another data type, count or size than the header's",
    4: "no header of version 1",
    5: "frequencies that are none",
}
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


def _gpu() -> Any:
    try:
        return importlib.import_module("uzipmpi.kernels._gpu")
    except ImportError as error:
        raise ImportError(
            "this uzipmpi was installed without its GPU half: "
            "UZIPMPI_GPU=cuda pip install --force-reinstall --no-binary uzipmpi uzipmpi"
        ) from error


def _memory(array: Array) -> tuple[Array, DType]:
    """Return the bytes of an array, without a copy, and what they are."""
    array = _cupy().asarray(array)
    if not array.flags.c_contiguous:
        raise ValueError(f"expected a C-contiguous array, found strides {array.strides}")
    return array.reshape(-1).view(np.uint8), DType.of(array.dtype)


def _stream() -> int:
    return int(_cupy().cuda.get_current_stream().ptr)


def _scratch() -> Array:
    """Return the zeroed scratch of this device and stream: calls in one stream take turns."""
    cupy = _cupy()
    key = (cupy.cuda.Device().id, _stream())
    if key not in _scratches:
        _scratches[key] = cupy.zeros(_gpu().SCRATCH_BYTES, np.uint8)
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
    _gpu().encode(
        memory.data.ptr, count, dtype, out.data.ptr, scratch, codec, menu, max_blocks, _stream()
    )


def decode(frame: Array, out: Array, status: Array, *, dtype: DType | None = None) -> None:
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
    """
    memory, found = _memory(out)
    dtype = found if dtype is None else dtype
    count = memory.size // dtype.itemsize
    _gpu().decode(
        frame.data.ptr, frame.size, dtype, count, memory.data.ptr, status.data.ptr, 0, _stream()
    )


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
    if found := int(status[0]):
        raise FormatError(f"malformed frame: {_STATUS[found]}")
    return out


def _header(frame: Array) -> cpu.FrameInfo:
    return cpu.info(cast(Bytes, _cupy().asnumpy(frame[: cpu.HEADER_BYTES])))
