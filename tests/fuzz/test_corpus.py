"""The fuzzers' frames through the extension and the reference: those that once failed among them.

``make fuzz`` looks for new ones. A frame that made a decoder fail goes to ``regressions/``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from uzipmpi.errors import FormatError
from uzipmpi.kernels import codec, reference
from uzipmpi.typing import Bytes, DType, Tensor

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus" / "decode").iterdir())
REGRESSIONS = sorted((HERE / "regressions").glob("*.frame"))
MAX_BYTES = 1 << 22


def by_codec(frame: Bytes) -> Bytes | None:
    """Return the values as bytes, None if the frame is rejected."""
    try:
        header = codec.info(frame)
        if header.nbytes > MAX_BYTES:
            pytest.skip(f"a frame of {header.nbytes} bytes of values")
        out = Tensor(np.full(header.nbytes, 0xA5, np.uint8), header.dtype)
        codec.decode(frame, out, verify=header.checksum)
    except FormatError:
        return None
    return out.memory


def by_reference(frame: Bytes) -> Bytes | None:
    try:
        return reference.decode(frame, verify=reference.parse(frame).has_checksum).memory
    except FormatError:
        return None


@pytest.mark.parametrize("path", CORPUS + REGRESSIONS, ids=lambda path: path.name)
def test_frame_means_the_same_to_the_reference(path: Path) -> None:
    frame = np.frombuffer(path.read_bytes(), np.uint8)
    before = codec.simd_path()
    found = []
    try:
        for simd in codec.SIMD_PATHS:
            codec.force_simd(simd)
            found.append(by_codec(frame))
    finally:
        codec.force_simd(before)
    expected = by_reference(frame)
    for values in found:
        if expected is None or values is None:
            assert values is expected
        else:
            assert np.array_equal(values, expected)


def test_corpus_reaches_the_decoders() -> None:
    """A good part of it is accepted, with each codec and layout, so that mutations start deep."""
    accepted = set()
    for path in CORPUS:
        frame = np.frombuffer(path.read_bytes(), np.uint8)
        if by_codec(frame) is not None:
            header = codec.info(frame)
            accepted.add((header.dtype, header.codec, header.packed))
    floats = [dtype for dtype in DType if dtype is not DType.BYTES]
    assert accepted >= {(dtype, "ans", False) for dtype in floats}
    assert accepted >= {(dtype, "tier", packed) for dtype in floats for packed in (False, True)}
