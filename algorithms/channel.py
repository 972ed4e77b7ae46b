"""Frames in order between this rank and a peer, a bounded number of them under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.scratch import scratch
from uzipmpi.errors import FormatError
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = ["DEPTH", "Frame", "Inbox", "Outbox", "Waits"]

# One frame on the wire, the next coded and waiting; one arriving while another is decoded.
DEPTH = 2

# A generator of steps yields the transfer that it waits for, or None to give others a turn.
Waits = Generator[Transfer | None, None, None]

# Sent in place of a frame by a rank that failed, so that its peers fail too and do not wait.
NOTHING: Bytes = np.empty(0, np.uint8)


class Frame(NamedTuple):
    """A frame at the start of a scratch buffer, owned by whoever holds this."""

    buffer: Bytes
    nbytes: int

    @property
    def memory(self) -> Bytes:
        """The frame itself."""
        return self.buffer[: self.nbytes]


class Inbox:
    """Frames from one source: ``DEPTH`` receives are posted until all ``n_frames`` were taken."""

    def __init__(self, context: Context, source: int, tag: int, n_frames: int) -> None:
        self._context, self._source, self._tag = context, source, tag
        self._buffer_bytes = context.frame_bytes
        self._unposted = n_frames
        self._posted: deque[tuple[Bytes, Transfer]] = deque()
        self._post()

    def take(self) -> Generator[Transfer | None, None, Frame]:
        """Wait for the next frame and hand it over."""
        buffer, transfer = self._posted[0]
        yield transfer
        self._posted.popleft()
        self._post()
        self._context.record.received_bytes += transfer.nbytes
        if transfer.nbytes == 0:
            raise FormatError(
                f"rank {self._context.rank}: expected a frame from rank {self._source}, "
                "found an empty message: that rank failed"
            )
        return Frame(buffer, transfer.nbytes)

    def decode(self, frame: Frame, tensor: Tensor) -> None:
        """Decode a frame that was taken from here."""
        try:
            self._context.decode(frame.memory, tensor)
        except FormatError as error:
            raise FormatError(
                f"rank {self._context.rank}: frame from rank {self._source}: {error}"
            ) from error

    def receive(self, tensor: Tensor) -> Waits:
        """Wait for the next frame and decode it."""
        frame = yield from self.take()
        self.decode(frame, tensor)
        scratch.give(frame.buffer)

    def drain(self) -> Waits:
        """Receive and drop what is still to come."""
        while self._posted:
            buffer, transfer = self._posted.popleft()
            with suppress(MPI.Exception):
                yield transfer
            scratch.give(buffer)
            self._post()

    def _post(self) -> None:
        while self._unposted and len(self._posted) < DEPTH:
            buffer = scratch.take(self._buffer_bytes)
            transfer = self._context.transport.irecv(buffer, self._source, self._tag)
            self._posted.append((buffer, transfer))
            self._unposted -= 1


class Outbox:
    """Frames to some destinations: at most ``DEPTH`` are under way, ``n_frames`` in all."""

    def __init__(self, context: Context, dests: Sequence[int], tag: int, n_frames: int) -> None:
        self._context, self._dests, self._tag = context, dests, tag
        self._buffer_bytes = context.frame_bytes
        self._unsent = n_frames
        self._sent: deque[tuple[Bytes, list[Transfer]]] = deque()

    def encode(self, tensor: Tensor) -> Waits:
        """Encode a tensor, as soon as there is room, and start sending its frame."""
        yield from self._room()
        buffer = scratch.take(self._buffer_bytes)
        self._start(buffer, self._context.encode(tensor, buffer), tensor.nbytes)

    def forward(self, frame: Frame, value_bytes: int) -> Waits:
        """Start sending a frame as it is, as soon as there is room; takes over its buffer."""
        yield from self._room()
        self._start(frame.buffer, frame.nbytes, value_bytes)

    def flush(self) -> Waits:
        """Wait until all that was sent has left."""
        while self._sent:
            yield from self._oldest()

    def drain(self) -> Waits:
        """Send an empty message in place of each frame still owed."""
        while self._unsent:
            yield from self._room()
            self._start(NOTHING, 0, 0)
        yield from self.flush()

    def _room(self) -> Waits:
        while len(self._sent) >= DEPTH:
            yield from self._oldest()

    def _oldest(self) -> Waits:
        buffer, transfers = self._sent[0]
        yield from transfers
        self._sent.popleft()
        scratch.give(buffer)

    def _start(self, buffer: Bytes, nbytes: int, value_bytes: int) -> None:
        self._unsent -= 1
        message = buffer[:nbytes]
        isend = self._context.transport.isend
        self._sent.append((buffer, [isend(message, dest, self._tag) for dest in self._dests]))
        record = self._context.record
        record.value_bytes += value_bytes * len(self._dests)
        record.wire_bytes += nbytes * len(self._dests)
