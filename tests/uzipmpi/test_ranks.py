"""The communicator on several ranks; the assertions are in the programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize("algorithm", ["auto", "whole", "split", "chunked"])
def test_wire(mpirun: Callable[..., str], algorithm: str) -> None:
    mpirun(2, "ranks_wire.py", timeout=120, env={"UZIPMPI_P2P": algorithm})


@pytest.mark.parametrize("compress", ["always", "never"])
@pytest.mark.parametrize("n", [1, 2])
def test_flavours(mpirun: Callable[..., str], n: int, compress: str) -> None:
    mpirun(n, "ranks_flavours.py", compress, timeout=120)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_probe(mpirun: Callable[..., str], n: int) -> None:
    mpirun(n, "ranks_probe.py", timeout=120)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_requests(mpirun: Callable[..., str], n: int) -> None:
    mpirun(n, "ranks_requests.py", timeout=120)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_persistent(mpirun: Callable[..., str], n: int) -> None:
    mpirun(n, "ranks_persistent.py", timeout=120)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_comm(mpirun: Callable[..., str], n: int) -> None:
    mpirun(n, "ranks_comm.py", timeout=120)


@pytest.mark.parametrize("compress", ["auto", "always", "never"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_collectives(mpirun: Callable[..., str], n: int, compress: str) -> None:
    mpirun(n, "ranks_collectives.py", timeout=120, env={"UZIPMPI_COMPRESS": compress})


@pytest.mark.parametrize("compress", ["auto", "always"])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_begun_collectives(mpirun: Callable[..., str], n: int, compress: str) -> None:
    mpirun(n, "ranks_begun.py", timeout=120, env={"UZIPMPI_COMPRESS": compress})


@pytest.mark.parametrize("form", ["blocking", "nonblocking", "persistent"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_ranks_that_disagree(mpirun: Callable[..., str], n: int, form: str) -> None:
    mpirun(n, "ranks_disagree.py", form, timeout=90)


def test_more_than_2_31_values(mpirun: Callable[..., str]) -> None:
    if available_memory() < 12 << 30:
        pytest.skip("needs 12 GiB of free memory")
    mpirun(1, "ranks_large.py", timeout=240)


def available_memory() -> int:
    """Return the bytes of memory that Linux says a new program may use."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
