"""Frames of released versions of the format decode to the same bytes forever."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from uzipmpi.kernels import codec, reference
from uzipmpi.typing import Tensor

FRAMES = sorted((Path(__file__).parents[1] / "golden").glob("*.frame"))


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_golden_frame(simd: str, path: Path) -> None:
    frame = np.frombuffer(path.read_bytes(), np.uint8)
    values = np.frombuffer(path.with_suffix(".values").read_bytes(), np.uint8)
    header = reference.parse(frame)
    out = Tensor(np.full(values.size, 0xA5, np.uint8), header.dtype)
    codec.decode(frame, out, verify=header.has_checksum)
    assert np.array_equal(out.memory, values)
    decoded = reference.decode(frame, verify=header.has_checksum)
    assert decoded.dtype is header.dtype
    assert np.array_equal(decoded.memory, values)


def test_golden_frames_cover_the_format() -> None:
    headers = [reference.parse(np.frombuffer(path.read_bytes(), np.uint8)) for path in FRAMES]
    assert {(header.dtype, header.codec) for header in headers if header.codec} >= {
        *((dtype, 1) for dtype in range(1, 7)),
        *((dtype, 2) for dtype in (1, 4, 6)),
    }
    assert {header.menu for header in headers if header.codec == 1} == set(range(8))
    assert all(path.stat().st_size < 4096 for path in FRAMES)
