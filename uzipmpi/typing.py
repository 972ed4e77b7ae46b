"""The types that cross layers: :class:`DType` and :class:`Tensor`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["Bytes", "DType", "Tensor"]

Bytes = npt.NDArray[np.uint8]


class DType(enum.IntEnum):
    """Data types of a frame; the numbers are FORMAT.md's codes."""

    BYTES = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    FLOAT32 = 3
    FLOAT64 = 4
    FLOAT8_E4M3FN = 5
    FLOAT8_E5M2 = 6

    @property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's (or ml_dtypes') data type."""
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return _NUMPY[self].itemsize

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> DType:
        """Return the member for a data type or its name; ``BYTES`` for all but the six floats."""
        try:
            return _BY_NAME.get(np.dtype(dtype).name, cls.BYTES)
        except TypeError:
            return _BY_NAME.get(str(dtype), cls.BYTES)


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.BYTES: np.dtype(np.uint8),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.FLOAT16: np.dtype(np.float16),
    DType.FLOAT32: np.dtype(np.float32),
    DType.FLOAT64: np.dtype(np.float64),
    DType.FLOAT8_E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.FLOAT8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
}
# By name: ml_dtypes' kinds and sizes do not tell its types apart.
_BY_NAME = {dtype.name: code for code, dtype in _NUMPY.items() if code is not DType.BYTES}


@dataclass(frozen=True)
class Tensor:
    """A contiguous run of values in host or in GPU memory.

    Parameters
    ----------
    memory
        One-dimensional contiguous ``uint8`` array over the values; writable where the tensor is
        a destination. In GPU memory a :class:`uzipmpi.kernels.device.DeviceMemory`, which has a
        size and slices like an array.
    dtype
        What the bytes are.
    """

    memory: Bytes
    dtype: DType

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> Tensor:
        """Wrap a C-contiguous NumPy array without a copy; other data types become ``BYTES``.

        Raises
        ------
        TypeError
            If it is no NumPy array.
        ValueError
            If the array is not C-contiguous.
        """
        if not isinstance(array, np.ndarray):
            raise TypeError(f"expected a NumPy array, found {type(array).__name__}")
        if not array.flags.c_contiguous:
            raise ValueError(
                f"expected a C-contiguous array, found strides {array.strides} "
                f"for shape {array.shape}"
            )
        dtype = DType.of(array.dtype) if array.dtype.isnative else DType.BYTES
        # Not the subclass: a matrix stays two-dimensional, a masked array goes by its mask.
        return cls(np.asarray(array).reshape(-1).view(np.uint8), dtype)

    @property
    def on_device(self) -> bool:
        """Whether the values are in GPU memory."""
        return not isinstance(self.memory, np.ndarray)

    @property
    def device(self) -> int | None:
        """Ordinal of the GPU in whose memory the values are; None in host memory."""
        memory: Any = self.memory
        return memory.device if self.on_device else None  # NumPy's have a device as well, "cpu"

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.memory.size

    @property
    def count(self) -> int:
        """Number of values."""
        return self.memory.size // self.dtype.itemsize

    @property
    def array(self) -> npt.NDArray[Any]:
        """The values as a typed one-dimensional view; in host memory only."""
        return self.memory.view(self.dtype.numpy)

    def __getitem__(self, values: slice) -> Tensor:
        """Return the tensor of a range of values (step 1), sharing memory."""
        start, stop, step = values.indices(self.count)
        if step != 1:
            raise ValueError(f"expected a range of values with step 1, found step {step}")
        size = self.dtype.itemsize
        return Tensor(self.memory[start * size : max(start, stop) * size], self.dtype)
