"""An interrupt while a rank waits: KeyboardInterrupt, and the end of the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

WAITS = ("Irecv", "Waitall", "Iallreduce", "Recv_init", "Alltoall_init")
# These wait in MPI, which as in any mpi4py program does not return before the peer comes.
BLOCKING = ("Recv", "Sendrecv", "Allreduce", "Alltoall")


@pytest.mark.parametrize("name", WAITS)
def test_wait_interrupted(end_of_job: Callable[..., Any], name: str) -> None:
    job = end_of_job(2, "-m", "mpi4py", "ranks_interrupted.py", "self", name, 60, timeout=20)
    assert "interrupted soon" in job.output, job.output
    assert job.status not in (None, 0)
    assert not job.left


@pytest.mark.parametrize("name", BLOCKING)
def test_blocking_call_interrupted(end_of_job: Callable[..., Any], name: str) -> None:
    job = end_of_job(2, "-m", "mpi4py", "ranks_interrupted.py", "self", name, 1, timeout=20)
    assert "interrupted" in job.output, job.output
    assert job.status not in (None, 0)
    assert not job.left


@pytest.mark.parametrize("name", ["Recv", "Allreduce", "Iallreduce"])
def test_mpirun_interrupted(end_of_job: Callable[..., Any], name: str) -> None:
    job = end_of_job(2, "-m", "mpi4py", "ranks_interrupted.py", "mpirun", name, 60, timeout=20)
    assert "went on" not in job.output
    assert job.status not in (None, 0), job.output
    assert not job.left
