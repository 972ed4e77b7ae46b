"""Transfers on 1 to 3 ranks, and messages past 2^31 bytes."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

LARGE_NEEDS = 12 << 30


@pytest.mark.parametrize("n", [1, 2, 3])
def test_transfers(mpirun: Callable[..., str], n: int) -> None:
    mpirun(n, "ranks_transport.py")


def test_past_2_31_bytes(mpirun: Callable[..., str]) -> None:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if available < LARGE_NEEDS:
        pytest.skip(f"needs {LARGE_NEEDS >> 30} GiB of free memory, found {available >> 30}")
    mpirun(2, "ranks_transport.py", "large")
