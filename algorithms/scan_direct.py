"""Scan and exscan in one step: every rank sends all it has to the ranks after it.

A rank folds what it has from the ranks before it, in rank order with one rounding. MPI does it in
fewer bytes, and is asked to where it knows the type; this serves types and operators that it lacks.
Scratch: 2 frames, and per rank before this one 2 frames and the values of one chunk.
"""

from __future__ import annotations

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import Outbox, Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.contributions import Contributions
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream
from uzipmpi.typing import Tensor

__all__ = ["exscan", "scan"]


@register("scan", name="direct")
def scan(context: Context, send: Tensor, recv: Tensor, op: Operator) -> Stream:
    """Reduce ``send`` over the ranks up to this one to ``recv``, which may be the same memory."""
    return prefix(context, send, recv, op, own=True)


@register("exscan", name="direct")
def exscan(context: Context, send: Tensor, recv: Tensor, op: Operator) -> Stream:
    """Reduce ``send`` over the ranks before this one to ``recv``, which rank 0 leaves as it is."""
    return prefix(context, send, recv, op, own=False)


def prefix(context: Context, send: Tensor, recv: Tensor, op: Operator, *, own: bool) -> Stream:
    """Send to the ranks after this one and fold what the ones before it, and itself, have."""
    pieces = context.chunks(send)
    results = context.chunks(recv)
    before, after = range(context.rank), range(context.rank + 1, context.size)
    contributions = Contributions(context, len(pieces), before)
    outbox = Outbox(context, after, context.tag, len(pieces))

    def steps() -> Waits:
        for piece, result in zip(pieces, results, strict=True):
            # A result in the place of a contribution overwrites only what was sent.
            if after:
                yield from outbox.encode(piece)
            inputs = yield from contributions.take(op, piece, result)
            if not own:
                inputs.pop()
            if inputs:
                folding = places.fold(context, op, inputs, result)
                yield from contributions.attributed(piece, folding)
            yield None
        contributions.close()
        yield from outbox.flush()

    return Stream(steps(), *contributions.inboxes.values(), outbox)
