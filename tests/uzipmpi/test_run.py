"""``python -m uzipmpi``: unmodified programs, how they end, and the table over ranks."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

COMPRESSING = {"UZIPMPI_COMPRESS": "always", "UZIPMPI_MIN_BYTES": "1024"}
PROGRAM = Path(__file__).with_name("program.py")


def python(*words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run python in a process of its own."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)


def unlabelled(text: str) -> str:
    """Return what ranks wrote, without the labels that mpirun puts before it."""
    return re.sub(r"\[[\d,]+\](<std\w+>: ?| )", "", text)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_program_is_wrapped(mpirun: Callable[..., str], n: int) -> None:
    env = {**COMPRESSING, "UZIPMPI_STATS": "1"}
    text = mpirun(n, "program.py", "communicate", "-x", env=env, runner="uzipmpi")
    assert "uzipmpi.comm Comm communicate -x __main__" in text
    assert f"uzipmpi: {n} of {n} ranks" in text
    saved = re.search(r"Allreduce .* (\S+)%", unlabelled(text))
    assert saved is not None
    assert (float(saved[1]) > 40) == (n > 1)


def test_mpi_starts_as_the_program_says(mpirun: Callable[..., str]) -> None:
    text = mpirun(2, "program.py", "initialise", env=COMPRESSING, runner="uzipmpi")
    assert text.count("uzipmpi.comm True") == 2
    text = mpirun(2, "program.py", "serialise", env=COMPRESSING, runner="uzipmpi")
    assert text.count("level True") == 2
    assert text.count("MPI_THREAD_MULTIPLE: nothing is compressed") == 1


@pytest.mark.parametrize(("ending", "status"), [("fail", 1), ("leave", 7)])
def test_one_rank_s_failure_ends_all(mpirun: Callable[..., str], ending: str, status: int) -> None:
    started = time.monotonic()
    env = {"UZIPMPI_STATS": "1"}
    text = mpirun(3, "program.py", ending, runner="uzipmpi", status=status, env=env)
    assert time.monotonic() - started < 30
    assert "ranks" not in text
    if ending == "fail":
        assert "RuntimeError: on purpose" in text


def test_tracebacks_are_python_s() -> None:
    expected, found = (python(*words, PROGRAM, "fail").stderr for words in ([], ["-m", "uzipmpi"]))
    assert "in fail" in expected
    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (("-c", "import sys; print(sys.argv, __name__)", "a", "-b"), ""),
        (("-", "a"), "import sys; print(sys.argv, __name__)"),
        (("-m", "site", "--user-base"), ""),
        (("-c", "import sys; sys.exit(5)"), ""),
        (("-c", "import sys; sys.exit('why')"), ""),
    ],
)
def test_ways_to_name_a_program(words: tuple[str, ...], stdin: str) -> None:
    expected, found = (python(*start, *words, stdin=stdin) for start in ((), ("-m", "uzipmpi")))
    assert (found.stdout, found.stderr, found.returncode) == (
        expected.stdout,
        expected.stderr,
        expected.returncode,
    )


def test_mpi_is_not_started_for_who_does_not_use_it() -> None:
    program = "import sys; assert 'mpi4py.MPI' not in sys.modules"
    assert python("-m", "uzipmpi", "-c", program).returncode == 0


def test_rc_options() -> None:
    program = "from mpi4py import MPI; print(MPI.Is_initialized())"
    found = python("-m", "uzipmpi", "-rc", "initialize=False", "-c", program)
    assert found.stdout == "False\n", found.stderr


def test_usage() -> None:
    for option in ("-h", "--help"):
        assert "usage: mpirun" in python("-m", "uzipmpi", option).stdout
    assert python("-m", "uzipmpi", "--version").stdout.startswith("uzipmpi ")
    for words in ([], ["--nonsense", "x.py"], ["-m"]):
        found = python("-m", "uzipmpi", *words)
        assert found.returncode == 1
        assert "usage" in found.stderr
    wrong = python("-m", "uzipmpi", "--nonsense", "x.py").stderr
    assert wrong.startswith("unknown option --nonsense\n")
    assert "usage: mpirun -np N python -m uzipmpi" in wrong
    missing = python("-m", "uzipmpi", "nothing.py")
    assert missing.returncode == 1
    assert "nothing.py" in missing.stderr


@pytest.mark.parametrize("ending", ["return", "finalize", "late", "fork"])
def test_table_over_ranks(mpirun: Callable[..., str], ending: str) -> None:
    text = mpirun(3, "ranks_summary.py", ending, env={"UZIPMPI_STATS": "1"})
    assert text.count("uzipmpi: 3 of 3 ranks") == 1
    calls = re.findall(r"^(\w+) +(\d+) ", unlabelled(text), re.MULTILINE)
    assert dict(calls) == {"Allreduce": "3", "Bcast": "3", "Sendrecv": "6"}
    assert "3 smaller than min_bytes" in text


def test_a_rank_that_does_not_report_is_not_waited_for(mpirun: Callable[..., str]) -> None:
    text = mpirun(3, "ranks_summary.py", "silent", env={"UZIPMPI_STATS": "1"})
    assert "uzipmpi: 2 of 3 ranks; nothing from rank 2" in text


@pytest.mark.parametrize(("ending", "status"), [("raise", 1), ("status", 3)])
def test_no_table_when_aborted(mpirun: Callable[..., str], ending: str, status: int) -> None:
    started = time.monotonic()
    text = mpirun(3, "ranks_summary.py", ending, env={"UZIPMPI_STATS": "1"}, status=status)
    assert "ranks" not in text.replace("ranks_summary", "")
    assert time.monotonic() - started < 30


def test_no_table_unless_asked_for(mpirun: Callable[..., str]) -> None:
    assert "operation" not in mpirun(2, "ranks_summary.py", "return", env={"UZIPMPI_STATS": "0"})
