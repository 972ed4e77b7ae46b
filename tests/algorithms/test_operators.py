"""Operators: which one stands for MPI's, AVG in steps, and functions compiled by Numba."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest
from mpi4py import MPI

from uzipmpi.algorithms import operators
from uzipmpi.algorithms.operators import AVG, MAX, MIN, PROD, SUM, Op, Operator
from uzipmpi.typing import DType, Tensor

Array = npt.NDArray[Any]

FLOATS = [dtype for dtype in DType if dtype is not DType.BYTES]
BLOCK = operators._BLOCK


def grow(x: float, y: float) -> float:
    return x * y + x


def left(x: float, y: float) -> float:
    return x


def quotient(x: float, y: float) -> float:
    return x / y


@numba.njit
def compiled_by_the_user(x: float, y: float) -> float:
    return max(x, 2 * y)


def values(dtype: DType, count: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(0, 1, count).astype(dtype.numpy)


def folded(op: Operator, arrays: Sequence[Array], **kwargs: int) -> Array:
    out = np.empty_like(arrays[0])
    op.fold([Tensor.of(array) for array in arrays], Tensor.of(out), **kwargs)
    return out


def step_by_step(
    function: Callable[[Array, Array], Array], arrays: Sequence[Array], dtype: DType
) -> Array:
    wide = np.float64 if dtype is DType.FLOAT64 else np.float32
    result = arrays[0].astype(wide)
    for array in arrays[1:]:
        result = function(result, array.astype(wide)).astype(wide)
    return result.astype(dtype.numpy)


@pytest.mark.parametrize(
    ("native", "ours"), [(MPI.SUM, SUM), (MPI.PROD, PROD), (MPI.MIN, MIN), (MPI.MAX, MAX)]
)
def test_of_an_operator_that_both_know(native: MPI.Op, ours: Operator) -> None:
    assert operators.of(native) is ours
    assert operators.of(MPI.Op(native)) is ours  # another Python object of the same handle
    assert operators.of(ours) is ours


@pytest.mark.parametrize("native", [MPI.MAXLOC, MPI.LAND, MPI.BXOR, MPI.REPLACE, MPI.OP_NULL])
def test_of_an_operator_that_only_mpi_knows(native: MPI.Op) -> None:
    assert operators.of(native) is None


def test_of_a_users_operator() -> None:
    mine = Op(grow)
    assert operators.of(mine) is mine
    theirs = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    try:
        assert operators.of(theirs) is None
    finally:
        theirs.Free()


@pytest.mark.parametrize("dtype", FLOATS)
def test_predefined_operators_fold(dtype: DType) -> None:
    arrays = [values(dtype, 100, seed) for seed in range(3)]
    functions = {SUM: np.add, PROD: np.multiply, MIN: np.minimum, MAX: np.maximum}
    for op, function in functions.items():
        expected = step_by_step(function, arrays, dtype)
        assert folded(op, arrays).tobytes() == expected.tobytes(), op.name


def test_avg_divides_by_the_number_of_inputs() -> None:
    arrays = [np.array([value], np.float32) for value in (1, 2, 6)]
    assert folded(AVG, arrays) == 3
    assert folded(AVG, arrays[:1]) == 1


def test_avg_in_steps_divides_in_the_last_one() -> None:
    arrays = [np.array([value], np.float32) for value in (1, 2, 6)]
    partial = folded(AVG, arrays[:2], divisor=1)
    assert partial == 3
    assert folded(AVG, [partial, arrays[2]], divisor=3) == 3


def test_other_operators_ignore_the_divisor() -> None:
    arrays = [np.array([value], np.float32) for value in (1, 2, 6)]
    for op, result in ((SUM, 9), (PROD, 12), (MIN, 1), (MAX, 6), (Op(grow), 21)):
        assert folded(op, arrays, divisor=3) == result, op.name


@pytest.mark.parametrize("op", [SUM, AVG, Op(grow)], ids=lambda op: op.name)
def test_refuses_tensors_that_cannot_be_folded(op: Operator) -> None:
    wide, half = Tensor.of(np.zeros(4, np.float32)), Tensor.of(np.zeros(4, np.float16))
    integers = Tensor.of(np.zeros(4, np.int32))
    with pytest.raises(TypeError, match="float type to fold, found bytes"):
        op.fold([integers, integers], integers)
    with pytest.raises(TypeError, match="inputs of FLOAT32 as the output is, found FLOAT16"):
        op.fold([wide, half], wide)
    with pytest.raises(ValueError, match="inputs of 4 values, found 3"):
        op.fold([wide, wide[:3]], wide)
    with pytest.raises(ValueError, match="at least one input"):
        op.fold([], wide)


@pytest.mark.parametrize("count", [0, 1, 7, BLOCK - 1, BLOCK + 1, 2 * BLOCK + 3])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_users_function_folds_in_order_and_rounds_once(dtype: DType, count: int) -> None:
    op = Op(grow)
    arrays = [values(dtype, count, seed) for seed in range(4)]
    expected = step_by_step(grow, arrays, dtype)
    assert folded(op, arrays).tobytes() == expected.tobytes()


def test_a_users_function_may_write_over_an_input() -> None:
    op = Op(grow)
    arrays = [values(DType.BFLOAT16, BLOCK + 5, seed) for seed in range(3)]
    expected = folded(op, arrays).tobytes()
    for place in range(3):
        tensors = [Tensor.of(array.copy()) for array in arrays]
        op.fold(tensors, tensors[place])
        assert tensors[place].memory.tobytes() == expected


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_users_function_on_memory_at_any_address(dtype: DType) -> None:
    array = values(dtype, 9, 0)
    memory = np.zeros(array.nbytes + 1, np.uint8)
    tensor = Tensor(memory[1:], dtype)
    tensor.memory[:] = array.view(np.uint8)
    Op(left).fold([tensor, tensor], tensor)
    assert tensor.memory.tobytes() == array.tobytes()


def test_a_users_function_is_not_contracted() -> None:
    """-(1 + e) * (1 - e) rounds to -1; a fused multiply-add would add e*e to the result."""
    e = np.float32(2**-13)
    assert folded(Op(grow), [np.array([1 + e]), np.array([e - 1])]) == e


def test_a_division_by_zero_is_an_infinity() -> None:
    arrays = [np.array([1], np.float32), np.array([0], np.float32)]
    assert folded(Op(quotient), arrays) == np.inf


def test_a_function_compiled_by_the_user() -> None:
    arrays = [np.array([1, 5], np.float16), np.array([2, 2], np.float16)]
    op = Op(compiled_by_the_user)
    assert op.name == "compiled_by_the_user"
    assert folded(op, arrays).tolist() == [4, 5]


def test_a_users_operator_says_whether_it_commutes() -> None:
    assert Op(grow).commutative
    assert not Op(left, commute=False).commutative


def test_operators_can_be_pickled() -> None:
    for op in (SUM, AVG, Op(grow), Op(left, commute=False)):
        copy = pickle.loads(pickle.dumps(op))
        assert copy == op
        assert copy.commutative == op.commutative
        arrays = [values(DType.FLOAT32, 5, seed) for seed in range(3)]
        assert folded(copy, arrays).tobytes() == folded(op, arrays).tobytes()


def test_operators_of_different_functions_differ() -> None:
    assert Op(grow) != Op(left)
    assert Op(left) == Op(left)
    assert Op(left) != Op(left, commute=False)


def unknown_name(x: float, y: float) -> float:
    return x + unknown  # type: ignore[name-defined]  # noqa: F821


def unknown_attribute(x: float, y: float) -> float:
    return x.size


def one_argument(x: float) -> float:
    return x


def returns_nothing(x: float, y: float) -> None:
    pass


def returns_a_pair(x: float, y: float) -> tuple[float, float]:
    return x, y


def returns_a_complex(x: float, y: float) -> complex:
    return x + 1j * y


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (unknown_name, r"NameError: name 'unknown' is not defined"),
        (unknown_attribute, r"Unknown attribute 'size' of type float32"),
        (one_argument, r"2 argument types given, but function takes 1"),
        (returns_nothing, r"a result of type none"),
        (returns_a_pair, r"a result of type UniTuple\(float32 x 2\)"),
        (returns_a_complex, r"a result of type complex128"),
        (math.hypot, r"not a function"),
    ],
)
def test_a_function_that_does_not_compile(function: Any, reason: str) -> None:
    with pytest.raises(TypeError) as caught:
        Op(function)
    message = str(caught.value)
    assert message.startswith(f"operator {function.__name__}: expected a function of two floats")
    assert caught.match(reason)
    assert "\n" not in message
