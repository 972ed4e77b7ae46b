"""What CuPy gives, without CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from uzipmpi.kernels import device

__all__ = ["DeviceBuffer"]


class DeviceBuffer:
    """What CuPy gives: an array with the interface and a data type; its content comes late."""

    def __init__(self, array: np.ndarray) -> None:
        self.dtype, self._shape = array.dtype, array.shape
        self._source = np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()
        gpu = MPI.COMM_WORLD.Get_rank() % device.gpu_half().device_count()
        self.memory = device.allocate(max(self._source.size, 1), gpu)
        self.producer = device.Stream(gpu)
        if self._source.size:
            self.producer.copy(self.memory[: self._source.size], self._source)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self._shape,
            "typestr": np.dtype(f"V{self.dtype.itemsize}").str,
            "data": (self.memory.address, False),
            "strides": None,
            "stream": self.producer.handle,
        }

    def get(self) -> np.ndarray:
        """Return the content; whoever wrote it has waited for it."""
        host = np.empty(self._source.size, np.uint8)
        if host.size:
            self.producer.copy(host, self.memory[: host.size])
            self.producer.synchronize()
        return host.view(self.dtype).reshape(self._shape)
