"""Every reduction against NumPy, bit for bit, for every codec and data type, on all ranks."""

from __future__ import annotations

import itertools
import sys

import numpy as np
from calls import (
    CODECS,
    CUTS,
    FLOATS,
    Array,
    Calls,
    around_ring,
    by_node,
    empty,
    in_rank_order,
    normal,
    run,
    same,
)

from uzipmpi.algorithms import operators, registry
from uzipmpi.algorithms.cuts import even_counts
from uzipmpi.algorithms.operators import Operator
from uzipmpi.typing import DType, Tensor

OPERATORS = (operators.SUM, operators.AVG, operators.MAX, operators.PROD)


def expected(
    name: str, op: Operator, inputs: list[Array], counts: list[int], nodes: list[int]
) -> Array:
    if name == "hierarchical":
        return by_node(op, inputs, nodes)
    if name == "ring" and len(inputs) > 1:
        return around_ring(op, inputs, counts)
    return in_rank_order(op, inputs)


def allreduce(
    calls: Calls, inputs: list[Array], chunk_bytes: int, codec: str, op: Operator
) -> None:
    mine = inputs[calls.rank]
    counts = even_counts(mine.size, calls.size)
    for name in registry.names("allreduce"):
        recv = empty(mine.size, DType.of(mine.dtype))
        context = calls.context(chunk_bytes, codec)
        run("allreduce", name, context, Tensor.of(mine), Tensor.of(recv), op)
        assert same(recv, expected(name, op, inputs, counts, calls.nodes)), (
            name,
            codec,
            mine.dtype,
            mine.size,
        )
        assert calls.identical(recv), (name, codec)
        in_place = mine.copy()
        context = calls.context(chunk_bytes, codec)
        run("allreduce", name, context, Tensor.of(in_place), Tensor.of(in_place), op)
        assert same(in_place, recv), (name, codec, "in place")


def reduce(calls: Calls, inputs: list[Array], chunk_bytes: int, codec: str, op: Operator) -> None:
    mine = inputs[calls.rank]
    for name, root in itertools.product(registry.names("reduce"), {0, calls.size - 1}):
        recv = empty(mine.size, DType.of(mine.dtype)) if calls.rank == root else None
        destination = None if recv is None else Tensor.of(recv)
        context = calls.context(chunk_bytes, codec)
        run("reduce", name, context, Tensor.of(mine), destination, op, root)
        assert recv is None or same(recv, in_rank_order(op, inputs))


def reduce_scatter(
    calls: Calls, inputs: list[Array], chunk_bytes: int, codec: str, op: Operator
) -> None:
    mine = inputs[calls.rank]
    uneven = even_counts(mine.size, calls.size)
    uneven[-1] += uneven[0]
    uneven[0] = 0
    for name, counts in itertools.product(
        registry.names("reduce_scatter"), (even_counts(mine.size, calls.size), uneven)
    ):
        if calls.size == 1:
            counts = [mine.size]
        recv = empty(counts[calls.rank], DType.of(mine.dtype))
        context = calls.context(chunk_bytes, codec)
        run("reduce_scatter", name, context, Tensor.of(mine), Tensor.of(recv), counts, op)
        start = sum(counts[: calls.rank])
        whole = expected(name, op, inputs, counts, calls.nodes)
        assert same(recv, whole[start : start + recv.size]), (name, counts, mine.dtype)


def scan(calls: Calls, inputs: list[Array], chunk_bytes: int, codec: str, op: Operator) -> None:
    mine, rank = inputs[calls.rank], calls.rank
    untouched = empty(mine.size, DType.of(mine.dtype))
    for name, before in (("scan", inputs[: rank + 1]), ("exscan", inputs[:rank])):
        recv = untouched.copy()
        context = calls.context(chunk_bytes, codec)
        run(name, "direct", context, Tensor.of(mine), Tensor.of(recv), op)
        assert same(recv, in_rank_order(op, before) if before else untouched), (name, codec)
        in_place = mine.copy()
        context = calls.context(chunk_bytes, codec)
        run(name, "direct", context, Tensor.of(in_place), Tensor.of(in_place), op)
        assert same(in_place, recv if before else mine), (name, codec, "in place")


def main() -> None:
    calls = Calls()
    # All codecs are held to the same bits; rotating, each meets every data type.
    rotation = zip(itertools.cycle(OPERATORS), itertools.cycle(CODECS), strict=False)
    for dtype, (count, chunk_bytes) in itertools.product(FLOATS, CUTS):
        inputs = [normal(rank, count, dtype) for rank in range(calls.size)]
        op, codec = next(rotation)
        for operation in (allreduce, reduce, reduce_scatter, scan):
            operation(calls, inputs, chunk_bytes, codec, op)
    assert np.all(inputs[calls.rank] == normal(calls.rank, count, dtype)), "an input changed"


if __name__ == "__main__":
    sys.exit(main())
