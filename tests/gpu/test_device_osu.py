"""The benchmarks with buffers in GPU memory, on the emulated GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

NAMES = ("latency", "bw", "bibw", "allreduce", "reduce_scatter", "allgather", "alltoall", "bcast")
ENVIRONMENT = {"UZIPMPI_MIN_BYTES": "0"}


@pytest.mark.parametrize("name", NAMES)
def test_validates(mpirun: Callable[..., str], gpu_module: Path, name: str) -> None:
    """What both sides receive is right; Fail would end the program."""
    options = [
        "--device",
        "-m",
        "32768:32768",
        "-i",
        2,
        "-x",
        1,
        "--compress=always",
        "--transport=mpi-host",
    ]
    if "bw" in name:
        options += ["-W", 2, "--waitall=uzipmpi"]
    output = mpirun(2, "ranks_osu.py", gpu_module, f"osu_{name}", *options, env=ENVIRONMENT)
    row = next(line for line in output.splitlines() if "32768 " in line)
    assert "Pass" in row
    ratio = float(row.split()[-3])
    assert 0.5 < ratio < 0.9, row


@pytest.mark.parametrize("figure", ["algorithms", "dtypes", "weights", "limits"])
def test_figures(mpirun: Callable[..., str], gpu_module: Path, tmp_path: Path, figure: str) -> None:
    """What arrives is compared in each; the numbers mean nothing here."""
    file = tmp_path / "figure.json"
    options = ["--mb", "0.03125", "--chunk-mb", "0.0078125", "--rounds", "1"]
    if figure != "weights":
        options += ["--operations", "send"]
    options += ["--json", file]
    mpirun(2, "ranks_osu.py", gpu_module, "gpu_figures", figure, *options, timeout=120)
    record = json.loads(file.read_text())
    assert record["figure"] == figure
    for row in record["rows"]:
        assert (row["ratio"] > 1) == ("raw" in row["label"]), row
    if figure == "algorithms":
        assert 0.2 < record["sent_before_last_coded"]["0.03125"] < 1
