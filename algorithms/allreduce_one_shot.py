"""Allreduce in one shot: every rank sends all it has to all others and folds for itself.

Each rank sends P-1 tensors in one step. For two ranks, where two-shot would send as many bytes in
two steps, and for tensors so small that a step costs more than their bytes. The fold is in rank
order with one rounding. Scratch: 2 frames, and per peer 2 frames and the values of one chunk.
"""

from __future__ import annotations

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import Outbox, Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.contributions import Contributions
from uzipmpi.algorithms.cuts import chunks
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.peers import others
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, Together
from uzipmpi.typing import Tensor

__all__ = ["one_shot"]


@register("allreduce", name="one_shot")
def one_shot(context: Context, send: Tensor, recv: Tensor, op: Operator) -> Stream:
    """Reduce ``send`` over all ranks to ``recv``, which may be the same memory."""
    pieces = chunks(send, context.chunk_bytes)
    results = chunks(recv, context.chunk_bytes)
    contributions = Contributions(context, len(pieces))
    outbox = Outbox(context, others(context), context.tag, len(pieces))

    def sending() -> Waits:
        yield from outbox.encode_all(pieces)
        yield from outbox.flush()

    def folding() -> Waits:
        for after, (piece, result) in enumerate(zip(pieces, results, strict=True), 1):
            inputs = yield from contributions.take(op, piece, result)
            # A result in the place of a contribution may overwrite only what was sent.
            while outbox.unsent > len(pieces) - after:
                yield None
            steps = places.fold(context, op, inputs, result)
            yield from contributions.attributed(piece, steps)
            yield None
        contributions.close()

    return Together([Stream(sending(), outbox), Stream(folding(), *contributions.inboxes.values())])
