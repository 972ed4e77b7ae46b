"""Allreduce in two shots: every rank reduces one shard, then sends it to all.

Topology: all to all. Rank r receives shard r of every peer, folds the P contributions in rank
order with one rounding at the end, encodes the result once and sends it to all peers.
Each rank sends ``2 * (P-1)/P`` of the tensor, as a ring does, but in 2 steps in place of
``2 * (P-1)``, and values are coded twice in place of P times. Chunks of both shots overlap.

Scratch: per peer 6 frames and the values of one chunk.
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


@register("allreduce", name="two_shot")
def two_shot(context: Context, send: Tensor, recv: Tensor, op: Operator) -> Stream:
    """Reduce ``send`` over all ranks to ``recv``, which may be the same memory."""
    counts = even_counts(send.count, context.size)
    results = shards(recv, counts)
    peers = others(context)
    own = results[context.rank]
    return Together(
        # A peer's result overwrites our contribution to it only after the peer has received that.
        [incoming(context, results[peer], peer, context.tag + 1) for peer in peers]
        + reduce_shard(context, shards(send, counts), own, op, dests=peers)
    )
