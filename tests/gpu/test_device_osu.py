"""The OSU benchmarks with buffers in GPU memory, on the emulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

NAMES = ("latency", "bw", "bibw", "allreduce", "reduce_scatter", "allgather", "alltoall", "bcast")
ENVIRONMENT = {"UZIPMPI_MIN_BYTES": "0"}


@pytest.mark.parametrize("name", NAMES)
def test_validates(mpirun: Callable[..., str], gpu_module: Path, name: str) -> None:
    """What both sides receive is right; Fail would end the program."""
    options = ["-m", "32768:32768", "-i", 2, "-x", 1, "--compress=always", "--transport=mpi-host"]
    if "bw" in name:
        options += ["-W", 2, "--waitall=uzipmpi"]
    output = mpirun(2, "ranks_osu.py", gpu_module, f"osu_{name}", *options, env=ENVIRONMENT)
    row = next(line for line in output.splitlines() if "32768 " in line)
    assert "Pass" in row
    ratio = float(row.split()[-3])
    assert 0.5 < ratio < 0.9, row
