"""The life of a communicator; the assertions are in the program."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_life(mpirun: Callable[..., str], n: int) -> None:
    mpirun(n, "ranks_life.py", timeout=120)
