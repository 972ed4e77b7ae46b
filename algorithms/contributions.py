"""What all ranks contribute to one tensor, brought together chunk by chunk."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import Inbox
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.peers import others
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = ["Contributions"]


class Contributions:
    """Frames from other ranks, tag ``context.tag``, decoded to scratch.

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

    def take(self, own: Tensor) -> Generator[Transfer | None, None, list[Tensor]]:
        """Wait for the next chunk of every peer; return all in rank order, ``own`` among them.

        They stay valid until the next call.
        """
        values = {self._context.rank: own}
        for peer, inbox in self.inboxes.items():
            if peer not in self._buffers:
                self._buffers[peer] = places.room(self._context.chunk_bytes, like=own)
            values[peer] = Tensor(self._buffers[peer][: own.nbytes], own.dtype)
            yield from inbox.receive(values[peer])
        return [values[rank] for rank in sorted(values)]

    def close(self) -> None:
        """Give the scratch back."""
        for buffer in self._buffers.values():
            places.give_room(buffer)
