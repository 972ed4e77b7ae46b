"""Collectives on 1 to 8 ranks; the assertions are in the programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("program", ["ranks_reductions.py", "ranks_movement.py"])
def test_bits(mpirun: Callable[..., str], n_ranks: int, program: str) -> None:
    mpirun(n_ranks, program, timeout=120)
