"""The first shot of reductions: every rank collects and folds one shard.

The values of a shard come from all ranks chunk by chunk; a chunk is folded in rank order, with
fp32 accumulation where the type has 8 or 16 bits and one rounding, as soon as all have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from uzipmpi.algorithms.channel import Inbox, Outbox, Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import chunks
from uzipmpi.algorithms.peers import others
from uzipmpi.algorithms.scratch import scratch
from uzipmpi.algorithms.stream import Stream, outgoing
from uzipmpi.typing import Tensor

if TYPE_CHECKING:
    from uzipmpi.algorithms.operators import Operator

__all__ = ["reduce_shard"]


def reduce_shard(
    context: Context,
    sends: Sequence[Tensor],
    own: Tensor | None,
    op: Operator,
    dests: Sequence[int] = (),
) -> list[Stream]:
    """Return the streams that reduce this rank's shard to ``own`` and send it to ``dests``.

    Parameters
    ----------
    context
        The call. Contributions have tag ``context.tag``, results the next.
    sends
        This rank's contribution to the shard of each rank.
    own
        Where the reduced shard goes; may be the memory of ``sends[rank]``. None: to ``dests`` only.
    op
        The operator.
    dests
        Who receives the result as well.
    """
    peers = others(context)
    return [
        fold(context, sends[context.rank], own, op, dests),
        *(outgoing(context, sends[peer], [peer], context.tag) for peer in peers),
    ]


def fold(
    context: Context,
    contribution: Tensor,
    own: Tensor | None,
    op: Operator,
    dests: Sequence[int],
) -> Stream:
    """Fold the contributions of all ranks chunk by chunk, and send each chunk to ``dests``."""
    pieces = chunks(contribution, context.chunk_bytes)
    results = chunks(own, context.chunk_bytes) if own else [None] * len(pieces)
    inboxes = {
        peer: Inbox(context, peer, context.tag, len(pieces)) for peer in reversed(others(context))
    }
    outbox = Outbox(context, dests, context.tag + 1, len(pieces))

    def steps() -> Waits:
        buffers = {peer: scratch.take(context.chunk_bytes) for peer in inboxes}
        for piece, result in zip(pieces, results, strict=True):
            inputs = {context.rank: piece}
            for peer, inbox in inboxes.items():
                inputs[peer] = Tensor(buffers[peer][: piece.nbytes], piece.dtype)
                yield from inbox.receive(inputs[peer])
            # Not wanted here, the result takes the place of a peer's contribution.
            folded = result or inputs[dests[0]]
            op.fold([inputs[rank] for rank in range(context.size)], folded)
            if dests:
                yield from outbox.encode(folded)
            yield None
        for buffer in buffers.values():
            scratch.give(buffer)
        yield from outbox.flush()

    return Stream(steps(), *inboxes.values(), outbox)
