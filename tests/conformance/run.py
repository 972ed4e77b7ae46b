"""Run mpi4py's own test suite through ``python -m uzipmpi``.

Twice: with everything compressed that can be, and with the options' defaults. What is left out, and
why, is in ``excluded.txt``. Used by ``make conformance`` and ``make conformance-full``.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
# The files about buffers, requests, messages, communicators and collectives.
CORE = (
    "cco_buf|cco_vec|cco_nb_buf|cco_nb_vec|cco_pr_buf|cco_pr_vec|cco_obj|p2p_buf|p2p_obj|request"
    "|msgspec|msgzero|subclass|comm|objmodel|pickle|attributes|exceptions|errhandler|status|threads"
)
MODES = {
    "all compressed": {"UZIPMPI_COMPRESS": "always", "UZIPMPI_MIN_BYTES": "0"},
    "defaults": {},
}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "UZIPMPI_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    # More ranks than cores: who waits had better sleep (tests/conftest.py).
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "true",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "256",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
FAILURE = re.compile(r"(?:FAIL|ERROR): (\S+ \(\S+\))")
SUMMARY = re.compile(r"Ran (\d+) tests in [\d.]+s")


def main() -> None:
    """Run what the command line asks for; exit with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path, help="mpi4py's folder of tests")
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--full", action="store_true", help="all files, not just the core")
    parser.add_argument("--plain", action="store_true", help="without uzipmpi, nothing excluded")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for each run")
    arguments, options = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # not without the ranks
    if not arguments.full and "-i" not in options:
        options += ["-i", CORE]
    if arguments.plain:
        failed = run(arguments, "mpi4py", "plain", options, {})
    else:
        options += exclusions(arguments.n)
        runs = [run(arguments, "uzipmpi", mode, options, env) for mode, env in MODES.items()]
        failed = any(runs)
    sys.exit(failed)


def exclusions(n: int) -> list[str]:
    """Return the options that leave out what is excluded for this MPI and number of ranks."""
    options = []
    for line in (HERE / "excluded.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, mpi, ranks, _ = line.split(maxsplit=3)
            if mpi in ("any", mpi_name()) and ranks in ("any", str(n)):
                options += ["-x", pattern]
    return options


def mpi_name() -> str:
    """Return which MPI the mpirun of this environment belongs to."""
    version = subprocess.run(
        [BIN / "mpirun", "--version"], capture_output=True, text=True, check=True
    )
    return "mpich" if "HYDRA" in version.stdout else "openmpi"


def run(
    arguments: argparse.Namespace,
    runner: str,
    mode: str,
    options: list[str],
    env: dict[str, str],
) -> bool:
    """Run the suite once and report; return whether anything failed."""
    label = ["-prepend-rank"] if mpi_name() == "mpich" else ["--output", "tag"]
    command = [BIN / "mpirun", *label, "-np", arguments.n, sys.executable, "-m", runner]
    command += [HERE / "suite.py", "-v", *options]
    # For spawned workers too, which are given no arguments.
    paths = [str(arguments.suite.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    started = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        job = subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, **ENVIRONMENT, **env, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = f"exit status {job.wait(arguments.timeout)}"
        except subprocess.TimeoutExpired:
            status = f"timeout after {arguments.timeout:.0f} s"
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGTERM)  # mpirun ends its ranks
                job.wait(30)
        output.seek(0)
        text = output.read()
    return report(mode, status, text, time.monotonic() - started)


def report(mode: str, status: str, text: str, seconds: float) -> bool:
    """Print what one run gave; return whether it failed."""
    failures = Counter(FAILURE.findall(text))
    counts = SUMMARY.findall(text)
    failed = status != "exit status 0" or bool(failures) or not counts
    print(f"{mode}: {status}, {'+'.join(counts) or 'no'} tests on the ranks, {seconds:.0f} s")
    for name, n_ranks in failures.items():
        print(f"  failed on {n_ranks}: {name}")
    if failed:
        log = Path(tempfile.gettempdir()) / f"uzipmpi-conformance-{mode.replace(' ', '-')}.txt"
        log.write_text(text)
        print(f"  output: {log}\n" + "\n".join(text.splitlines()[-40:]))
    return failed


if __name__ == "__main__":
    main()
