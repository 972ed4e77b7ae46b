"""Random choices that ranks share, and values to move that any rank can make again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from uzipmpi.typing import DType

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
from samples import PATTERNS

Array = npt.NDArray[Any]
T = TypeVar("T")

FLOATS = tuple(dtype.numpy.name for dtype in DType if dtype is not DType.BYTES)
INTEGERS = ("uint8", "int32", "int64")
VERBOSE = bool(os.environ.get("SOAK_VERBOSE"))
POOL_BYTES = 1 << 18
# 33 and 34 floats are a little less than a head, and as many bytes.
SPECIAL_COUNTS = (0, 0, 1, 2, 33, 34, 35, 1023, 1024, 1025, 8192, 8193)


class Draw:
    """Random choices: the same for everybody who gives the same words."""

    def __init__(self, *words: int) -> None:
        self.words = words
        self._generator = np.random.default_rng(words)

    def below(self, n: int) -> int:
        """Return one of 0 .. n-1."""
        return int(self._generator.integers(n))

    def chance(self, probability: float) -> bool:
        """Return True that often."""
        return bool(self._generator.random() < probability)

    def among(self, choices: Sequence[T]) -> T:
        """Return one of some."""
        return choices[self.below(len(choices))]

    def order(self, items: Sequence[T]) -> list[T]:
        """Return them in another order."""
        return [items[place] for place in self._generator.permutation(len(items))]

    def size(self, largest: int) -> int:
        """Return a number up to ``largest``, all orders of magnitude alike."""
        return int(2 ** (self._generator.random() * np.log2(largest + 1))) - 1

    def count(self, dtype: str, most_bytes: int) -> int:
        """Return how many values to move."""
        most = max(most_bytes // np.dtype(dtype).itemsize, 1)
        if self.chance(0.25):
            return min(self.among(SPECIAL_COUNTS), most)
        return self.size(most)

    def dtype(self) -> str:
        """Return the name of a data type, a float five times of six."""
        return self.among(FLOATS) if self.chance(5 / 6) else self.among(INTEGERS)


class Pool:
    """Bytes of every pattern and data type, the same on all ranks, from which values are cut."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self._bytes: dict[tuple[str, str], Array] = {}
        for dtype in (*FLOATS, *INTEGERS):
            count = POOL_BYTES // np.dtype(dtype).itemsize
            if dtype in INTEGERS:
                integers = generator.integers(0, 256, POOL_BYTES, np.uint8)
                self._bytes[dtype, "integers"] = integers
                continue
            for name, pattern in PATTERNS.items():
                self._bytes[dtype, name] = pattern(generator, DType.of(dtype), count)

    def patterns(self, dtype: str) -> list[str]:
        """Return the names of the patterns of a data type."""
        return [name for of, name in self._bytes if of == dtype]

    def cut(self, values: Values) -> Array:
        """Return an array of some values, for the caller to keep."""
        source = self._bytes[values.dtype, values.pattern].view(np.dtype(values.dtype))
        return np.take(source, np.arange(values.start, values.start + values.count), mode="wrap")


@dataclass(frozen=True)
class Values:
    """What a message or a rank's part of a collective holds."""

    dtype: str
    pattern: str
    start: int
    count: int

    @classmethod
    def drawn(cls, draw: Draw, pool: Pool, dtype: str, count: int) -> Values:
        """Draw where to cut ``count`` values."""
        patterns = pool.patterns(dtype)
        # Half of what real programs send is of one kind.
        pattern = "normal" if draw.chance(0.4) and "normal" in patterns else draw.among(patterns)
        return cls(dtype, pattern, draw.below(POOL_BYTES), count)

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.count * np.dtype(self.dtype).itemsize


def as_bytes(array: Array) -> Array:
    """Return the memory of an array."""
    return array.reshape(-1).view(np.uint8)


@contextmanager
def telling(what: object) -> Iterator[None]:
    """Say of an error what was being done; with ``VERBOSE`` before it is."""
    if VERBOSE:
        print(what, flush=True)
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"failed: {what}") from error


def check(holds: bool, expected: str) -> None:
    """Raise if what must hold does not."""
    if not holds:
        raise AssertionError(f"expected {expected}")


def check_same(found: Array, expected: Array, what: str) -> None:
    """Raise if two arrays differ in a bit, and say where."""
    a, b = as_bytes(found), as_bytes(expected)
    check(a.size == b.size, f"{what}: {b.size} bytes, found {a.size}")
    if not np.array_equal(a, b):
        places = np.flatnonzero(a != b)
        raise AssertionError(
            f"{what}: {places.size} of {a.size} bytes differ, from byte {places[0]} to {places[-1]}"
        )
