"""Exchanges of random size, place, data and kind between processes, bit for bit.

``mpirun -np 2 python -m mpi4py tests/gpu/ranks_rounds.py --rounds 10000`` takes the machine's GPUs,
which may be fewer than ranks; ``--module`` takes the emulated one.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kernels")]

import emulated_module  # noqa: E402
import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from uzipmpi.kernels import device, link, reduce  # noqa: E402
from uzipmpi.typing import Bytes, DType, Tensor  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=100)
parser.add_argument("--module", type=Path)
options = parser.parse_args()
if options.module:
    emulated_module.install(options.module)

from linked_ranks import LinkedRank  # noqa: E402
from samples import FLOATS, PATTERNS, TILE, mixed  # noqa: E402

POOL = 24 * TILE  # values to choose from, of each data type
AROUND = 64  # bytes on both sides of what is written, which must stay as they are
comm = MPI.COMM_WORLD
me, size = comm.rank, comm.size


class Rounds:
    """What ranks have to exchange: slices of their pools, which all of them know.

    Parameters
    ----------
    rank
        Connected to all others.
    """

    def __init__(self, rank: LinkedRank) -> None:
        self._rank = rank
        self._generator = np.random.default_rng(7)  # the same on all ranks
        self._pools = {dtype: [pool_of(dtype, k) for k in range(size)] for dtype in FLOATS}
        self._own = {dtype: rank.put(pools[me].memory) for dtype, pools in self._pools.items()}
        self._rooms = [rank.room(8 * POOL + 2 * AROUND) for _ in range(size)]
        self._shadows = [rank.get(room).copy() for room in self._rooms]

    def play(self) -> None:
        """Send to and receive from all others, or fold what all have; half of it in place."""
        draw = self._generator.integers
        dtype = FLOATS[draw(len(FLOATS))]
        count = int(draw(0, [8, TILE, POOL // 4, POOL][draw(4)] + 1))
        first = int(draw(0, POOL - count + 1)) * dtype.itemsize
        values = slice(first, first + count * dtype.itemsize)
        place = AROUND + first
        codec = ("auto", "auto", "tier", "raw")[draw(4)]
        op, divisor = reduce.OPS[draw(len(reduce.OPS))], int(draw(1, 4))
        arguments: dict[str, object] = {"codec": codec, "max_blocks": int(draw(0, 4))}
        twist = bool(draw(2))
        if draw(2):
            self._fold(dtype, values, place, arguments, op, divisor, twist and size == 2)
        else:
            self._send(dtype, values, place, arguments, twist)

    def _send(
        self,
        dtype: DType,
        values: slice,
        place: int,
        arguments: dict[str, object],
        copies: bool,
    ) -> None:
        own = self._own[dtype][values]
        others = [peer for peer in range(size) if peer != me]
        if copies:
            arguments["copy"] = link.Copy(self._rooms[me][place : place + own.size], own)
        self._rank.exchange(
            dtype,
            sends=[(peer, own) for peer in others],
            receives=[(peer, self._rooms[peer][place : place + own.size]) for peer in others],
            **arguments,
        )
        for peer in range(size) if copies else others:
            self._check(peer, place, self._pools[dtype][peer].memory[values])

    def _fold(
        self,
        dtype: DType,
        values: slice,
        place: int,
        arguments: dict[str, object],
        op: str,
        divisor: int,
        in_place: bool,
    ) -> None:
        own = self._own[dtype][values]
        out = self._rooms[me][place : place + own.size]
        if in_place:
            self._rank.stream.copy(out, own)
            own = out
        others = [peer for peer in range(size) if peer != me]
        self._rank.exchange(
            dtype,
            sends=[(peer, own) for peer in others],
            fold=link.Fold(op, own, out, divisor),
            **arguments,
        )
        tensors = [Tensor(pool.memory[values], dtype) for pool in self._pools[dtype]]
        expected = Tensor(np.empty_like(tensors[0].memory), dtype)
        reduce.fold(op, tensors, expected, divisor=divisor)
        self._check(me, place, expected.memory)

    def _check(self, peer: int, place: int, expected: Bytes) -> None:
        self._shadows[peer][place : place + expected.size] = expected
        near = slice(place - AROUND, place + expected.size + AROUND)
        assert (self._rank.get(self._rooms[peer][near]) == self._shadows[peer][near]).all()
        assert not any(self._rank.statuses())


def pool_of(dtype: DType, rank: int) -> Tensor:
    return mixed(sorted(PATTERNS), dtype, POOL, rank)


def main() -> None:
    rank = LinkedRank(me, size)
    for peer, handle in enumerate(comm.allgather(rank.links.handle)):
        if peer != me:
            rank.links.connect(peer, handle)
    rounds = Rounds(rank)
    begin = time.monotonic()
    for _ in range(options.rounds):
        rounds.play()
    assert rank.finish() == []  # and nothing was written beside memory
    comm.Barrier()
    rank.links.disconnect()
    comm.Barrier()
    rank.links.close()
    if me == 0:
        print(f"{options.rounds} rounds all the same, {time.monotonic() - begin:.1f} s")


if device.is_available():
    main()
