"""Whether MPI itself reads and writes the memory of GPUs."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from mpi4py import MPI

from uzipmpi import config

__all__ = ["cuda_aware", "is_cuda_aware", "libmpi"]

GPU_SUPPORT_CUDA = 0  # mpi.h of MPICH: MPIX_GPU_SUPPORT_CUDA


def is_cuda_aware() -> bool:
    """Whether GPU memory may be handed to MPI's own calls."""
    return cuda_aware()[0]


@functools.cache
def cuda_aware() -> tuple[bool, str]:
    """Return whether GPU memory may be handed to MPI's own calls, and how that is known.

    ``UZIPMPI_CUDA_AWARE`` says so (1) or not (0). Otherwise MPI is asked; where UCX, which moves
    the bytes, is without its CUDA module, the answer is taken for no: a wrong yes would be a
    segmentation fault.

    Raises
    ------
    ConfigError
        If the variable has another value.
    """
    wanted = config.cuda_aware()
    if wanted is not None:
        return wanted, f"UZIPMPI_CUDA_AWARE is {int(wanted)}"
    path = libmpi()
    if path is None:
        return False, "the MPI library was not found"
    if (ucx := _mapped("/libucp")) and not _has_cuda_module(Path(ucx).parent):
        return False, "UCX has no CUDA module"
    return _answer(ctypes.CDLL(path))


def libmpi() -> str | None:
    """Return the path of the MPI library that this process uses."""
    return _mapped("/libmpi")


def _mapped(name: str) -> str | None:
    """Return the path of a library; mpi4py loads it privately, so its symbols are not global."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    return next((line.split()[-1] for line in lines if name in line), None)


def _has_cuda_module(ucx: Path) -> bool:
    folders = [ucx / "ucx", *map(Path, filter(None, [os.environ.get("UCX_MODULE_DIR")]))]
    return any(list(folder.glob("libuct_cuda*")) for folder in folders)


def _answer(library: ctypes.CDLL) -> tuple[bool, str]:
    """Ask MPI, by the function of Open MPI's or of MPICH's."""
    if hasattr(library, "MPIX_GPU_query_support") and MPI.Is_initialized():
        supported = ctypes.c_int(0)
        library.MPIX_GPU_query_support(GPU_SUPPORT_CUDA, ctypes.byref(supported))
        return bool(supported.value), f"MPIX_GPU_query_support() says {supported.value}"
    if hasattr(library, "MPIX_Query_cuda_support"):
        answer = int(library.MPIX_Query_cuda_support())
        return bool(answer), f"MPIX_Query_cuda_support() is {answer}"
    return False, "this MPI has no MPIX_Query_cuda_support"
