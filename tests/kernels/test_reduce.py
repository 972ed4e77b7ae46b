"""Folds and conversions against NumPy and ml_dtypes, bit for bit, on every SIMD path."""

from __future__ import annotations

import ctypes
import itertools
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from samples import FLOATS

from uzipmpi.kernels import reduce
from uzipmpi.typing import DType, Tensor

pytestmark = pytest.mark.usefixtures("simd")

Array = npt.NDArray[Any]

SMALL = [dtype for dtype in FLOATS if dtype.itemsize <= 2]
FP8 = [dtype for dtype in FLOATS if dtype.itemsize == 1]
BLOCK = 2048  # values that reduce_cpu.cpp folds at once
QUIET_NAN = {
    DType.BFLOAT16: 0x7FC0,
    DType.FLOAT16: 0x7E00,
    DType.FLOAT32: 0x7FC00000,
    DType.FLOAT64: 0x7FF8000000000000,
    DType.FLOAT8_E4M3FN: 0x7F,
    DType.FLOAT8_E5M2: 0x7E,
}
# Words of float32 near and on the ties of every smaller type.
LOW_WORDS = (0, 1, 0x7FFF, 0x8000, 0x8001, 0x0FFF, 0x1000, 0x1001, 0x3000, 0xFFFF)


def words(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def from_words(values: Any, dtype: DType) -> Array:
    return np.asarray(values, np.uint64).astype(f"u{dtype.itemsize}").view(dtype.numpy)


def ordered(op: str, a: Array, b: Array) -> Array:
    """NumPy's minimum or maximum, with -0 below +0."""
    result: Array = (np.minimum if op == "min" else np.maximum)(a, b)
    negative = [np.signbit(a), np.signbit(b)]
    is_negative = np.any(negative, axis=0) if op == "min" else np.all(negative, axis=0)
    zeros = (a == 0) & (b == 0)
    return np.where(zeros, np.where(is_negative, -0.0, 0.0), result).astype(result.dtype)


def oracle(op: str, arrays: Sequence[Array], divisor: int = 1) -> Array:
    """Return the words of the result, step by step in NumPy."""
    dtype = DType.of(arrays[0].dtype)
    wide = np.float64 if dtype is DType.FLOAT64 else np.float32
    with np.errstate(all="ignore"):
        result = arrays[0].astype(wide)
        for array in arrays[1:]:
            other = array.astype(wide)
            if op == "sum":
                result = result + other
            elif op == "prod":
                result = result * other
            else:
                result = ordered(op, result, other)
        result = result / wide(divisor)
        rounded = words(result.astype(dtype.numpy))
    return np.where(np.isnan(result), rounded.dtype.type(QUIET_NAN[dtype]), rounded)


def folded(op: str, arrays: Sequence[Array], divisor: int = 1) -> Array:
    out = np.full_like(arrays[0], 1)
    reduce.fold(op, [Tensor.of(array) for array in arrays], Tensor.of(out), divisor)
    return words(out)


def patterns(dtype: DType, count: int, seed: int) -> Array:
    """Random bit patterns: NaN, infinities and subnormals among them."""
    return from_words(np.random.default_rng(seed).integers(0, 2**64, count, np.uint64), dtype)


def specials(dtype: DType) -> Array:
    """Zeros, the smallest and largest of each kind, infinities and NaN of several payloads."""
    bits = 8 * dtype.itemsize
    mantissa_bits = {DType.BFLOAT16: 7, DType.FLOAT16: 10, DType.FLOAT32: 23, DType.FLOAT64: 52}
    tiny = 1 << mantissa_bits[dtype]
    infinity = (1 << (bits - 1)) - tiny
    positive = [0, 1, tiny - 1, tiny, infinity - 1, infinity, infinity + 1, infinity + tiny // 2]
    positive += words(np.array([1, 1.5, 3], dtype.numpy)).tolist()
    return from_words([word | sign << (bits - 1) for word in positive for sign in (0, 1)], dtype)


def pairs(values: Array) -> tuple[Array, Array]:
    """Every value with every other and with itself."""
    return np.repeat(values, values.size), np.tile(values, values.size)


@pytest.mark.parametrize("op", reduce.OPS)
@pytest.mark.parametrize("dtype", FP8)
def test_every_pair_of_8_bit_values(dtype: DType, op: str) -> None:
    arrays = pairs(from_words(range(256), dtype))
    np.testing.assert_array_equal(folded(op, arrays), oracle(op, arrays))


@pytest.mark.parametrize("op", reduce.OPS)
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_every_16_bit_value(dtype: DType, op: str) -> None:
    rng = np.random.default_rng(5)
    arrays = [from_words(np.arange(65536), dtype)]
    arrays += [from_words(rng.permutation(65536), dtype) for _ in range(2)]
    for n_inputs, divisor in ((1, 1), (2, 1), (3, 1), (3, 3)):
        inputs = arrays[:n_inputs]
        np.testing.assert_array_equal(
            folded(op, inputs, divisor), oracle(op, inputs, divisor), f"{n_inputs} {divisor}"
        )


@pytest.mark.parametrize("op", reduce.OPS)
@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype.itemsize > 1])
def test_every_pair_of_special_values(dtype: DType, op: str) -> None:
    arrays = pairs(specials(dtype))
    np.testing.assert_array_equal(folded(op, arrays), oracle(op, arrays))


