"""Allreduce in one shot: every rank sends all it has to all others and folds for itself.

Each rank sends P-1 tensors in one step. For two ranks, where two-shot would send as many bytes in
two steps, and for tensors so small that a step costs more than their bytes. The fold is in rank
order with one rounding. Scratch: 2 frames, and per peer 2 frames and the values of one chunk.
"""

from __future__ import annotations

from itertools import islice

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import DEPTH, Outbox, Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.contributions import Contributions
from uzipmpi.algorithms.cuts import chunks
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.peers import others
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream
from uzipmpi.typing import Tensor

__all__ = ["one_shot"]


@register("allreduce", name="one_shot")
def one_shot(context: Context, send: Tensor, recv: Tensor, op: Operator) -> Stream:
    """Reduce ``send`` over all ranks to ``recv``, which may be the same memory."""
    pieces = chunks(send, context.chunk_bytes)
    results = chunks(recv, context.chunk_bytes)
    contributions = Contributions(context, len(pieces))
    outbox = Outbox(context, others(context), context.tag, len(pieces))

    def steps() -> Waits:
        # Sending runs ahead of folding: the wire stays busy, and a result in the place of a
        # contribution overwrites only what was sent.
        unsent = iter(pieces)
        for piece in islice(unsent, DEPTH):
            yield from outbox.encode(piece)
        for piece, result in zip(pieces, results, strict=True):
            inputs = yield from contributions.take(op, piece, result)
            folding = places.fold(context, op, inputs, result)
            yield from contributions.attributed(piece, folding)
            for following in islice(unsent, 1):
                yield from outbox.encode(following)
            yield None
        contributions.close()
        yield from outbox.flush()

    return Stream(steps(), *contributions.inboxes.values(), outbox)
