"""Rings: each rank sends to the next and receives from the one before.

Chunk w of every shard makes up wave w, which goes around the ring on its own. A step sends what
the step before received, so a single wave leaves the link idle while a chunk is coded. Hence
``LANES`` run side by side: lane l moves the waves l, l + LANES, ... and has tags of its own.

In a reduction shard j starts at rank j+1 and gathers one contribution per hop, the last at rank
j: it is folded over ranks j+1, ..., P-1, 0, ..., j, with one rounding to the tensor's type per
hop. In a gathering shard j starts at rank j, and its frames are forwarded as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import Inbox, Outbox, Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.contributions import attributed
from uzipmpi.algorithms.frame import Frame
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.scratch import scratch
from uzipmpi.typing import Tensor

__all__ = ["Lane", "Wave", "gather_wave", "lanes", "reduce_wave"]

LANES = 4
# The phases of a lane have tags of their own: their messages overtake each other.
REDUCE, GATHER = 0, 1
PHASES = 2

# A chunk of each shard; None where a shard has no more.
Wave = list[Tensor | None]


@dataclass(frozen=True)
class Lane:
    """Every ``LANES``-th wave of a ring.

    Parameters
    ----------
    context
        The call.
    index
        Which lane.
    lengths
        Chunks in each shard.
    """

    context: Context
    index: int
    lengths: Sequence[int]

    @property
    def numbers(self) -> range:
        """The waves that this lane moves."""
        return range(self.index, max(self.lengths), LANES)

    def waves(self, shards: Sequence[Tensor]) -> list[Wave]:
        """Return this lane's chunks of tensors that are cut as its shards."""
        cut = [self.context.chunks(shard) for shard in shards]
        return [
            [pieces[number] if number < len(pieces) else None for pieces in cut]
            for number in self.numbers
        ]

    def channels(self, phase: int) -> tuple[Inbox, Outbox]:
        """Return what connects this rank with its neighbours in one phase.

        Of each wave a rank does not receive the shard that it starts, nor send the one that ends
        here, having started at the next rank.
        """
        rank, size = self.context.rank, self.context.size
        starts = rank - 1 if phase == REDUCE else rank
        tag = self.context.tag + self.index * PHASES + phase
        received, sent = self._frames_but(starts % size), self._frames_but((starts + 1) % size)
        return (
            Inbox(self.context, (rank - 1) % size, tag, received),
            Outbox(self.context, [(rank + 1) % size], tag, sent),
        )

    def _frames_but(self, excluded: int) -> int:
        counts = [len(range(self.index, length, LANES)) for length in self.lengths]
        return sum(counts) - counts[excluded]


def lanes(context: Context, shards: Sequence[Tensor]) -> list[Lane]:
    """Return the lanes that tensors of the sizes of ``shards`` need."""
    lengths = [len(context.chunks(shard)) for shard in shards]
    return [Lane(context, index, lengths) for index in range(min(LANES, max(lengths)))]


def reduce_wave(
    lane: Lane, channels: tuple[Inbox, Outbox], wave: Wave, result: Tensor | None, op: Operator
) -> Waits:
    """Fold each shard's chunk on its way around; ``result`` is where this rank's shard ends."""
    rank, size = lane.context.rank, lane.context.size
    inbox, outbox = channels
    start = wave[(rank - 1) % size]
    if start is not None:
        yield from outbox.encode(start)
    buffer = scratch.take(lane.context.chunk_bytes)
    for summed in range(1, size):  # tensors in what comes
        shard = (rank - 1 - summed) % size
        own = wave[shard]
        if own is None:
            continue
        end = result if shard == rank else None
        partial = yield from inbox.operand(op, own, end, lambda: buffer)
        if shard != rank:
            yield from outbox.room()
            folding = outbox.fold_encode(op, [partial, own], own, None, divisor=1, summed=summed)
        else:
            assert end is not None
            folding = places.fold(lane.context, op, [partial, own], end, divisor=size)
        frames = {inbox: partial} if isinstance(partial, Frame) else {}
        yield from attributed(frames, own, folding)
    scratch.give(buffer)


def gather_wave(lane: Lane, channels: tuple[Inbox, Outbox], wave: Wave) -> Waits:
    """Send this rank's chunk around; decode the others', forwarding all but the last."""
    rank, size = lane.context.rank, lane.context.size
    inbox, outbox = channels
    start = wave[rank]
    if start is not None:
        yield from outbox.encode(start)
    for shard in ((rank - 1 - step) % size for step in range(size - 1)):
        result = wave[shard]
        if result is None:
            continue
        frame = yield from inbox.take()
        if shard == (rank + 1) % size:
            yield from inbox.decode(frame, result)
            lane.context.pool.give(frame.buffer)
        else:
            yield from outbox.forward(frame, result.nbytes)
            yield from inbox.decode(frame, result)
