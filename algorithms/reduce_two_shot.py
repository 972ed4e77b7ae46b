"""Reduce in two shots: every rank reduces one shard and sends it to the root.

Each rank but the root sends all of its tensor once, in P parts; the root receives
``2 * (P-1)/P`` of a tensor. Sent whole to the root, which then folds alone, it would be ``P-1``
tensors over one link and all the work on one rank; with two ranks both ways cost the same.

Scratch: per peer 4 frames and the values of one chunk; on the root 6 frames.
"""

from __future__ import annotations

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import even_counts, shards
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.peers import others
from uzipmpi.algorithms.reduce_shard import reduce_shard
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, Together, incoming
from uzipmpi.typing import Tensor

__all__ = ["two_shot"]


@register("reduce", name="two_shot")
def two_shot(
    context: Context, send: Tensor, recv: Tensor | None, op: Operator, root: int
) -> Stream:
    """Reduce ``send`` over all ranks to the root's ``recv``, which may be the same memory."""
    counts = even_counts(send.count, context.size)
    sends = shards(send, counts)
    if recv is None:
        return Together(reduce_shard(context, sends, None, op, dests=[root]))
    results = shards(recv, counts)
    return Together(
        [incoming(context, results[peer], peer, context.tag + 1) for peer in others(context)]
        + reduce_shard(context, sends, results[root], op)
    )
