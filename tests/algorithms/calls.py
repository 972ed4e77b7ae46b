"""What the programs of this folder share: calls with tags of their own, values, and oracles."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

import uzipmpi.algorithms
from uzipmpi.algorithms import operators, registry
from uzipmpi.algorithms.context import TAGS_PER_CALL, Context
from uzipmpi.algorithms.stream import drive
from uzipmpi.config import Config
from uzipmpi.transports.mpi_host import MpiHost
from uzipmpi.typing import DType, Tensor

Array = npt.NDArray[Any]

FLOATS = [dtype for dtype in DType if dtype is not DType.BYTES]
CODECS = ("raw", "tier", "ans")
# Values and chunk bytes: none, fewer than ranks, odd, many chunks, tiles give or take a value.
CUTS = [(0, 64), (1, 64), (7, 64), (301, 64), (3 * 1024 + 1, 1000), (20 * 1024 - 1, 8192)]

WITH_NUMPY: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "max": np.maximum,
}
assert uzipmpi.algorithms  # importing the package fills the registry


class Calls:
    """Makes the contexts of successive calls on a duplicate of the world."""

    def __init__(self, transport: MpiHost | None = None) -> None:
        self.comm = MPI.COMM_WORLD.Dup()
        self.transport = transport or MpiHost(self.comm)
        self.rank, self.size = self.comm.rank, self.comm.size
        self._tag = 0
        # Two nodes, of which one may have more ranks, or one.
        self.nodes = [
            0 if rank < max(self.size // 2, 1) else self.size // 2 for rank in range(self.size)
        ]

    def context(self, chunk_bytes: int = 1 << 20, codec: str = "auto", **options: Any) -> Context:
        self._tag += TAGS_PER_CALL
        config = Config(codec=codec, chunk_bytes=chunk_bytes, **options)
        return Context(self.transport, config, self._tag, nodes=self.nodes)

    def identical(self, array: Array) -> bool:
        """Whether all ranks hold the same bytes."""
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        return len(set(self.comm.allgather(digest))) == 1


def run(operation: str, name: str, *arguments: Any) -> None:
    drive([registry.find(operation, name).run(*arguments)])


def normal(rank: int, count: int, dtype: DType) -> Array:
    """Values to fold: no NaN arises from them, whose bits NumPy leaves open."""
    values = np.random.default_rng(rank).standard_normal(count)
    return values.astype(dtype.numpy)


def bits(seed: int, count: int, dtype: DType) -> Array:
    """Values to move: half of them arbitrary bit patterns, NaN payloads among them."""
    random = np.random.default_rng(seed)
    values = normal(seed, count, dtype)
    any_bits = random.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype.numpy)
    return np.where(random.random(count) < 0.5, values, any_bits).astype(dtype.numpy)


def tensors(arrays: Sequence[Array]) -> list[Tensor]:
    return [Tensor.of(array) for array in arrays]


def empty(count: int, dtype: DType) -> Array:
    """A destination that no test expects to look like this."""
    return np.full(count * dtype.itemsize, 0xA5, np.uint8).view(dtype.numpy)


def same(found: Array, expected: Array) -> bool:
    return found.tobytes() == expected.tobytes()


def in_rank_order(op: operators.Operator, inputs: Sequence[Array]) -> Array:
    """Fold with NumPy: float32 for the small types, one rounding at the end."""
    kind = np.float64 if inputs[0].dtype == np.float64 else np.float32
    folded = reduce(WITH_NUMPY[op.name], [values.astype(kind) for values in inputs])
    if op.name == "avg":
        folded = folded / kind(len(inputs))
    return folded.astype(inputs[0].dtype)


def by_node(op: operators.Operator, inputs: Sequence[Array], nodes: Sequence[int]) -> Array:
    """Fold each node's with NumPy and round, then those of the nodes."""
    first = operators.SUM if op.name == "avg" else op
    parts = [
        in_rank_order(first, [one for one, at in zip(inputs, nodes, strict=True) if at == node])
        for node in dict.fromkeys(nodes)
    ]
    kind = np.float64 if inputs[0].dtype == np.float64 else np.float32
    folded = reduce(WITH_NUMPY[op.name], [part.astype(kind) for part in parts])
    if op.name == "avg":
        folded = folded / kind(len(inputs))
    return folded.astype(inputs[0].dtype)


def around_ring(op: operators.Operator, inputs: Sequence[Array], counts: Sequence[int]) -> Array:
    """Fold shard j over ranks j+1, ..., j with NumPy, rounding at each hop."""
    size, dtype = len(inputs), inputs[0].dtype
    kind = np.float64 if dtype == np.float64 else np.float32
    shards, start = [], 0
    for shard, count in enumerate(counts):
        part = slice(start, start + count)
        start += count
        folded = inputs[(shard + 1) % size][part]
        for hop in range(2, size + 1):
            exact = WITH_NUMPY[op.name](
                folded.astype(kind), inputs[(shard + hop) % size][part].astype(kind)
            )
            if op.name == "avg" and hop == size:
                exact = exact / kind(size)
            folded = exact.astype(dtype)
        shards.append(folded)
    return np.concatenate(shards)
