"""Arrays in GPU memory that any communicator takes, without CuPy or torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from uzipmpi.kernels import device

__all__ = ["GpuArray", "gpu_of_rank"]


def gpu_of_rank() -> int:
    """Return the GPU of this rank: those of a node have different ones, as long as there are any.

    Raises
    ------
    SystemExit
        If there is none.
    """
    if not device.is_available():
        raise SystemExit("--device: expected a GPU and uzipmpi's GPU half, found none")
    node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    place = node.Get_rank()
    node.Free()
    return place % int(device.gpu_half().device_count())


class GpuArray:
    """A C-contiguous array in GPU memory.

    Parameters
    ----------
    memory, shape, dtype
        Where it is and what it holds.
    """

    def __init__(
        self, memory: device.DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.memory, self.shape, self.dtype = memory, shape, dtype

    @classmethod
    def of(cls, array: npt.NDArray[Any], gpu: int) -> GpuArray:
        """Return a copy of an array in the memory of a GPU."""
        room = device.allocate(max(array.nbytes, 1), gpu)[: array.nbytes]
        made = cls(room, array.shape, array.dtype)
        made.put(array)
        return made

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = np.dtype(f"V{self.dtype.itemsize}").str  # there is none for bf16 and fp8
        return {**self.memory.__cuda_array_interface__, "shape": self.shape, "typestr": kind}

    def __iter__(self) -> Iterator[GpuArray]:
        """Yield the rows."""
        nbytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        for row in range(self.shape[0]):
            memory = self.memory[row * nbytes : (row + 1) * nbytes]
            yield GpuArray(memory, self.shape[1:], self.dtype)

    def put(self, array: npt.NDArray[Any]) -> None:
        """Overwrite the values."""
        stream = device.Stream(self.memory.device)
        stream.copy(self.memory, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        stream.synchronize()

    def get(self) -> npt.NDArray[Any]:
        """Return a copy in host memory."""
        out = np.empty(self.memory.size, np.uint8)
        stream = device.Stream(self.memory.device)
        stream.copy(out, self.memory)
        stream.synchronize()
        return out.view(self.dtype).reshape(self.shape)
