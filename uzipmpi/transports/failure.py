"""What went wrong outside MPI, as an exception of MPI's."""

from __future__ import annotations

import functools

from mpi4py import MPI

__all__ = ["failure"]


@functools.lru_cache(maxsize=64)  # MPI never forgets a code
def _code(reason: str) -> int:
    code: int = MPI.Add_error_code(MPI.ERR_OTHER)
    MPI.Add_error_string(code, reason[: MPI.MAX_ERROR_STRING - 1])
    return code


def failure(reason: str) -> MPI.Exception:
    """Return an exception of class ``MPI.ERR_OTHER`` whose text is the reason."""
    return MPI.Exception(_code(reason))
