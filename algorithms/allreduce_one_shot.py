"""Allreduce in one shot: every rank sends all it has to all others and folds for itself.

Each rank sends P-1 tensors in one step. For two ranks, where two-shot would send as many bytes in
two steps, and for tensors so small that a step costs more than their bytes. The fold is in rank
order with one rounding. Scratch: 2 frames, and per peer 2 frames and the values of one chunk.
"""

from __future__ import annotations

from uzipmpi.algorithms import places
from uzipmpi.algorithms.begun import Ahead
from uzipmpi.algorithms.channel import Outbox, Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.contributions import Contributions
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.peers import others
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, Together
from uzipmpi.typing import Tensor

__all__ = ["one_shot"]


@register("allreduce", name="one_shot")
def one_shot(context: Context, send: Tensor, recv: Tensor, op: Operator) -> Stream:
    """Reduce ``send`` over all ranks to ``recv``, which may be the same memory."""
    pieces = context.chunks(send)
    results = context.chunks(recv)
    contributions = Contributions(context, len(pieces))
    # A result in the place of a contribution may overwrite only what was sent.
    in_place = places.overlap(send, recv)
    outbox = Outbox(context, others(context), context.tag, len(pieces))

    def sending() -> Waits:
        yield from outbox.encode_all(pieces)
        yield from outbox.flush()

    def folding() -> Waits:
        ahead = Ahead()
        try:
            for after, (piece, result) in enumerate(zip(pieces, results, strict=True), 1):
                yield from ahead.finish(contributions.frames_ahead(op, piece, result))
                inputs = yield from contributions.take(op, piece, result)
                if in_place and outbox.unsent > len(pieces) - after:
                    yield from ahead.finish()
                    while outbox.unsent > len(pieces) - after:
                        yield None
                steps = places.fold(context, op, inputs, result)
                ahead.begin(contributions.attributed(piece, steps))
            yield from ahead.finish()
        finally:
            ahead.close()
        contributions.close()

    return Together([Stream(sending(), outbox), Stream(folding(), *contributions.inboxes.values())])
