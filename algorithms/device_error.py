"""What a GPU's driver says is wrong, as an error of MPI's: a program expects no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI

__all__ = ["DeviceError", "reported"]


class DeviceError(MPI.Exception):
    """A GPU is out of memory, or its driver refuses or has failed; the text says which.

    Its error class is ``MPI.ERR_NO_MEM`` or ``MPI.ERR_OTHER``. After a failed kernel the driver
    refuses all work of this process on that GPU; buffers in host memory go on working.

    Parameters
    ----------
    reason
        What the driver says.
    """

    def __init__(self, reason: str) -> None:
        out_of_memory = "out of memory" in reason or "cannot allocate" in reason
        super().__init__(MPI.ERR_NO_MEM if out_of_memory else MPI.ERR_OTHER)
        self._reason = reason

    def __str__(self) -> str:
        return self._reason

    def Get_error_string(self) -> str:
        """Return what the driver says."""
        return self._reason


@contextmanager
def reported() -> Iterator[None]:
    """Raise :class:`DeviceError` for the driver's errors."""
    try:
        yield
    except MPI.Exception:  # it is a RuntimeError as well
        raise
    except RuntimeError as error:
        raise DeviceError(str(error)) from error
