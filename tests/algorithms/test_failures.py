"""Faults on one rank reach others as errors, never as a hang or as wrong values."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_damaged_message(mpirun: Callable[..., str], n: int) -> None:
    mpirun(n, "ranks_failures.py", timeout=120)