@pytest.mark.parametrize("count", [0, 1, 7, 33, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("dtype", FLOATS)
def test_counts_inputs_and_divisors(dtype: DType, count: int) -> None:
    for op, n_inputs in itertools.product(reduce.OPS, (1, 2, 5)):
        arrays = [patterns(dtype, count, seed) for seed in range(n_inputs)]
        for divisor in (1, 7):
            np.testing.assert_array_equal(
                folded(op, arrays, divisor), oracle(op, arrays, divisor), f"{op} {n_inputs}"
            )


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_output_may_be_any_input(dtype: DType) -> None:
    arrays = [patterns(dtype, 2 * BLOCK + 3, seed) for seed in range(3)]
    expected = oracle("sum", arrays)
    for place in range(3):
        tensors = [Tensor.of(array.copy()) for array in arrays]
        reduce.fold("sum", tensors, tensors[place])
        np.testing.assert_array_equal(words(tensors[place].array), expected)
        for other in {0, 1, 2} - {place}:
            assert tensors[other].memory.tobytes() == arrays[other].tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_memory_at_any_address(dtype: DType) -> None:
    arrays = [patterns(dtype, 101, seed) for seed in range(2)]
    room = np.zeros((3, arrays[0].nbytes + 3), np.uint8)
    tensors = [
        Tensor(memory[shift:][: arrays[0].nbytes], dtype) for shift, memory in enumerate(room, 1)
    ]
    for tensor, array in zip(tensors, arrays, strict=False):
        tensor.memory[:] = array.view(np.uint8)
    reduce.fold("sum", tensors[:2], tensors[2])
    assert tensors[2].memory.tobytes() == oracle("sum", arrays).tobytes()
    assert room[2, :3].tobytes() == bytes(3)
    assert not room[2, 3 + arrays[0].nbytes :].any()


def test_folds_from_the_first_input_to_the_last() -> None:
    big, one, minus_big = (np.array([value], np.float32) for value in (2**25, 1, -(2**25)))
    assert folded("sum", [big, one, minus_big]).view(np.float32) == 0
    assert folded("sum", [big, minus_big, one]).view(np.float32) == 1


def test_rounds_once() -> None:
    """256 + 1 is 256 in bfloat16: rounding each step would lose every one."""
    arrays = [np.array([value], DType.BFLOAT16.numpy) for value in (256, 1, 1, 1, 1)]
    assert folded("sum", arrays).view(DType.BFLOAT16.numpy) == 260


def test_divides_before_it_rounds() -> None:
    """The sum of the largest float16 values is an infinity, their average is not."""
    largest = np.array([65504], np.float16)
    assert folded("sum", [largest, largest]).view(np.float16) == np.inf
    assert folded("sum", [largest, largest], divisor=2).view(np.float16) == 65504


@contextmanager
def flush_to_zero() -> Iterator[None]:
    """Set FTZ and DAZ in this thread's MXCSR, as some numerical libraries do."""
    libm = ctypes.CDLL("libm.so.6")
    environment = (ctypes.c_uint32 * 8)()
    assert libm.fegetenv(environment) == 0
    before = environment[7]
    environment[7] = before | 0x8040
    libm.fesetenv(environment)
    try:
        yield
    finally:
        environment[7] = before
        libm.fesetenv(environment)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="MXCSR is an x86-64 register")
def test_the_callers_floating_point_environment_has_no_influence() -> None:
    subnormal = np.full(9, 2**-140, np.float32)
    expected = folded("sum", [subnormal, subnormal])
    assert expected.view(np.float32)[0] == np.float32(2**-139)
    out = Tensor.of(np.empty_like(subnormal))
    inputs = [Tensor.of(subnormal)] * 2
    doubled = np.empty_like(subnormal)
    with flush_to_zero():
        reduce.fold("sum", inputs, out)
        np.add(subnormal, subnormal, out=doubled)
    assert not doubled.any(), "the environment was not in force after the fold"
    np.testing.assert_array_equal(words(out.array), expected)


@pytest.mark.parametrize("dtype", SMALL)
def test_widen_is_exact(dtype: DType) -> None:
    every = from_words(range(1 << (8 * dtype.itemsize)), dtype)
    wide = np.empty(every.size, np.float32)
    reduce.widen(Tensor.of(every), wide)
    expected = every.astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(wide), nan)
    np.testing.assert_array_equal(words(wide)[~nan], words(expected)[~nan])


