"""Allgather around a ring: every rank passes on what it received, frames as they are.

Each rank sends P-1 tensors to its neighbour, in P-1 steps; values are encoded once. It wins over
``direct`` where only neighbours have a good link. Scratch: ``LANES`` times 4 frames, whatever P.
"""

from __future__ import annotations

from collections.abc import Sequence

from uzipmpi.algorithms.channel import Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.ring import GATHER, Lane, gather_wave, lanes
from uzipmpi.algorithms.stream import Stream, Together, moving
from uzipmpi.typing import Tensor

__all__ = ["ring"]


@register("allgather", name="ring")
def ring(context: Context, send: Tensor, recvs: Sequence[Tensor]) -> Stream:
    """Gather the ``send`` of rank r to ``recvs[r]`` everywhere; sizes may differ by rank."""
    own = moving(context, send, recvs[context.rank])
    if context.size == 1:
        return own
    shards = [*recvs]
    shards[context.rank] = send
    return Together([own, *(lap(lane, shards) for lane in lanes(context, recvs))])


def lap(lane: Lane, shards: Sequence[Tensor]) -> Stream:
    """Gather a lane's waves one after the other; this rank's shard is what it sends."""
    channels = lane.channels(GATHER)

    def steps() -> Waits:
        for wave in lane.waves(shards):
            yield from gather_wave(lane, channels, wave)
            yield None
        yield from channels[1].flush()

    return Stream(steps(), *channels)
