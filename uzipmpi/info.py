"""What is installed and how it will behave, for bug reports and the curious."""

from __future__ import annotations

import os
import platform

import ml_dtypes
import mpi4py
import numpy as np
from mpi4py import MPI

from uzipmpi._version import __version__
from uzipmpi.config import Config
from uzipmpi.cuda_aware import cuda_aware, libmpi
from uzipmpi.gpu_ways import by_mpi
from uzipmpi.kernels import codec
from uzipmpi.kernels.device import gpu_half
from uzipmpi.transports.ipc import WAYS

__all__ = ["report"]

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
        "GPUs": _gpus(),
        "GPU buffers": _gpu_buffers(Config.resolve()),
        "codecs": ", ".join(codec.CODECS),
        "SIMD": f"{codec.simd_path()} (of {paths})",
        "cores": f"{len(os.sched_getaffinity(0))} usable",
        "options": ", ".join(f"{name}={value}" for name, value in vars(Config.resolve()).items()),
    }
    return "\n".join(f"{name + ':':16}{value}" for name, value in rows.items())


def _gpus() -> str:
    """Return how many GPUs there are, or why they are of no use."""
    try:
        return str(gpu_half().device_count())
    except (ImportError, RuntimeError) as error:
        return f"none: {error}"


def _gpu_buffers(config: Config) -> str:
    """Return how they would go, and why; a communicator's ``stats`` say how they do."""
    if config.transport not in ("auto", *WAYS):
        return by_mpi(config)
    return (
        "ipc between ranks of a host whose GPUs reach each other, shm where these do not; "
        f"else {by_mpi(config)}"
    )
