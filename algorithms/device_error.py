"""What a GPU's driver says is wrong, as an error of MPI's: a program expects no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from mpi4py import MPI

from uzipmpi.transports.failure import failure

__all__ = ["raise_reported", "reported"]


@contextmanager
def reported() -> Iterator[None]:
    """Raise an exception of MPI's, with the driver's words, for the driver's errors.

    After a failed kernel the driver refuses all work of this process on that GPU, and every call on
    its memory raises; buffers in host memory go on working.
    """
    try:
        yield
    except RuntimeError as error:
        raise_reported(error)


def raise_reported(error: RuntimeError) -> NoReturn:
    """Raise an error of the driver's as :func:`reported` does."""
    if isinstance(error, MPI.Exception):  # it is a RuntimeError as well
        raise error
    raise failure(str(error)) from error
