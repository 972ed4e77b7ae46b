"""The life of a communicator; the assertions are in the program."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_life(mpirun: Callable[..., str], n: int) -> None:
    mpirun(n, "ranks_life.py", timeout=120)


@pytest.mark.parametrize(
    "ending",
    [
        "return",
        "finalize",
        "exit",
        "hook",
        "early hook",
        "persistent",
        "collective",
        "duplicate",
        "thread",
        "fork",
        "multiprocessing",
    ],
)
def test_the_end(mpirun: Callable[..., str], ending: str) -> None:
    text = mpirun(2, "ranks_end.py", ending, timeout=60)
    assert not re.search("Traceback|Error|Exception|Warning", text)
