"""Collectives in every form, beside plain mpi4py.

What moves values must leave what mpi4py leaves that is given the same bytes. A reduction must give
the bits that the same algorithm gives without compression, the same on all ranks, and
be the sum in float64 up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from completion import complete
from draws import FLOATS, INTEGERS, Array, Draw, Pool, Values, as_bytes, check_same, telling
from mpi4py import MPI

import uzipmpi

MOVING = (
    "Bcast",
    "Gather",
    "Gatherv",
    "Scatter",
    "Scatterv",
    "Allgather",
    "Allgatherv",
    "Alltoall",
    "Alltoallv",
)
REDUCING = ("Allreduce", "Reduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan")
MPI_OPERATORS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}
# Open MPI (5.0.11) never frees what its own persistent collectives allocate: up to their buffers.
LEAKING = MPI.get_vendor()[0] == "Open MPI"
# MPICH (5.0.2) aborts in an in-place Reduce_scatter that moves a shard to where part of it lies.
MOVES_APART_ONLY = MPI.get_vendor()[0] == "MPICH"
OPERATORS = {**MPI_OPERATORS, "avg": uzipmpi.AVG}


@dataclass(frozen=True)
class Case:
    """One call of a collective, as all ranks know it.

    Attributes
    ----------
    parts
        What each rank contributes to a gather or a reduction.
    counts
        Values that go from or to each rank.
    table
        Of an alltoall: values that go from one rank (row) to another.
    """

    method: str
    dtype: str
    root: int
    operator: str
    in_place: bool
    parts: tuple[Values, ...]
    counts: tuple[int, ...]
    table: tuple[tuple[int, ...], ...] = ()

    @property
    def moves(self) -> bool:
        """Whether no arithmetic is done."""
        return self.method in MOVING

    @property
    def total(self) -> int:
        """Values of all ranks together."""
        return sum(self.counts)


def draw_case(draw: Draw, pool: Pool, size: int, most_bytes: int) -> Case:
    """Draw a call."""
    method = draw.among(MOVING + REDUCING)
    dtype = draw.dtype()
    if method in REDUCING and dtype == "uint8":
        dtype = "int32"  # Open MPI 5.0's sum of uint8 saturates, but for the last few values
    even = draw.count(dtype, most_bytes // size)
    vector = method in ("Gatherv", "Scatterv", "Allgatherv", "Reduce_scatter")
    uneven = [draw.count(dtype, most_bytes // size) for _ in range(size)]
    counts = tuple(uneven) if vector else (even,) * size
    table: tuple[tuple[int, ...], ...] = ()
    if method == "Alltoallv":
        room = most_bytes // size // size
        table = tuple(tuple(draw.count(dtype, room) for _ in range(size)) for _ in range(size))
    if method in ("Scatter", "Scatterv", "Alltoall", "Reduce_scatter", "Reduce_scatter_block"):
        contributed = [sum(counts)] * size
    elif method == "Alltoallv":
        contributed = [sum(row) for row in table]
    else:
        contributed = list(counts)
    operators = tuple(OPERATORS) if dtype in FLOATS else tuple(MPI_OPERATORS)
    return Case(
        method,
        dtype,
        draw.below(size),
        draw.among(operators),
        draw.chance(0.25) and not (method == "Reduce_scatter" and moves_over_itself(counts)),
        tuple(Values.drawn(draw, pool, dtype, count) for count in contributed),
        counts,
        table,
    )


def moves_over_itself(counts: Sequence[int]) -> bool:
    """Whether MPI would abort as it moves a shard to the start of the buffer that held all."""
    shards = zip(starts(counts), counts, strict=True)
    return MOVES_APART_ONLY and any(0 < start < count for start, count in shards)


@dataclass
class Call:
    """Arguments for one rank, and where the result will be; None where nothing is received."""

    arguments: list[Any]
    result: Array | None


def starts(counts: Sequence[int], gap: int = 0) -> list[int]:
    """Return where parts of these sizes begin, with gaps between them."""
    return [sum(counts[:part]) + gap * part for part in range(len(counts))]


class Buffers:
    """Makes the arguments of a case on one rank; the gaps of vectors stay as they are."""

    GAP = 5

    def __init__(self, case: Case, pool: Pool, rank: int) -> None:
        self.case, self.pool, self.rank = case, pool, rank
        self.size = len(case.counts)
        self.displs = starts(case.counts, self.GAP)
        self.room = case.total + self.GAP * self.size

    def make(self) -> Call:
        """Make new ones."""
        return getattr(self, f"_{self.case.method.lower()}")()

    def _mine(self) -> Array:
        return self.pool.cut(self.case.parts[self.rank])

    def _blank(self, count: int) -> Array:
        array = np.empty(count, self.case.dtype)
        as_bytes(array)[:] = 0x33
        return array

    def _own(self) -> int:
        return self.case.counts[self.rank]

    def _at_root(self) -> bool:
        return self.rank == self.case.root

    def _placed(self, array: Array, begin: int) -> Array:
        """Return ``array`` with this rank's values in it."""
        mine = self._mine()
        array[begin : begin + mine.size] = mine
        return array

    def _bcast(self) -> Call:
        root = self.case.root
        values = self.pool.cut(self.case.parts[root])
        buffer = values if self._at_root() else self._blank(values.size)
        return Call([buffer, root], buffer)

    def _gather(self) -> Call:
        root = self.case.root
        if not self._at_root():
            return Call([self._mine(), None, root], None)
        result = self._blank(self.case.total)
        if self.case.in_place:
            return Call([MPI.IN_PLACE, self._placed(result, self.rank * self._own()), root], result)
        return Call([self._mine(), result, root], result)

    def _gatherv(self) -> Call:
        root = self.case.root
        if not self._at_root():
            return Call([self._mine(), None, root], None)
        result = self._blank(self.room)
        spec = [result, (self.case.counts, self.displs)]
        if self.case.in_place:
            self._placed(result, self.displs[self.rank])
            return Call([MPI.IN_PLACE, spec, root], result)
        return Call([self._mine(), spec, root], result)

    def _scatter(self) -> Call:
        result = self._blank(self._own())
        sent = self._mine() if self._at_root() else None
        return Call([sent, result, self.case.root], result)

    def _scatterv(self) -> Call:
        result = self._blank(self._own())
        spec = None
        if self._at_root():
            spec = [self._mine(), (self.case.counts, starts(self.case.counts))]
        return Call([spec, result, self.case.root], result)

    def _allgather(self) -> Call:
        result = self._blank(self.case.total)
        if self.case.in_place:
            return Call([MPI.IN_PLACE, self._placed(result, self.rank * self._own())], result)
        return Call([self._mine(), result], result)

    def _allgatherv(self) -> Call:
        result = self._blank(self.room)
        spec = [result, (self.case.counts, self.displs)]
        if self.case.in_place:
            self._placed(result, self.displs[self.rank])
            return Call([MPI.IN_PLACE, spec], result)
        return Call([self._mine(), spec], result)

    def _alltoall(self) -> Call:
        if self.case.in_place:
            result = self._mine()
            return Call([MPI.IN_PLACE, result], result)
        result = self._blank(self.case.total)
        return Call([self._mine(), result], result)

    def _alltoallv(self) -> Call:
        sent = self.case.table[self.rank]
        received = [row[self.rank] for row in self.case.table]
        result = self._blank(sum(received) + self.GAP * self.size)
        return Call(
            [
                [self._mine(), (sent, starts(sent))],
                [result, (received, starts(received, self.GAP))],
            ],
            result,
        )

    # Reductions

    def _op(self) -> Any:
        return OPERATORS[self.case.operator]

    def _allreduce(self) -> Call:
        result = self._mine() if self.case.in_place else self._blank(self._own())
        sent = MPI.IN_PLACE if self.case.in_place else self._mine()
        return Call([sent, result, self._op()], result)

    _scan = _allreduce
    _exscan = _allreduce

    def _reduce(self) -> Call:
        op, root = self._op(), self.case.root
        if not self._at_root():
            return Call([self._mine(), None, op, root], None)
        call = self._allreduce()
        return Call([*call.arguments, root], call.result)

    def _reduce_scatter(self) -> Call:
        counts, own = list(self.case.counts), self._own()
        if self.case.in_place:
            buffer = self._mine()
            return Call([MPI.IN_PLACE, buffer, counts, self._op()], buffer[:own])
        result = self._blank(own)
        return Call([self._mine(), result, counts, self._op()], result)

    def _reduce_scatter_block(self) -> Call:
        if self.case.in_place:
            buffer = self._mine()
            return Call([MPI.IN_PLACE, buffer, self._op()], buffer[: self._own()])
        result = self._blank(self._own())
        return Call([self._mine(), result, self._op()], result)


