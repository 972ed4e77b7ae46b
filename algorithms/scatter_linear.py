"""Scatter: the root sends to every rank, to all side by side.

The root's link carries P-1 tensors however they leave it. Scratch on the root: 2 frames per peer.
"""

from __future__ import annotations

from collections.abc import Sequence

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.peers import others
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, Together, incoming, moving, outgoing
from uzipmpi.typing import Tensor

__all__ = ["linear"]


@register("scatter", name="linear")
def linear(context: Context, sends: Sequence[Tensor] | None, recv: Tensor, root: int) -> Stream:
    """Send the root's ``sends[r]`` to the ``recv`` of rank r; sizes may differ between ranks."""
    if sends is None:
        return incoming(context, recv, root, context.tag)
    leaving = [outgoing(context, sends[peer], [peer], context.tag) for peer in others(context)]
    return Together([*leaving, moving(context, sends[root], recv)])
