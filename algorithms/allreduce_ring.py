"""Allreduce around a ring: a reducing lap, then a gathering lap.

Each rank sends ``2 * (P-1)/P`` of the tensor to its neighbour, in ``2 * (P-1)`` steps. Values are
decoded, folded and encoded at each hop of the first lap; frames of the second are forwarded. It
wins where only neighbours have a good link. Order and rounding of the fold: see ``ring``.

Scratch: ``LANES`` times 8 frames and the values of one chunk, whatever P.
"""

from __future__ import annotations

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import even_counts, shards
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.ring import GATHER, REDUCE, Lane, gather_wave, lanes, reduce_wave
from uzipmpi.algorithms.stream import Stream, Together
from uzipmpi.typing import Tensor

__all__ = ["ring"]


@register("allreduce", name="ring", rank_order=False)
def ring(context: Context, send: Tensor, recv: Tensor, op: Operator) -> Stream:
    """Reduce ``send`` over all ranks to ``recv``, which may be the same memory."""
    if context.size == 1:
        return Stream(places.fold(context, op, [send], recv))
    counts = even_counts(send.count, context.size)
    sends, recvs = shards(send, counts), shards(recv, counts)
    return Together([both_laps(lane, sends, recvs, op) for lane in lanes(context, sends)])


def both_laps(lane: Lane, sends: list[Tensor], recvs: list[Tensor], op: Operator) -> Stream:
    """Reduce and gather a lane's waves one after the other."""
    reducing, gathering = lane.channels(REDUCE), lane.channels(GATHER)

    def steps() -> Waits:
        for wave, results in zip(lane.waves(sends), lane.waves(recvs), strict=True):
            yield from reduce_wave(lane, reducing, wave, results[lane.context.rank], op)
            yield from gather_wave(lane, gathering, results)
            yield None
        for _, outbox in (reducing, gathering):
            yield from outbox.flush()

    return Stream(steps(), *reducing, *gathering)