def plainly(argument: Any) -> Any:
    """Return an argument for plain mpi4py: values as bytes, with counts in bytes."""
    if isinstance(argument, np.ndarray):
        return as_bytes(argument)
    if isinstance(argument, list) and argument and isinstance(argument[0], np.ndarray):
        array, (counts, displs) = argument
        n = array.itemsize
        return [as_bytes(array), ([n * count for count in counts], [n * d for d in displs])]
    return argument


# Forms of a call


def blocking(comm: MPI.Intracomm, case: Case, call: Call) -> None:
    """Call and return when it is done."""
    getattr(comm, case.method)(*call.arguments)


def begun(comm: uzipmpi.Comm, case: Case, call: Call) -> MPI.Request:
    """Begin the call."""
    return getattr(comm, f"I{case.method.lower()}")(*call.arguments)


def persistent(comm: uzipmpi.Comm, case: Case, call: Call) -> MPI.Prequest | None:
    """Make a persistent request; None where MPI has none, or one that keeps its memory."""
    if LEAKING and not compressible(comm, case):
        return None
    try:
        return getattr(comm, f"{case.method}_init")(*call.arguments)
    except NotImplementedError:
        return None


def compressible(comm: uzipmpi.Comm, case: Case) -> bool:
    """Whether a case is left to an algorithm of ours for all its sizes."""
    ours = case.dtype in FLOATS and case.method not in ("Scan", "Exscan")
    return ours and comm.Get_size() > 1 and comm.config.min_bytes == 0


