"""An exception on one rank, in user code: its traceback, and the end of the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("runner", ["mpi4py", "uzipmpi"])
@pytest.mark.parametrize("name", ["Recv", "Allreduce", "Irecv", "Iallreduce", "Alltoall_init"])
def test_rank_raises(end_of_job: Callable[..., Any], runner: str, name: str) -> None:
    job = end_of_job(2, "-m", runner, "ranks_raising.py", name, timeout=20)
    assert "RuntimeError: a user's error" in job.output, job.output
    assert "went on" not in job.output
    assert job.status not in (None, 0)
    assert not job.left
