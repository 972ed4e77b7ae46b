"""Reduction operators: those that MPI predefines, AVG, and users' functions compiled by Numba.

An operator folds tensors in the order of the sequence it is given and rounds the result once:
8- and 16-bit types accumulate in float32, float32 and float64 in their own type. Which ranks'
values are folded, and how often the result is rounded on its way, is up to the algorithm.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from uzipmpi.kernels import reduce
from uzipmpi.typing import DType, Tensor

__all__ = ["AVG", "MAX", "MIN", "PROD", "SUM", "Op", "Operator", "Predefined", "of"]

Function = Callable[[Any, Any], Any]
Accumulator = npt.NDArray[Any]  # float32 or float64
Combine = Callable[[Accumulator, Accumulator], None]

# Values folded by one call of compiled code: two float32 scratch blocks fit in an L2 cache.
_BLOCK = 16384


@dataclass(frozen=True)
class Operator(ABC):
    """How values of several ranks become one.

    Parameters
    ----------
    name
        What statistics and errors call it.
    commutative
        Whether an algorithm may fold in another order than that of the ranks.
    """

    name: str
    commutative: bool

    @abstractmethod
    def fold(self, inputs: Sequence[Tensor], out: Tensor, divisor: int | None = None) -> None:
        """Combine tensors value by value, in the order of the sequence, and round once.

        Parameters
        ----------
        inputs
            At least one tensor; all of the output's data type and count.
        out
            Where the result is written; it may be one of the inputs.
        divisor
            What AVG divides by, the number of inputs unless given; other operators ignore it. An
            algorithm that folds in several steps gives 1, and in its last step the number of ranks.

        Raises
        ------
        TypeError
            If the output holds bytes, or an input has another data type.
        ValueError
            If counts differ or there is no input.
        """


@dataclass(frozen=True)
class Predefined(Operator):
    """An operator of ``kernels.reduce``.

    Parameters
    ----------
    name, commutative
        As for every operator.
    kernel
        The operator's name there.
    averages
        Whether the result is divided.
    by
        By what; 0: the number of inputs.
    """

    kernel: str
    averages: bool = False
    by: int = 0

    def fold(self, inputs: Sequence[Tensor], out: Tensor, divisor: int | None = None) -> None:
        """Combine tensors; see :meth:`Operator.fold`."""
        reduce.fold(self.kernel, inputs, out, self.divisor(len(inputs), divisor))

    def divisor(self, n_inputs: int, given: int | None) -> int:
        """Return what the folded values are divided by."""
        if not self.averages:
            return 1
        return (self.by or max(n_inputs, 1)) if given is None else given


SUM = Predefined("sum", True, "sum")
PROD = Predefined("prod", True, "prod")
MIN = Predefined("min", True, "min")
MAX = Predefined("max", True, "max")
AVG = Predefined("avg", True, "sum", averages=True)

_MPI_OPERATORS = ((MPI.SUM, SUM), (MPI.PROD, PROD), (MPI.MIN, MIN), (MPI.MAX, MAX))


def of(op: object) -> Operator | None:
    """Return the operator for mpi4py's or one of ours; None for an operator that only MPI knows.

    Examples
    --------
    >>> of(MPI.SUM) is SUM
    True
    >>> of(MPI.MAXLOC) is None
    True
    """
    if isinstance(op, Operator):
        return op
    # MPI's operators are not hashable.
    return next((ours for theirs, ours in _MPI_OPERATORS if op == theirs), None)


@dataclass(frozen=True, init=False)
class Op(Operator):
    """A reduction operator made of a function, for float tensors in uzipmpi's collectives.

    Numba compiles the function, here and not in the first collective, for float32 (which serves the
    8- and 16-bit types) and for float64. After each step the result is cast to the accumulator's
    type. Every rank must make the operator from the same function. MPI cannot call it: a collective
    given an Op always runs an algorithm of uzipmpi, however small the tensors are.

    Compiling takes a second or so; make an Op once and keep it. It can be pickled when the function
    can, that is, when it is defined at the top level of a module.

    Parameters
    ----------
    function
        Takes two floats, the result so far and the next rank's value, and returns a float.
        It must be associative up to rounding.
    commute
        Whether the arguments may change places. If not, only algorithms that fold in rank order
        are chosen.

    Raises
    ------
    TypeError
        If Numba cannot compile the function, or it does not return a real number.

    Examples
    --------
    >>> import math
    >>> norm = Op(lambda x, y: math.sqrt(x * x + y * y))
    >>> x, y = (Tensor.of(np.array(values, np.float32)) for values in ([3, 5], [4, 12]))
    >>> norm.fold([x, y], out=x)
    >>> x.array.tolist()
    [5.0, 13.0]
    """

    function: Function

    def __init__(self, function: Function, commute: bool = True) -> None:
        super().__init__(_name(function), commute)
        object.__setattr__(self, "function", function)
        _compile(function)

    def __call__(self, x: Any, y: Any) -> Any:
        """Return what the function makes of two objects, as the lower-case reductions have it."""
        return self.function(x, y)

    def fold(self, inputs: Sequence[Tensor], out: Tensor, divisor: int | None = None) -> None:
        """Combine tensors; see :meth:`Operator.fold`."""
        reduce.check(inputs, out)
        combine = _compile(self.function)
        kind = np.float64 if out.dtype is DType.FLOAT64 else np.float32
        scratch = np.empty((2, min(out.count, _BLOCK)), kind)
        for start in range(0, out.count, _BLOCK):
            block = slice(start, start + _BLOCK)
            accumulator, values = scratch[:, : out[block].count]
            _load(inputs[0][block], accumulator)
            for tensor in inputs[1:]:
                _load(tensor[block], values)
                combine(accumulator, values)
            _store(accumulator, out[block])


def _load(tensor: Tensor, accumulator: Accumulator) -> None:
    if tensor.dtype in (DType.FLOAT32, DType.FLOAT64):
        accumulator[:] = tensor.array
    else:
        reduce.widen(tensor, accumulator)


def _store(accumulator: Accumulator, tensor: Tensor) -> None:
    if tensor.dtype in (DType.FLOAT32, DType.FLOAT64):
        tensor.array[:] = accumulator
    else:
        reduce.narrow(accumulator, tensor)


@functools.lru_cache(maxsize=64)
def _compile(function: Function) -> Combine:
    """Return compiled code for ``accumulator[:] = function(accumulator, values)``."""
    try:
        return _compile_loop(function)
    except Exception as error:  # Numba's errors share no base
        raise TypeError(
            f"operator {_name(function)}: expected a function of two floats that Numba compiles, "
            f"found: {_reason(error)}"
        ) from error


def _compile_loop(function: Function) -> Combine:
    import numba  # half a second and 60 MB, which only users' operators need

    # error_model: a division by zero is an infinity, not an exception on one rank of a collective.
    jit: Any = functools.partial(numba.njit, error_model="numpy", nogil=True)
    scalar: Any = function if hasattr(function, "py_func") else jit(function)
    real = (numba.types.Float, numba.types.Integer, numba.types.Boolean)
    kinds = (numba.float32, numba.float64)
    for kind in kinds:
        scalar.compile((kind, kind))
        result = scalar.overloads[kind, kind].signature.return_type
        if not isinstance(result, real):
            raise TypeError(f"a result of type {result}")

    def combine(accumulator: Any, values: Any) -> None:
        for j in range(accumulator.size):
            accumulator[j] = scalar(accumulator[j], values[j])

    compiled: Combine = jit([numba.void(kind[::1], kind[::1]) for kind in kinds])(combine)
    return compiled


def _reason(error: Exception) -> str:
    """Return the line of Numba's report that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("Failed in nopython mode")]
    return (told or [type(error).__name__])[0]


def _name(function: Function) -> str:
    return getattr(function, "__name__", repr(function))