# What must hold


class Trial:
    """A case on a communicator: calls of it, and what they must leave."""

    def __init__(self, comm: uzipmpi.Comm, case: Case, pool: Pool) -> None:
        self.comm, self.case, self.pool = comm, case, pool
        self.plain = MPI.Intracomm(comm)
        self.rank = comm.Get_rank()
        self.buffers = Buffers(case, pool, self.rank)
        self.expected = self._expected()

    def make(self) -> Call:
        """Make new arguments."""
        return self.buffers.make()

    def _expected(self) -> Array | None:
        call = self.make()
        if self.case.moves:
            plain = Call([plainly(argument) for argument in call.arguments], None)
            blocking(self.plain, self.case, plain)
        elif self.case.dtype in INTEGERS:
            blocking(self.plain, self.case, call)
        else:
            with self.comm.options(codec="raw"):
                blocking(self.comm, self.case, call)
            if call.result is not None:
                self._check_rounding(call.result)
            self._check_ranks_agree(call.result)
        return call.result

    def check(self, call: Call) -> None:
        """Compare what a call left with what it must leave."""
        if call.result is None or self.expected is None:
            return
        if self.case.method == "Exscan" and self.rank == 0:
            return  # unspecified
        if self._is_mpis():
            self._check_rounding(call.result)
            return
        check_same(call.result, self.expected, f"{self.case.method} of {self.case.dtype}")

    def _is_mpis(self) -> bool:
        """Whether MPI itself may have added, in an order that is its own affair."""
        return (
            not self.case.moves
            and self.case.dtype in FLOATS
            and (self.comm.config.min_bytes > 0 or self.case.method in ("Scan", "Exscan"))
        )

    def _check_ranks_agree(self, result: Array | None) -> None:
        if self.case.method != "Allreduce" or result is None or self._is_mpis():
            return
        first = as_bytes(result).copy()
        self.plain.Bcast(first, 0)
        check_same(result, first, "the bits of rank 0")

    def _check_rounding(self, result: Array) -> None:
        """Compare with the values folded in float64, where nothing overflows."""
        inputs = self._inputs(result.size)
        if not inputs:
            return
        with np.errstate(all="ignore"):
            exact, tolerance = folded(self.case, inputs)
            found = result.astype(np.float64)
            sound = np.isfinite(exact) & np.isfinite(tolerance)
            wrong = sound & ~(np.abs(found - exact) <= tolerance)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise AssertionError(
                f"{self.case.method} {self.case.operator} of {self.case.dtype}: expected "
                f"{exact[place]} within {tolerance[place]} at {place}, found {found[place]}"
            )

    def _inputs(self, count: int) -> list[Array]:
        """Return the values of each rank that went into this rank's result."""
        parts = [self.pool.cut(values) for values in self.case.parts]
        if self.case.method in ("Scan", "Exscan"):
            parts = parts[: self.rank + (self.case.method == "Scan")]
        elif self.case.method.startswith("Reduce_scatter"):
            begin = sum(self.case.counts[: self.rank])
            parts = [part[begin : begin + count] for part in parts]
        return parts


