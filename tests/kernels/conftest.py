"""Makes ``samples`` importable for the tests beside it, and leaves the SIMD path as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from uzipmpi.kernels import codec

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=codec.SIMD_PATHS)
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force each SIMD path of this machine in turn."""
    before = codec.simd_path()
    codec.force_simd(request.param)
    yield request.param
    codec.force_simd(before)
