"""Allgather in one step: every rank encodes its tensor once and sends it to all.

Each rank sends its tensor P-1 times and receives that of each peer; all transfers run side by
side. One step in place of a ring's P-1. Scratch: 2 frames, and 2 per peer.
"""

from __future__ import annotations

from collections.abc import Sequence

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.peers import others
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, Together, incoming, moving, outgoing
from uzipmpi.typing import Tensor

__all__ = ["direct"]


@register("allgather", name="direct")
def direct(context: Context, send: Tensor, recvs: Sequence[Tensor]) -> Stream:
    """Gather the ``send`` of rank r to ``recvs[r]`` everywhere; sizes may differ by rank."""
    peers = others(context)
    streams = [incoming(context, recvs[peer], peer, context.tag) for peer in reversed(peers)]
    streams.append(moving(context, send, recvs[context.rank]))
    return Together([*streams, outgoing(context, send, peers, context.tag)])
