"""Broadcast along a binomial tree: the root encodes once, the others forward frames as they come.

Rank v, counted from the root, receives from v without its lowest set bit and sends to v plus each
lower power of two. The root sends the tensor ``ceil(log2 P)`` times, and that is the number of
steps as well: for tensors of a few frames, where steps count. Scratch: 2 to 4 frames.
"""

from __future__ import annotations

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, outgoing, relay
from uzipmpi.typing import Tensor

__all__ = ["binomial"]


@register("bcast", name="binomial")
def binomial(context: Context, tensor: Tensor, root: int) -> Stream:
    """Copy the root's ``tensor`` to that of every rank."""
    place = (context.rank - root) % context.size
    # The root acts as if it had received from a rank beyond the last.
    lowest = place & -place or 1 << (context.size - 1).bit_length()
    children = [
        (place + step + root) % context.size
        for step in powers_below(lowest)
        if place + step < context.size
    ]
    if place == 0:
        return outgoing(context, tensor, children, context.tag)
    parent = (place - lowest + root) % context.size
    return relay(context, tensor, parent, children, context.tag)


def powers_below(limit: int) -> list[int]:
    """Return the powers of two below ``limit``, largest first: deep subtrees start early."""
    return [1 << bit for bit in reversed(range(limit.bit_length() - 1))]
