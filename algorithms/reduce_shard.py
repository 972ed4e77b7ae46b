"""The first shot of reductions: every rank collects and folds one shard.

The values of a shard come from all ranks chunk by chunk; a chunk is folded in rank order, with
fp32 accumulation where the type has 8 or 16 bits and one rounding, as soon as all have it.
"""

from __future__ import annotations

from collections.abc import Sequence

from uzipmpi.algorithms import places
from uzipmpi.algorithms.begun import Ahead
from uzipmpi.algorithms.channel import Outbox, Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.contributions import Contributions
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.peers import others
from uzipmpi.algorithms.stream import Stream, outgoing
from uzipmpi.typing import Tensor

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
    pieces = context.chunks(contribution)
    results = [None] * len(pieces) if own is None else context.chunks(own)
    contributions = Contributions(context, len(pieces))
    outbox = Outbox(context, dests, context.tag + 1, len(pieces))

    def steps() -> Waits:
        ahead = Ahead()
        try:
            for piece, result in zip(pieces, results, strict=True):
                most = contributions.frames_ahead(op, piece, result)
                yield from ahead.finish(most if outbox.has_room(len(ahead), most) else 0)
                inputs = yield from contributions.take(op, piece, result)
                if dests:
                    yield from outbox.room()
                    folding = outbox.fold_encode(op, inputs, piece, result)
                else:
                    assert result is not None
                    folding = places.fold(context, op, inputs, result)
                ahead.begin(contributions.attributed(piece, folding))
            yield from ahead.finish()
        finally:
            ahead.close()
        contributions.close()
        yield from outbox.flush()

    return Stream(steps(), *contributions.inboxes.values(), outbox)
