"""What is installed and how it will behave, for bug reports and the curious."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

import ml_dtypes
import mpi4py
import numpy as np
from mpi4py import MPI

from uzipmpi._version import __version__
from uzipmpi.config import Config
from uzipmpi.kernels import codec

__all__ = ["cuda_aware", "report"]

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "single: nothing is compressed",
    MPI.THREAD_FUNNELED: "funneled: nothing is compressed",
    MPI.THREAD_SERIALIZED: "serialized: nothing is compressed",
    MPI.THREAD_MULTIPLE: "multiple",
}


def report() -> str:
    """Return versions, MPI, CUDA-awareness and why, codecs, SIMD, threads and options."""
    vendor, version = MPI.get_vendor()
    aware, why = cuda_aware()
    paths = ", ".join(codec.SIMD_PATHS)
    rows = {
        "uzipmpi": __version__,
        "Python": f"{platform.python_version()} on {platform.machine()}",
        "mpi4py": mpi4py.__version__,
        "NumPy": f"{np.__version__}, ml_dtypes {ml_dtypes.__version__}",
        "MPI": f"{vendor} {'.'.join(map(str, version))}, standard {MPI.VERSION}.{MPI.SUBVERSION}",
        "MPI library": libmpi() or "not found in /proc/self/maps",
        "threads of MPI": THREAD_LEVELS[MPI.Query_thread()],
        "CUDA-aware": f"{'yes' if aware else 'no'}: {why}",
        "codecs": ", ".join(codec.CODECS),
        "SIMD": f"{codec.simd_path()} (of {paths})",
        "cores": f"{len(os.sched_getaffinity(0))} usable",
        "options": ", ".join(f"{name}={value}" for name, value in vars(Config.resolve()).items()),
    }
    return "\n".join(f"{name + ':':16}{value}" for name, value in rows.items())


def cuda_aware() -> tuple[bool, str]:
    """Return whether MPI takes pointers to GPU memory, as far as it says, and how that is known."""
    path = libmpi()
    if path is None:
        return False, "the MPI library was not found"
    query = getattr(ctypes.CDLL(path), "MPIX_Query_cuda_support", None)
    if query is None:
        return False, "this MPI has no MPIX_Query_cuda_support"
    answer = bool(query())
    return answer, f"MPIX_Query_cuda_support() is {int(answer)}"


def libmpi() -> str | None:
    """Return the path of the MPI library that this process uses."""
    # mpi4py loads it privately: its symbols are not in the global scope.
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next((line.split()[-1] for line in lines if "/libmpi" in line), None)
