"""Gather: every rank sends to the root, which receives from all side by side.

The root's link carries P-1 tensors however they reach it. Scratch on the root: 2 frames per peer.
"""

from __future__ import annotations

from collections.abc import Sequence

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.peers import others
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, Together, incoming, moving, outgoing
from uzipmpi.typing import Tensor

__all__ = ["linear"]


@register("gather", name="linear")
def linear(context: Context, send: Tensor, recvs: Sequence[Tensor] | None, root: int) -> Stream:
    """Collect the ``send`` of rank r in the root's ``recvs[r]``; sizes may differ between ranks."""
    if recvs is None:
        return outgoing(context, send, [root], context.tag)
    arriving = [incoming(context, recvs[peer], peer, context.tag) for peer in others(context)]
    return Together([*arriving, moving(context, send, recvs[root])])
