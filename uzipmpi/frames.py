"""Frames without MPI: compress an array to bytes and back."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from uzipmpi.errors import FormatError
from uzipmpi.kernels import codec as kernel
from uzipmpi.kernels import gpu
from uzipmpi.kernels.codec import FrameInfo
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = ["compress", "compress_bound", "decompress", "frame_info"]


def compress(
    array: npt.NDArray[Any],
    codec: str = "auto",
    out: Bytes | None = None,
    *,
    verify: bool = False,
    threads: int = 1,
) -> Bytes:
    """Return the frame of an array.

    Parameters
    ----------
    array
        C-contiguous, in host or in GPU memory; of bfloat16, float16, float32, float64,
        float8_e4m3fn or float8_e5m2. Other types are kept as they are.
    codec
        ``auto``, ``tier``, ``ans`` or ``raw``.
    out
        Where to write it: ``compress_bound`` bytes of ``uint8``.
    verify
        Include a checksum.
    threads
        Most threads to use.

    Returns
    -------
    numpy.ndarray
        The frame, a view of ``out`` if that was given.

    Raises
    ------
    TypeError
        If it is no array.
    ValueError
        If the array is not contiguous, ``out`` is too small or the codec unknown.

    Examples
    --------
    >>> frame = compress(np.zeros(100_000, np.float32))
    >>> frame.nbytes < 4000
    True
    >>> bool((decompress(frame) == 0).all())
    True
    """
    if gpu.is_device_array(array):
        return cast(Bytes, gpu.compress(array, codec, out, verify=verify))
    tensor = Tensor.of(array)
    if out is None:
        out = np.empty(kernel.bound(tensor.count, tensor.dtype), np.uint8)
    nbytes = kernel.encode(tensor, out, codec=codec, verify=verify, threads=threads)
    return out[:nbytes]


def decompress(
    frame: Bytes, out: npt.NDArray[Any] | None = None, *, verify: bool = False, threads: int = 1
) -> npt.NDArray[Any]:
    """Return the values of a frame as a one-dimensional array, or in ``out``.

    Parameters
    ----------
    frame
        The bytes of a frame, from any source.
    out
        A C-contiguous array of as many values of the same type, which is returned.
    verify
        Require a checksum and check it.
    threads
        Most threads to use.

    Raises
    ------
    FormatError
        If the frame is malformed, or ``out`` has another type or size.
    """
    if gpu.is_device_array(frame):
        return cast(npt.NDArray[Any], gpu.decompress(frame, out, verify=verify))
    frame = np.frombuffer(frame, np.uint8)
    if out is None:
        header = kernel.info(frame)
        if header.frame_bytes != frame.size:  # before memory is taken for what it promises
            raise FormatError(
                f"malformed frame: expected {header.frame_bytes} bytes, found {frame.size}"
            )
        out = np.empty(header.count, header.dtype.numpy)
    kernel.decode(frame, Tensor.of(out), verify=verify, threads=threads)
    return out


def frame_info(frame: Bytes) -> FrameInfo:
    """Return what the header of a frame says.

    Raises
    ------
    FormatError
        If it is malformed.
    """
    return kernel.info(np.frombuffer(frame, np.uint8))


def compress_bound(count: int, dtype: npt.DTypeLike) -> int:
    """Return the most bytes that the frame of ``count`` values can have."""
    return kernel.bound(count, DType.of(dtype))
