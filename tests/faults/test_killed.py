"""A rank is killed inside an operation: the job ends by itself, soon, and nothing goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

SENDS = ("Send", "Ssend", "Isend", "Send_init", "Sendrecv")
RECEIVES = ("Recv", "Irecv", "Waitall", "MPI.Waitall", "Probe", "Mprobe", "Recv_init")
COLLECTIVES = ("Bcast", "Gather", "Scatter", "Allgather", "Alltoall", "Allreduce", "Reduce")
COLLECTIVES += ("Reduce_scatter",)
NONBLOCKING = tuple(f"I{name.lower()}" for name in COLLECTIVES)
PERSISTENT = tuple(f"{name}_init" for name in COLLECTIVES)


@pytest.mark.parametrize("name", [*SENDS, *RECEIVES, *COLLECTIVES, *NONBLOCKING, *PERSISTENT])
def test_rank_killed(end_of_job: Callable[..., Any], name: str) -> None:
    job = end_of_job(2, "-m", "mpi4py", "ranks_killed.py", name, timeout=30)
    assert f"dying in {name}" in job.output, job.output
    assert "survived" not in job.output
    assert job.status not in (None, 0), job.output
    assert not job.left
