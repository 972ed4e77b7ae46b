"""GPU buffers through the communicator, on the emulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

# What MPI is told it can reach it reaches here: the emulated GPU's memory is the host's.
HOST = {"UZIPMPI_TRANSPORT": "mpi-host", "UZIPMPI_CUDA_AWARE": "0"}
PARTLY = {"UZIPMPI_TRANSPORT": "mpi-host", "UZIPMPI_CUDA_AWARE": "1"}
DEVICE = {"UZIPMPI_TRANSPORT": "mpi-device", "UZIPMPI_CUDA_AWARE": "1"}


@pytest.mark.parametrize(
    ("n", "env"),
    [(2, HOST), (3, HOST), (2, PARTLY), (3, DEVICE)],
    ids=["2-host", "3-host", "2-partly", "3-device"],
)
def test_gpu_buffers(
    mpirun: Callable[..., str], gpu_module: Path, n: int, env: dict[str, str]
) -> None:
    """Whether frames come by host memory, by GPU memory, or plain messages by GPU memory only."""
    assert "all the same" in mpirun(n, "ranks_device.py", gpu_module, timeout=300, env=env)


@pytest.mark.parametrize(
    ("n", "env"), [(2, HOST), (3, HOST), (2, DEVICE)], ids=["2-host", "3-host", "2-device"]
)
def test_faults(mpirun: Callable[..., str], gpu_module: Path, n: int, env: dict[str, str]) -> None:
    mpirun(n, "ranks_faults.py", gpu_module, timeout=300, env=env)


def test_limits(mpirun: Callable[..., str], gpu_module: Path) -> None:
    assert "steady" in mpirun(2, "ranks_limits.py", gpu_module, timeout=300, env=HOST)


def test_costs(mpirun: Callable[..., str], gpu_module: Path) -> None:
    """After the first calls nothing is allocated or page-locked, and nothing waits for the GPU."""
    assert "cheap" in mpirun(2, "ranks_costs.py", gpu_module, timeout=120, env=HOST)


def test_sparse_sums(mpirun: Callable[..., str], gpu_module: Path) -> None:
    output = mpirun(3, "ranks_sparse.py", gpu_module, timeout=120, env=HOST)
    assert output.count("stays small") == 2


@pytest.mark.parametrize("n", [2, 3])
def test_shared_memory(mpirun: Callable[..., str], gpu_module: Path, n: int) -> None:
    assert "notes" in mpirun(n, "ranks_shared.py", gpu_module, timeout=300)


@pytest.mark.parametrize("transport", ["ipc", "shm"])
@pytest.mark.parametrize("n", [2, 3])
def test_connected_gpus(
    mpirun: Callable[..., str], gpu_module: Path, n: int, transport: str
) -> None:
    """Processes of one host, each with an emulated GPU whose memory the others reach or do not."""
    assert "all the same" in mpirun(n, "ranks_linked.py", gpu_module, transport, timeout=300)


def test_ranks_that_disagree_about_mpi(mpirun: Callable[..., str], gpu_module: Path) -> None:
    mpirun(2, "ranks_uneven.py", gpu_module, timeout=60)
