"""Tensors with every kind of bit pattern, and memory that ends where a page may not be touched."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from uzipmpi.typing import Bytes, DType, Tensor

TILE = 1024
FLOATS = [dtype for dtype in DType if dtype is not DType.BYTES]
CODECS = ("tier", "ans", "raw")
# Around tiles, groups of 8 tiles and blocks of 4, 8 and 16.
COUNTS = sorted({0, 1, 2, 7, *(TILE * k + d for k in (1, 2, 4, 8, 9, 16, 17) for d in (-1, 0, 1))})

Generator = np.random.Generator
Pattern = Callable[[Generator, DType, int], Bytes]
EXPONENT_BITS = dict(zip(FLOATS, (8, 5, 8, 11, 4, 5), strict=True))


def as_bytes(words: Any, dtype: DType) -> Bytes:
    """Return unsigned words, the low bits of each, as the bytes of values."""
    return np.asarray(words, np.uint64).astype(f"<u{dtype.itemsize}").view(np.uint8)


def from_fields(sign: Any, symbol: Any, mantissa: Any, dtype: DType) -> Bytes:
    """Return the bytes of values put together from their fields."""
    bits = 8 * dtype.itemsize
    mantissa_bits = np.uint64(bits - 1 - EXPONENT_BITS[dtype])
    words = np.asarray(sign, np.uint64) << np.uint64(bits - 1)
    words = words | np.asarray(symbol, np.uint64) << mantissa_bits
    return as_bytes(
        words | np.asarray(mantissa, np.uint64) % (np.uint64(1) << mantissa_bits), dtype
    )


def normal(generator: Generator, dtype: DType, count: int) -> Bytes:
    """Values that compress."""
    values = generator.normal(0, 0.5, count)
    return (
        values.astype(np.float64 if dtype is DType.FLOAT64 else np.float32)
        .astype(dtype.numpy)
        .view(np.uint8)
    )


def random_bits(generator: Generator, dtype: DType, count: int) -> Bytes:
    """Values that don't: NaNs of every payload among them."""
    return generator.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)


def counting(generator: Generator, dtype: DType, count: int) -> Bytes:
    """The high 16 bits count: all bit patterns of the 8- and 16-bit types, in order."""
    bits = min(16, 8 * dtype.itemsize)
    start = int(generator.integers(1 << bits)) if count < 1 << bits else 0
    words = (start + np.arange(count, dtype=np.uint64)) % np.uint64(1 << bits)
    return as_bytes(words << np.uint64(8 * dtype.itemsize - bits), dtype)


def special(generator: Generator, dtype: DType, count: int) -> Bytes:
    """Zeros and infinities of both signs, subnormals, NaN payloads, largest and smallest values."""
    symbols = generator.choice([0, 0, (1 << EXPONENT_BITS[dtype]) - 1, 1], count)
    mantissas = generator.choice(np.array([0, 0, 1, 2**64 - 1, 1 << 51], np.uint64), count)
    return from_fields(generator.integers(2, size=count), symbols, mantissas, dtype)


def special_exponents(generator: Generator, dtype: DType, count: int) -> Bytes:
    """Powers of two from all over the range: no rest but the sign."""
    symbols = generator.integers(1 << EXPONENT_BITS[dtype], size=count)
    return from_fields(generator.integers(2, size=count), symbols, 0, dtype)


def two_symbols(generator: Generator, dtype: DType, count: int) -> Bytes:
    """Two exponents only, 1 in 50 the rarer one."""
    symbols = (generator.random(count) < 0.02) + (1 << EXPONENT_BITS[dtype] - 1)
    return from_fields(0, symbols, generator.integers(2**62, size=count), dtype)


def wrapped(generator: Generator, dtype: DType, count: int) -> Bytes:
    """Exponents around 0: a window over them passes the end of the alphabet."""
    symbols = generator.binomial(12, 0.5, count).astype(np.int64) - 6
    symbols %= 1 << EXPONENT_BITS[dtype]
    return from_fields(generator.integers(2, size=count), symbols, generator.integers(4), dtype)


