"""Point to point on 1 to 8 ranks, and what is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from uzipmpi.algorithms.sendrecv import Parts
from uzipmpi.errors import FormatError


def test_bits(mpirun: Callable[..., str], n_ranks: int) -> None:
    mpirun(n_ranks, "ranks_sendrecv.py", timeout=120)


@pytest.mark.parametrize(
    ("algorithm", "chunk_bytes", "fixed_stop"),
    [
        ("morse", 64, 0),
        ("chunked", 0, 0),
        ("chunked", -8, 0),
        ("whole", 65, 0),
        ("whole", 64, 64),
        ("split", 64, 0),
        ("split", 64, -1),
    ],
)
def test_impossible_parts(algorithm: str, chunk_bytes: int, fixed_stop: int) -> None:
    with pytest.raises(FormatError, match="found"):
        Parts(algorithm, chunk_bytes, fixed_stop)
