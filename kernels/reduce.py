"""Arithmetic on tensors: folds for the reductions, and conversions to and from float32.

8- and 16-bit types accumulate in float32 and are rounded once, to nearest even, when the result is
written; float32 and float64 accumulate in their own type. Nothing is contracted or reordered, so
every machine computes the same bits. ``reduce.hpp`` says what happens to NaN, overflow and zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from uzipmpi.kernels import _codec
from uzipmpi.typing import DType, Tensor

__all__ = ["OPS", "check", "fold", "narrow", "widen"]

OPS = ("sum", "prod", "min", "max")

_SMALL = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)


def fold(op: str, inputs: Sequence[Tensor], out: Tensor, divisor: int = 1) -> None:
    """Combine tensors value by value, in the order of the sequence, and round once.

    A result that is NaN is the positive quiet NaN of its type; ``min`` and ``max`` return NaN where
    any input is NaN, and order -0 below +0. ``float8_e4m3fn`` overflows to the NaN of the result's
    sign, the other types to infinity.

    Parameters
    ----------
    op
        One of ``OPS``.
    inputs
        At least one tensor; all of the output's data type and count.
    out
        Where the result is written. It may be one of the inputs, but not overlap one in part.
    divisor
        Divides the combined values before they are rounded; at least 1.

    Raises
    ------
    TypeError
        If the output holds bytes, or an input has another data type.
    ValueError
        If the operator is unknown, counts differ, there is no input, the divisor is below 1 or the
        output overlaps an input in part.

    Examples
    --------
    >>> x = Tensor.of(np.array([1, 2, 3], np.float32))
    >>> mean = Tensor.of(np.empty(3, np.float32))
    >>> fold("sum", [x, x, x, x], mean, divisor=4)
    >>> mean.array.tolist()
    [1.0, 2.0, 3.0]
    """
    if op not in OPS:
        raise ValueError(f"expected one of the operators {', '.join(OPS)}, found {op!r}")
    check(inputs, out)
    memories = [tensor.memory for tensor in inputs]
    _codec.fold(OPS.index(op), int(out.dtype), memories, out.memory, divisor)


def check(inputs: Sequence[Tensor], out: Tensor) -> None:
    """Raise what :func:`fold` raises for tensors that cannot be folded together."""
    if out.dtype is DType.BYTES:
        raise TypeError(
            "expected tensors of a float type to fold, found bytes: arithmetic is defined for "
            "bfloat16, float16, float32, float64, float8_e4m3fn and float8_e5m2 only"
        )
    if not inputs:
        raise ValueError("expected at least one input to fold, found none")
    for tensor in inputs:
        if tensor.dtype is not out.dtype:
            raise TypeError(
                f"expected inputs of {out.dtype.name} as the output is, found {tensor.dtype.name}"
            )
        if tensor.nbytes != out.nbytes:
            raise ValueError(f"expected inputs of {out.count} values, found {tensor.count}")


def widen(tensor: Tensor, out: npt.NDArray[np.float32]) -> None:
    """Write the float32 equal to each value of an 8- or 16-bit type.

    Parameters
    ----------
    tensor
        Values of an 8- or 16-bit type.
    out
        One-dimensional and contiguous, of the tensor's count.

    Raises
    ------
    TypeError
        If the tensor is of another type.
    ValueError
        If the counts differ.
    """
    _require_small(tensor)
    _codec.widen(int(tensor.dtype), tensor.memory, out)


def narrow(values: npt.NDArray[np.float32], out: Tensor) -> None:
    """Round float32 values to an 8- or 16-bit type, as :func:`fold` does.

    Parameters
    ----------
    values
        One-dimensional and contiguous, of the tensor's count.
    out
        Values of an 8- or 16-bit type.

    Raises
    ------
    TypeError
        If the tensor is of another type.
    ValueError
        If the counts differ.
    """
    _require_small(out)
    _codec.narrow(int(out.dtype), values, out.memory)


def _require_small(tensor: Tensor) -> None:
    if tensor.dtype not in _SMALL:
        raise TypeError(f"expected an 8- or 16-bit float type, found {tensor.dtype.name}")