def folded(case: Case, inputs: list[Array]) -> tuple[Array, Array]:
    """Return the exact result of a reduction, nearly, and how far rounding may lead from it.

    Where the sum of absolute values passes half of the largest number, anything goes.
    """
    information = ml_dtypes.finfo(np.dtype(case.dtype))
    epsilon = float(information.eps) * (len(inputs) + 1)
    smallest = float(information.smallest_subnormal) * (len(inputs) + 1)
    wide = [part.astype(np.float64) for part in inputs]
    if case.operator in ("min", "max"):
        fold = np.minimum if case.operator == "min" else np.maximum
        exact = fold.reduce(wide)
        return exact, np.zeros_like(exact)
    if case.operator == "prod":
        exact, size = np.multiply.reduce(wide), np.ones_like(wide[0])
        tolerance = np.zeros_like(exact)
        for part in wide:
            # A product on the way may have been subnormal, and rounded to that.
            tolerance = tolerance * np.maximum(np.abs(part), 1) + smallest
            size = np.maximum(size, 1) * np.maximum(np.abs(part), 1)
        return exact, within(size, np.abs(exact) * epsilon + tolerance * size, information)
    exact = np.add.reduce(wide)
    size = np.add.reduce([np.abs(part) for part in wide])
    tolerance = within(size, size * epsilon + smallest, information)
    if case.operator == "avg":
        return exact / len(inputs), tolerance
    return exact, tolerance


def within(size: Array, tolerance: Array, information: Any) -> Array:
    """Return the tolerance; infinite where something may have overflowed on the way."""
    return np.where(size < float(information.max) / 2, tolerance, np.inf)


# Steps


def expecting(comm: uzipmpi.Comm, case: Case, pool: Pool) -> Trial:
    """Make a trial, for which the call is made in a way that is known to be right."""
    with telling(f"expecting {case}"):
        return Trial(comm, case, pool)


def one_call(comm: uzipmpi.Comm, draw: Draw, pool: Pool, most_bytes: int) -> None:
    """One collective: blocking, begun, or some rounds of a persistent request."""
    trial = expecting(comm, draw_case(draw, pool, comm.Get_size(), most_bytes), pool)
    call, own = trial.make(), Draw(*draw.words, trial.rank)
    form = draw.among((blocking, begun, persistent))
    with telling(f"{form.__name__} {trial.case}"):
        if form is blocking:
            blocking(comm, trial.case, call)
        elif form is begun:
            complete(own, [begun(comm, trial.case, call)])
        elif (request := persistent(comm, trial.case, call)) is not None:
            run_rounds(own, request, 1 if trial.case.in_place else 2)
        else:
            return
        trial.check(call)


def run_rounds(own: Draw, request: MPI.Prequest, rounds: int) -> None:
    """Start and complete a persistent request some times, and free it."""
    for _ in range(rounds):
        request.Start()
        complete(own, [request])
    request.Free()


def many_calls(
    comm: uzipmpi.Comm,
    draw: Draw,
    pool: Pool,
    most_bytes: int,
    meanwhile: Callable[[uzipmpi.Comm, Draw, Pool, int], None],
) -> None:
    """Several collectives at once, something else meanwhile, completed in any order."""
    size = comm.Get_size()
    cases = [draw_case(draw, pool, size, most_bytes) for _ in range(draw.below(5) + 1)]
    trials = [expecting(comm, case, pool) for case in cases]
    calls = [trial.make() for trial in trials]
    requests = [begun(comm, t.case, call) for t, call in zip(trials, calls, strict=True)]
    meanwhile(comm, Draw(*draw.words, 1 << 20), pool, most_bytes)
    complete(Draw(*draw.words, comm.Get_rank()), requests)
    for trial, call in zip(trials, calls, strict=True):
        with telling(trial.case):
            trial.check(call)
