"""What ``import uzipmpi`` offers: names, frames without MPI, and the report."""

from __future__ import annotations

import doctest
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import uzipmpi
from uzipmpi import config, cuda_aware, frames


def test_every_name_exists() -> None:
    for name in uzipmpi.__all__:
        assert getattr(uzipmpi, name) is not None
    assert set(dir(uzipmpi)) == set(uzipmpi.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = uzipmpi.nothing  # type: ignore[attr-defined]


def test_frames_do_not_initialise_mpi() -> None:
    program = (
        "import sys, numpy, uzipmpi;"
        "frame = uzipmpi.compress(numpy.zeros(9, 'f4'));"
        "assert not uzipmpi.decompress(frame).any();"
        "assert 'mpi4py.MPI' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
)
@pytest.mark.parametrize("codec", ["auto", "tier", "ans", "raw"])
def test_compress_and_decompress(dtype: str, codec: str) -> None:
    values = np.random.default_rng(0).normal(0, 0.02, 10_001).astype(dtype)
    frame = uzipmpi.compress(values, codec, verify=True)
    header = uzipmpi.frame_info(frame)
    assert (header.count, header.frame_bytes, header.dtype.numpy) == (
        10_001,
        frame.size,
        values.dtype,
    )
    assert frame.size <= uzipmpi.compress_bound(10_001, dtype)
    assert uzipmpi.decompress(frame, verify=True).tobytes() == values.tobytes()
    out = np.empty((73, 137), dtype)
    assert uzipmpi.decompress(frame.tobytes(), out) is out
    assert out.tobytes() == values.tobytes()
    room = np.empty(uzipmpi.compress_bound(10_001, dtype), np.uint8)
    assert uzipmpi.compress(values, codec, room, verify=True).base is room


def test_wrong_frames_and_arrays() -> None:
    frame = uzipmpi.compress(np.zeros(10, ml_dtypes.bfloat16))
    with pytest.raises(uzipmpi.FormatError):
        uzipmpi.decompress(frame[:-1])
    with pytest.raises(uzipmpi.FormatError):
        uzipmpi.decompress(frame, np.zeros(9, ml_dtypes.bfloat16))
    with pytest.raises(ValueError, match="contiguous"):
        uzipmpi.compress(np.zeros(10)[::2])
    with pytest.raises(ValueError, match=r"(?i)out|small|bytes"):
        uzipmpi.compress(np.zeros(10), out=np.zeros(3, np.uint8))


def test_the_report() -> None:
    command = [sys.executable, "-m", "uzipmpi", "info"]
    text = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    for word in (
        uzipmpi.__version__,
        "CUDA-aware",
        "GPUs",
        "tier",
        "SIMD",
        "min_bytes",
    ):
        assert word in text
    assert cuda_aware.cuda_aware()[1]


@pytest.mark.parametrize("module", ["uzipmpi.comm", frames, config], ids=str)
def test_examples_in_the_documentation(module: object) -> None:
    if isinstance(module, str):
        __import__(module)
        module = sys.modules[module]
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted > 2
    assert results.failed == 0


def test_what_is_no_array_is_named() -> None:
    with pytest.raises(TypeError, match="expected a NumPy array, found list"):
        uzipmpi.compress([1.0, 2.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["raw", "tier", "ans"])
def test_memory_is_not_taken_for_a_count_that_the_frame_cannot_hold(codec: str) -> None:
    values = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    frame = uzipmpi.compress(values, codec).copy()
    frame[8:16] = np.frombuffer(np.uint64(1 << 40).tobytes(), np.uint8)  # the count
    with pytest.raises(uzipmpi.FormatError, match="sum of the sections"):
        uzipmpi.decompress(frame)
    with pytest.raises(uzipmpi.FormatError, match=r"expected \d+ bytes, found 64"):
        uzipmpi.decompress(uzipmpi.compress(values, codec)[:64])
