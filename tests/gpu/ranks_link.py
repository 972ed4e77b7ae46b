"""Exchanges between processes, through the memory of the emulated GPU or of the machine's.

``mpirun -np 2 python -m mpi4py tests/gpu/ranks_link.py`` takes the machine's; its GPUs may be fewer
than ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kernels")]

import emulated_module  # noqa: E402
import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from uzipmpi.kernels import device, link, reduce  # noqa: E402
from uzipmpi.typing import DType, Tensor  # noqa: E402

if len(sys.argv) > 1:
    emulated_module.install(Path(sys.argv[1]))

from linked_ranks import LinkedRank  # noqa: E402
from samples import TILE, tensor_of  # noqa: E402

ROUNDS = 25
comm = MPI.COMM_WORLD
me, size = comm.rank, comm.size


def main() -> None:
    rank = LinkedRank(me, size)
    for peer, handle in enumerate(comm.allgather(rank.links.handle)):
        if peer != me:
            rank.links.connect(peer, handle)
    assert all(link.can_access(rank.device, name) for name in comm.allgather(identity(rank)))
    generator = np.random.default_rng(1)  # the same on all ranks
    for turn in range(ROUNDS):
        dtype = DType(1 + turn % 6)
        count = int(generator.integers(0, 6 * TILE))
        everywhere(
            rank, [tensor_of("outliers", dtype, count, turn * size + k) for k in range(size)]
        )
    comm.Barrier()
    rank.links.disconnect()
    comm.Barrier()
    rank.links.close()
    if me == 0:
        print("all the same")


def identity(rank: LinkedRank) -> str:
    return link.device_identity(rank.device)


def everywhere(rank: LinkedRank, tensors: list[Tensor]) -> None:
    """Send every rank's tensor to all others; then fold them all."""
    mine = tensors[me]
    own, out = rank.put(mine.memory), rank.room(mine.nbytes)
    others = [peer for peer in range(size) if peer != me]
    rooms = [(peer, rank.room(mine.nbytes)) for peer in others]
    sends = [(peer, own) for peer in others]
    rank.exchange(mine.dtype, sends=sends, receives=rooms)
    rank.exchange(mine.dtype, sends=sends, fold=link.Fold("sum", own, out))
    for peer, room in rooms:
        assert (rank.get(room) == tensors[peer].memory).all()
    expected = Tensor(np.empty_like(mine.memory), mine.dtype)
    reduce.fold("sum", tensors, expected)
    assert (rank.get(out) == expected.memory).all()
    assert rank.finish() == [0, 0]


if device.is_available():
    main()