@pytest.mark.parametrize("dtype", SMALL)
def test_narrow_rounds_as_ml_dtypes_does(dtype: DType) -> None:
    high = np.arange(65536, dtype=np.uint32) << 16
    values = np.concatenate([high | low for low in LOW_WORDS]).view(np.float32)
    out = Tensor.of(np.empty(values.size, dtype.numpy))
    reduce.narrow(values, out)
    np.testing.assert_array_equal(words(out.array), narrowed(values, dtype))


def narrowed(values: Array, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        rounded = words(values.astype(dtype.numpy))
    return np.where(np.isnan(values), rounded.dtype.type(QUIET_NAN[dtype]), rounded)


def test_refuses_bytes() -> None:
    integers = Tensor.of(np.arange(4))
    with pytest.raises(TypeError, match="float type to fold, found bytes"):
        reduce.fold("sum", [integers, integers], integers)


def test_refuses_tensors_that_do_not_fit_together() -> None:
    a, b, half = (Tensor.of(np.zeros(8, kind)) for kind in (np.float32, np.float32, np.float16))
    with pytest.raises(TypeError, match="inputs of FLOAT32 as the output is, found FLOAT16"):
        reduce.fold("sum", [a, half], b)
    with pytest.raises(ValueError, match="inputs of 8 values, found 7"):
        reduce.fold("sum", [a, a[:7]], b)
    with pytest.raises(ValueError, match="at least one input"):
        reduce.fold("sum", [], b)
    with pytest.raises(ValueError, match="found a partial overlap"):
        reduce.fold("sum", [a[1:8], b[:7]], a[:7])


def test_refuses_unknown_operators_and_divisors() -> None:
    a = Tensor.of(np.zeros(8, np.float32))
    with pytest.raises(ValueError, match="sum, prod, min, max, found 'mean'"):
        reduce.fold("mean", [a], a)
    with pytest.raises(ValueError, match="divisor of at least 1"):
        reduce.fold("sum", [a], a, divisor=0)


def test_refuses_memory_it_may_not_write() -> None:
    a = Tensor.of(np.zeros(8, np.float32))
    a.memory.flags.writeable = False
    with pytest.raises((BufferError, ValueError), match=r"writable|read-only"):
        reduce.fold("sum", [a], a)


def test_conversions_refuse_other_types_and_counts() -> None:
    wide = np.zeros(8, np.float32)
    with pytest.raises(TypeError, match="8- or 16-bit float type, found FLOAT32"):
        reduce.widen(Tensor.of(wide), wide)
    with pytest.raises(TypeError, match="8- or 16-bit float type, found BYTES"):
        reduce.narrow(wide, Tensor.of(np.zeros(8, np.int8)))
    half = Tensor.of(np.zeros(7, np.float16))
    with pytest.raises(ValueError, match="expected 28 bytes for 7 values, found 32"):
        reduce.widen(half, wide)
    with pytest.raises(ValueError, match="expected 28 bytes for 7 values, found 32"):
        reduce.narrow(wide, half)
