"""Reduce_scatter around a ring: shards collect one contribution per hop and end at their rank.

Each rank sends ``(P-1)/P`` of the tensor to its neighbour, in P-1 steps that decode, fold and
encode. Order and rounding of the fold: see ``ring``. Scratch: ``LANES`` times 4 frames and a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import shards
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.ring import REDUCE, Lane, lanes, reduce_wave
from uzipmpi.algorithms.stream import Stream, Together
from uzipmpi.typing import Tensor

__all__ = ["ring"]


@register("reduce_scatter", name="ring", rank_order=False)
def ring(
    context: Context, send: Tensor, recv: Tensor, counts: Sequence[int], op: Operator
) -> Stream:
    """Reduce ``send`` over all ranks and leave shard r, of ``counts[r]`` values, on rank r.

    ``recv`` may be the memory of this rank's shard of ``send``, but of no other part of it.
    """
    if context.size == 1:
        return Stream(places.fold(context, op, [send], recv))
    sends = shards(send, counts)
    return Together([lap(lane, sends, recv, op) for lane in lanes(context, sends)])


def lap(lane: Lane, sends: list[Tensor], recv: Tensor, op: Operator) -> Stream:
    """Reduce a lane's waves one after the other."""
    channels = lane.channels(REDUCE)
    results = dict(enumerate(lane.context.chunks(recv)))

    def steps() -> Waits:
        for number, wave in zip(lane.numbers, lane.waves(sends), strict=True):
            yield from reduce_wave(lane, channels, wave, results.get(number), op)
            yield None
        yield from channels[1].flush()

    return Stream(steps(), *channels)
