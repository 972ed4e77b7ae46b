"""Broadcast in two hops: the root sends each rank one shard, which that rank passes to all others.

The tensor is cut into P-1 shards. The root encodes each once and sends it to one rank, which
forwards every frame as it is to the P-2 others and decodes it. Root and peers each send no more
than one tensor, whatever P, and chunks of both hops overlap: for tensors of many frames.
Scratch: 2 frames per peer, and 2.
"""

from __future__ import annotations

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import byte_shards
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, Together, incoming, outgoing, relay
from uzipmpi.typing import Tensor

__all__ = ["scatter_allgather"]


@register("bcast", name="scatter_allgather")
def scatter_allgather(context: Context, tensor: Tensor, root: int) -> Stream:
    """Copy the root's ``tensor`` to that of every rank."""
    peers = [rank for rank in range(context.size) if rank != root]
    if not peers:
        return Together([])
    pieces = dict(zip(peers, byte_shards(tensor, len(peers)), strict=True))
    tag = context.tag
    if context.rank == root:
        return Together([outgoing(context, pieces[peer], [peer], tag) for peer in peers])
    own = pieces.pop(context.rank)
    return Together(
        [relay(context, own, root, list(pieces), tag)]
        + [incoming(context, piece, peer, tag) for peer, piece in pieces.items()]
    )
