"""Derived datatypes: MPI itself gathers and scatters their bytes, in a message to oneself."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
from mpi4py import MPI

from uzipmpi.buffers import is_derived, pieces, plain, plain_tensor
from uzipmpi.typing import DType, Tensor

__all__ = ["check", "nbytes", "pack", "unpack"]

_lock = threading.Lock()  # the messages of two threads must not be taken for each other


def nbytes(spec: Any) -> int:
    """Return how many bytes a specification with a derived datatype names, 0 for others."""
    entries = pieces(spec, 1) if is_derived(spec) else None
    if entries is None:
        return 0
    [(_, (count, _), datatype)] = entries
    size: int = count * datatype.Get_size()
    return size


def pack(spec: Any) -> Tensor:
    """Return the bytes that a specification names, one after the other, in new memory."""
    own = _own()
    status = MPI.Status()
    with _lock:
        request = own.Isend(plain(spec), 0)
        message = own.Mprobe(0, status=status)
        packed = Tensor(np.empty(status.Get_elements(MPI.BYTE), np.uint8), DType.BYTES)
        message.Recv(plain_tensor(packed))
        request.Wait()
    return packed


def unpack(packed: Tensor, spec: Any) -> None:
    """Put packed bytes where a specification says.

    Raises
    ------
    mpi4py.MPI.Exception
        ``MPI.ERR_TRUNCATE`` if there are more bytes than places.
    """
    with _lock:
        _own().Sendrecv(plain_tensor(packed), 0, 0, plain(spec), 0)


def check(spec: Any) -> None:
    """Let mpi4py complain about a specification of what is to be received."""
    _own().Recv_init(plain(spec), 0).Free()


@functools.cache
def _own() -> MPI.Intracomm:
    return MPI.Intracomm(MPI.COMM_SELF).Dup()  # programs may put a wrapper in its place
