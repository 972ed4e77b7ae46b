"""Alltoall in P-1 rounds: in round k rank r sends to r+k and receives from r-k.

No rank is everybody's destination at once. ``ROUNDS`` rounds run side by side, so that one which
waits for a late peer does not leave the link idle. Scratch: 4 frames for each of these rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, Together, incoming, moving, outgoing
from uzipmpi.typing import Tensor

__all__ = ["pairwise"]

ROUNDS = 4
STREAMS_PER_ROUND = 2


@register("alltoall", name="pairwise")
def pairwise(context: Context, sends: Sequence[Tensor], recvs: Sequence[Tensor]) -> Stream:
    """Send ``sends[r]`` to rank r and receive ``recvs[r]`` from it; no two may share memory."""
    return Together(rounds(context, sends, recvs), at_once=1 + ROUNDS * STREAMS_PER_ROUND)


def rounds(context: Context, sends: Sequence[Tensor], recvs: Sequence[Tensor]) -> Iterator[Stream]:
    """Make the streams of each round as they are asked for, after that of a rank's own part."""
    yield moving(context, sends[context.rank], recvs[context.rank])
    for distance in range(1, context.size):
        source = (context.rank - distance) % context.size
        dest = (context.rank + distance) % context.size
        yield incoming(context, recvs[source], source, context.tag)
        yield outgoing(context, sends[dest], [dest], context.tag)