def outliers(generator: Generator, dtype: DType, count: int) -> Bytes:
    """Values that compress, 1 in 300 of them anything."""
    values = normal(generator, dtype, count).reshape(count, dtype.itemsize)
    places = generator.random(count) < 1 / 300
    values[places] = random_bits(generator, dtype, int(places.sum())).reshape(-1, dtype.itemsize)
    return values.ravel()


def short_mantissa(generator: Generator, dtype: DType, count: int) -> Bytes:
    """All but the highest byte and a half are zero, as where bfloat16 is held in a wider type."""
    words = np.frombuffer(normal(generator, dtype, count), f"<u{dtype.itemsize}").astype(np.uint64)
    bits = 8 * dtype.itemsize
    keep = np.uint64((1 << bits) - (1 << max(0, bits - 12)))
    return as_bytes(words & keep, dtype)


def zeros(generator: Generator, dtype: DType, count: int) -> Bytes:
    """Zero bits."""
    return np.zeros(count * dtype.itemsize, np.uint8)


def constant(generator: Generator, dtype: DType, count: int) -> Bytes:
    """One value all over, by chance -0."""
    value = generator.choice(np.array([1 << 8 * dtype.itemsize - 1, 0x3F8CCCDD12345678], np.uint64))
    return as_bytes(np.full(count, value, np.uint64), dtype)


def zero_heavy(generator: Generator, dtype: DType, count: int) -> Bytes:
    """Many zeros, at a share that changes from case to case."""
    values = normal(generator, dtype, count).reshape(count, dtype.itemsize)
    values[generator.random(count) < generator.choice([0.1, 0.5, 0.9, 0.999])] = 0
    return values.ravel()


PATTERNS: dict[str, Pattern] = {
    pattern.__name__: pattern
    for pattern in (
        normal,
        random_bits,
        counting,
        special,
        special_exponents,
        two_symbols,
        wrapped,
        outliers,
        short_mantissa,
        zeros,
        constant,
        zero_heavy,
    )
}


def tensor_of(pattern: str, dtype: DType, count: int, seed: int = 0) -> Tensor:
    """Return a tensor of one pattern."""
    return Tensor(PATTERNS[pattern](np.random.default_rng(seed), dtype, count), dtype)


def mixed(patterns: list[str], dtype: DType, count: int, seed: int) -> Tensor:
    """Return a tensor whose tiles follow the patterns in turn."""
    generator = np.random.default_rng(seed)
    tiles = [
        PATTERNS[patterns[tile % len(patterns)]](generator, dtype, min(TILE, count - tile * TILE))
        for tile in range(-(-count // TILE))
    ]
    return Tensor(np.concatenate([*tiles, np.zeros(0, np.uint8)]), dtype)


def tensors(dtype: DType) -> st.SearchStrategy[Tensor]:
    """Draw tensors of one data type: of one pattern, or another in each tile."""
    return st.builds(
        mixed,
        st.lists(st.sampled_from(sorted(PATTERNS)), min_size=1, max_size=4),
        st.just(dtype),
        st.sampled_from(COUNTS) | st.integers(0, 10 * TILE),
        st.integers(0, 2**32),
    )


def guarded(size: int) -> Bytes:
    """Return memory that ends right before a page that may not be touched."""
    pages = -(-size // mmap.PAGESIZE) + 1
    region = np.frombuffer(mmap.mmap(-1, pages * mmap.PAGESIZE), np.uint8)
    end = region.size - mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    fence = ctypes.c_void_p(region.ctypes.data + end)
    if libc.mprotect(fence, ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return region[end - size : end]


def guarded_copy(memory: Bytes) -> Bytes:
    """Return a copy in guarded memory."""
    copy = guarded(memory.size)
    copy[:] = memory
    return copy
