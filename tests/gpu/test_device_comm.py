"""GPU buffers through the communicator, on the emulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(("n", "aware"), [(2, 0), (3, 0), (2, 1)])
def test_gpu_buffers(mpirun: Callable[..., str], gpu_module: Path, n: int, aware: int) -> None:
    """What MPI is told it can reach it reaches here: the emulated GPU's memory is the host's."""
    env = {"UZIPMPI_CUDA_AWARE": str(aware)}
    assert "all the same" in mpirun(n, "ranks_device.py", gpu_module, timeout=300, env=env)


@pytest.mark.parametrize("n", [2, 3])
def test_faults(mpirun: Callable[..., str], gpu_module: Path, n: int) -> None:
    mpirun(n, "ranks_faults.py", gpu_module, timeout=300)


def test_limits(mpirun: Callable[..., str], gpu_module: Path) -> None:
    mpirun(2, "ranks_limits.py", gpu_module, timeout=300)


@pytest.mark.parametrize("n", [2, 3])
def test_connected_gpus(mpirun: Callable[..., str], gpu_module: Path, n: int) -> None:
    """Processes of one host, each with an emulated GPU whose memory the others reach."""
    assert "all the same" in mpirun(n, "ranks_linked.py", gpu_module, timeout=300)
