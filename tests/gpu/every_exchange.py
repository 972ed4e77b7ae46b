"""Run every kernel of exchanges for a moment and compare with the CPU, also under a sanitizer.

    python tests/gpu/every_exchange.py [--module FILE] [--tiles 24] [--dtype BFLOAT16 FLOAT32]

Ranks are of one process, on one GPU if it has no more. A sanitizer lets one kernel run at a time,
so none waits for another here: rings have room for all that is sent before it is received.
``--module`` is an emulated GPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kernels")]

import emulated_module  # noqa: E402
from linked_ranks import LinkedRank, folded, linked  # noqa: E402
from piped_ranks import PipedRank, piped  # noqa: E402
from samples import TILE, mixed  # noqa: E402

from uzipmpi.kernels.device import DeviceMemory  # noqa: E402
from uzipmpi.kernels.link import Copy, Fold  # noqa: E402
from uzipmpi.typing import Bytes, DType, Tensor  # noqa: E402

STAGING_BYTES = 16 << 20
PATTERNS = {
    "coded": ["normal", "outliers", "normal", "random_bits", "zeros", "constant"],
    "packed": ["zero_heavy", "zeros", "constant", "zero_heavy", "random_bits"],
    "random": ["random_bits"],
}
OPERATORS = (("sum", 1), ("sum", 3), ("sum", 4), ("prod", 1), ("max", 1))
Sent = list[tuple[int, DeviceMemory]]


class Scene:
    """Three ranks, and tensors of one kind and type for them."""

    def __init__(self, ranks: list[LinkedRank] | list[PipedRank], kind: str, dtype: DType) -> None:
        self.ranks, self.kind, self.dtype = ranks, kind, dtype
        self.pipes = isinstance(ranks[0], PipedRank)

    def tensors(self, tiles: int) -> list[Tensor]:
        """Return one for each rank; the last values are no whole tile."""
        count = tiles * TILE + 77
        return [mixed(PATTERNS[self.kind], self.dtype, count, rank.rank) for rank in self.ranks]

    def queue(self, rank: int, **arguments: object) -> None:
        """Run an exchange, and wait for it: what it receives was sent."""
        self.ranks[rank].exchange(self.dtype, **arguments)
        if not self.pipes:
            self.ranks[rank].stream.synchronize()

    def require(self, rank: int, found: DeviceMemory, expected: Bytes, what: str) -> None:
        """Stop where values differ or an exchange has failed."""
        same = (self.ranks[rank].get(found) == expected).all()
        statuses = [status for one in self.ranks for status in one.finish()]
        if not same or any(statuses):
            name = "pipes" if self.pipes else "links"
            raise SystemExit(f"{name}, {self.dtype.name} {self.kind} {what}: {same=}, {statuses}")


def check_messages(scene: Scene, tensor: Tensor, offset: int, **options: object) -> None:
    """Send to one peer, to two the same, and copy meanwhile."""
    sender, *receivers = scene.ranks
    values = sender.put(tensor.memory, offset)
    copied = sender.room(values.size, offset)
    for peers in ([1], [1, 2]):
        sends: Sent = [(peer, values) for peer in peers]
        scene.queue(0, sends=sends, copy=Copy(copied, values), **options)
        for rank in receivers[: len(peers)]:
            out = rank.room(values.size, offset)
            scene.queue(rank.rank, receives=[(0, out)])
            scene.require(rank.rank, out, tensor.memory, f"to {peers}, {offset=}, {options}")
    scene.require(0, copied, tensor.memory, "copied")


def check_folds(scene: Scene, tensors: list[Tensor], op: str, divisor: int) -> None:
    """Fold on rank 0 what the others have sent."""
    for rank, tensor in zip(scene.ranks[1:], tensors[1:], strict=True):
        scene.queue(rank.rank, sends=[(0, rank.put(tensor.memory))])
    own = scene.ranks[0].put(tensors[0].memory)
    out = scene.ranks[0].room(own.size)
    scene.queue(0, fold=Fold(op, own, out, divisor))
    scene.require(0, out, folded(op, tensors, divisor), f"{op} / {divisor} of three")


def check_pairs(scene: Scene, tensors: list[Tensor], op: str, divisor: int) -> None:
    """Fold on rank 0 what rank 1 has sent, with memory of its own and in place of what it sends."""
    expected = folded(op, tensors, divisor)
    for in_place in (False, True):
        other = scene.ranks[1].put(tensors[1].memory)
        scene.queue(1, sends=[(0, other)])
        own = scene.ranks[0].put(tensors[0].memory)
        out = own if in_place else scene.ranks[0].room(own.size)
        sends: Sent = [(1, own)]
        scene.queue(0, sends=sends, fold=Fold(op, own, out, divisor))
        scene.queue(1, receives=[(0, other)])
        what = f"{op} / {divisor} of two, {in_place=}"
        scene.require(0, out, expected, what)
        scene.require(1, other, tensors[0].memory, f"what was sent, {what}")


def check(dtype: DType, tiles: int) -> None:
    """Run all that has kernels of its own, for one data type."""
    for kind in PATTERNS:
        linked_scene = Scene(linked(3, STAGING_BYTES), kind, dtype)
        tensors = linked_scene.tensors(tiles)
        for offset in (0, dtype.itemsize):
            for menu in range(-1, 8):
                check_messages(linked_scene, tensors[0], offset, codec="tier", menu=menu)
            check_messages(linked_scene, tensors[0], offset, codec="raw")
        piped_scene = Scene(piped(3, STAGING_BYTES), kind, dtype)
        for codec in ("auto", "raw"):
            check_messages(piped_scene, tensors[0], 0, codec=codec)
        pairs = Scene(linked(2, STAGING_BYTES), kind, dtype)
        for op, divisor in OPERATORS:
            check_folds(linked_scene, tensors, op, divisor)
            check_pairs(pairs, tensors[:2], op, divisor)
        check_folds(piped_scene, tensors, "sum", 1)
        for scene in (linked_scene, piped_scene, pairs):
            for rank in scene.ranks:
                rank.links.disconnect()
            for rank in scene.ranks:
                rank.links.close()


def main() -> None:
    """Check each data type."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--module", type=Path)
    parser.add_argument("--tiles", type=int, default=24)
    names = [dtype.name for dtype in DType if dtype is not DType.BYTES]
    parser.add_argument("--dtype", nargs="+", default=names, choices=names)
    arguments = parser.parse_args()
    if arguments.module is not None:
        emulated_module.install(arguments.module)
    for name in arguments.dtype:
        check(DType[name], arguments.tiles)
        print(f"{name}: every exchange agrees with the CPU", flush=True)


if __name__ == "__main__":
    main()
