"""What all ranks contribute to one tensor, brought together chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import Inbox
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.frame import Frame, Operand
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.peers import others
from uzipmpi.algorithms.scratch import scratch
from uzipmpi.errors import FormatError, MismatchError
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = ["Contributions", "attributed"]

T = TypeVar("T")


class Contributions:
    """What other ranks send with tag ``context.tag``, to be folded: frames, or values in scratch.

    Parameters
    ----------
    context
        The call.
    n_chunks
        Chunks of the tensor; each peer sends as many frames.
    peers
        Who sends; by default all others, reversed: the rank for which we are the first
        destination is the first to be heard.

    Attributes
    ----------
    inboxes
        Where the frames arrive, by rank.
    """

    def __init__(self, context: Context, n_chunks: int, peers: Sequence[int] | None = None) -> None:
        self._context = context
        if peers is None:
            peers = others(context)[::-1]
        self.inboxes = {peer: Inbox(context, peer, context.tag, n_chunks) for peer in peers}
        self._buffers: dict[int, Bytes] = {}
        self._inputs: dict[int, Operand] = {}

    def take(
        self, op: Operator, own: Tensor, result: Tensor | None
    ) -> Generator[Transfer | None, None, list[Operand]]:
        """Wait for the next chunk of every peer; return all in rank order, ``own`` among them.

        They are to be folded to ``result``. Values stay valid until the next call, frames until
        they are released.
        """
        self._inputs = {self._context.rank: own}
        for peer, inbox in self.inboxes.items():
            self._inputs[peer] = yield from inbox.operand(op, own, result, self._room_of(peer))
        return [self._inputs[rank] for rank in sorted(self._inputs)]

    def frames_ahead(self, op: Operator, own: Tensor, result: Tensor | None) -> int:
        """Return how many folds may be under way when the next chunk is taken.

        None if that has to be waited for, or if peers' values are decoded to the same scratch.
        """
        if not places.folds_frames(self._context, op, own, result):
            return 0
        return int(all(inbox.has_come() for inbox in self.inboxes.values()))

    def attributed(
        self, own: Tensor, steps: Generator[Transfer | None, None, T]
    ) -> Generator[Transfer | None, None, T]:
        """Take the steps that fold what was taken: :func:`attributed`."""
        frames = {
            self.inboxes[rank]: operand
            for rank, operand in self._inputs.items()
            if isinstance(operand, Frame)
        }
        return attributed(frames, own, steps)

    def close(self) -> None:
        """Give the scratch back."""
        for buffer in self._buffers.values():
            scratch.give(buffer)

    def _room_of(self, peer: int) -> Callable[[], Bytes]:
        def room() -> Bytes:
            if peer not in self._buffers:
                self._buffers[peer] = scratch.take(self._context.chunk_bytes)
            return self._buffers[peer]

        return room


def attributed(
    frames: Mapping[Inbox, Frame], own: Tensor, steps: Generator[Transfer | None, None, T]
) -> Generator[Transfer | None, None, T]:
    """Take the steps of a fold, and release its frames; if it refuses one, say whose it is.

    Parameters
    ----------
    frames
        Which frames are folded as they are, and where they came in.
    own
        A tensor of their kind.
    steps
        The fold.
    """
    try:
        done = yield from steps
    except (FormatError, MismatchError):
        for inbox, frame in frames.items():
            room = Tensor(places.room(own.nbytes, like=own), own.dtype)
            yield from inbox.decode(frame, room)
        raise
    # At once: a peer may not send another frame before.
    for inbox, frame in frames.items():
        inbox.release(frame)
    return done
