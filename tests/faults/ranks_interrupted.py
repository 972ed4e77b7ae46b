"""Rank 0 is interrupted while it waits for the last rank.

ranks_interrupted.py self | mpirun, an operation, seconds: who gets the signal, what rank 0 is in,
and how long the last rank does not come
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from mpi4py import MPI
from operations import Operations

import uzipmpi

SOON = 3.0


def main() -> None:
    target, name, patience = sys.argv[1:]
    comm = uzipmpi.Comm(MPI.COMM_WORLD, compress="always", min_bytes=0, chunk_bytes=8192)
    operations = Operations(comm)
    operations.run(name)
    comm.Barrier()
    if comm.rank != 0:
        time.sleep(float(patience))
        operations.run(name)
        return
    pid = os.getpid() if target == "self" else mpirun()
    timer = threading.Timer(0.3, os.kill, (pid, signal.SIGINT))
    timer.start()
    started = time.monotonic()
    try:
        operations.run(name)
        timer.join()
    except KeyboardInterrupt:
        seconds = time.monotonic() - started
        os.write(1, f"interrupted {'soon' if seconds < SOON else f'{seconds} s later'}\n".encode())
        raise
    os.write(1, b"went on\n")


def mpirun() -> int:
    """Return the process that started the job: MPICH has one of its own in between."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text().startswith("hydra_pmi"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


if __name__ == "__main__":
    main()
