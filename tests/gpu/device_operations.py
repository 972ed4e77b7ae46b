"""The operations of the tests of faults, on buffers in GPU memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from device_buffer import DeviceBuffer

sys.path.insert(1, str(Path(__file__).parents[1] / "faults"))
import operations

import uzipmpi

__all__ = ["DeviceOperations"]


class DeviceOperations(operations.Operations):
    """Runs operations; results come to the host afterwards, and are compared there.

    Parameters
    ----------
    comm, count
        As there.
    aside
        What surrounds the test's own use of the GPU.
    """

    def __init__(
        self,
        comm: uzipmpi.Comm,
        count: int,
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__(comm, count)
        self._aside = aside

    def run(self, name: str) -> None:
        """Run an operation once."""
        self._copies: list[tuple[DeviceBuffer, Any]] = []
        try:
            super().run(name)
        finally:
            with self._aside():
                for buffer, host in self._copies:
                    host[...] = buffer.get()

    def _arguments(self, collective: str) -> tuple[Any, ...]:
        return tuple(
            self._put(argument) if isinstance(argument, np.ndarray) else argument
            for argument in super()._arguments(collective)
        )

    def _message(self, name: str) -> None:
        mine, one = self.mine, self.one
        self.mine, self.one = self._put(mine), self._put(one)
        try:
            super()._message(name)
        finally:
            self.mine, self.one = mine, one

    def _put(self, host: Any) -> Any:
        with self._aside():
            buffer = DeviceBuffer(host)
        self._copies.append((buffer, host))
        return buffer
