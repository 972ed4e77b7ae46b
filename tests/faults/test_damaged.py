"""Frames that are damaged, lost, repeated or out of order reach users as errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("n", "form"),
    [(2, "messages"), (2, "blocking"), (3, "blocking"), (3, "begun"), (3, "persistent")],
)
def test_damaged_frames(mpirun: Callable[..., str], n: int, form: str) -> None:
    mpirun(n, "ranks_damaged.py", form, timeout=60)
