"""Allreduce in three phases, of which one leaves the node: reduce in it, exchange, gather in it.

The tensor is cut into as many shards as the smallest node has ranks. In a node every shard is
reduced by one rank, uncompressed; the ranks of all nodes that have the same shard reduce it as in
two_shot, compressed; then a node's ranks give each other what they have. Of N nodes with L ranks
each, a rank sends ``2 * (N-1)/N / L`` of the tensor to other nodes, where two_shot sends ``2 *
(N-1)/N``. The result of a node is rounded, and then that of all: within a node the order is that of
the ranks, nodes are in the order of their first rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from uzipmpi.algorithms.allgather_direct import direct
from uzipmpi.algorithms.allreduce_two_shot import two_shot
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import even_counts, shards
from uzipmpi.algorithms.operators import Operator, Predefined
from uzipmpi.algorithms.reduce_shard import reduce_shard
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, Together
from uzipmpi.typing import Tensor

__all__ = ["hierarchical"]

# Of the phases, of which each takes at most two.
NODE_TAG, ACROSS_TAG, GATHER_TAG = 0, 2, 4


@register("allreduce", name="hierarchical", rank_order=False)
def hierarchical(context: Context, send: Tensor, recv: Tensor, op: Operator) -> Stream:
    """Reduce ``send`` over all ranks to ``recv``, which may be the same memory."""
    nodes = context.by_node()
    mine = next(node for node in nodes if context.rank in node)
    place, n_shards = mine.index(context.rank), min(map(len, nodes))
    counts = even_counts(send.count, n_shards) + [0] * (len(mine) - n_shards)
    results = shards(recv, counts)
    own, node = results[place], plainly(context.among(mine, NODE_TAG))
    first, last = op, op
    if isinstance(op, Predefined) and op.averages:
        first = dataclasses.replace(op, averages=False)
        last = dataclasses.replace(op, by=context.size)

    def phases() -> Iterator[Stream]:
        yield Together(reduce_shard(node, shards(send, counts), own, first))
        if place < n_shards:
            across = context.among([ranks[place] for ranks in nodes], ACROSS_TAG)
            yield two_shot(across, own, own, last)
        yield direct(plainly(context.among(mine, GATHER_TAG)), own, results)

    return Together(phases(), at_once=1)


def plainly(context: Context) -> Context:
    """Return the context of a phase that compresses nothing."""
    return dataclasses.replace(context, config=dataclasses.replace(context.config, codec="raw"))
