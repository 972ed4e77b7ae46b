"""Frames in order between this rank and a peer, a bounded number of them under way.

A message is a frame and a trailer, in which the sender says which call it belongs to and how many
more will follow. So a receiver knows when its peer is in another call, or counts differently, and
after an error it knows what is still to come. An empty message is the last one: its sender failed.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

import numpy as np
from mpi4py import MPI

from uzipmpi.algorithms import places
from uzipmpi.algorithms.begun import Ahead
from uzipmpi.algorithms.call import TRAILER_BYTES, describe, unpack_trailer
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.frame import Frame, Operand
from uzipmpi.algorithms.operators import Operator
from uzipmpi.errors import FormatError, MismatchError
from uzipmpi.transports.shared import Loan, give_back, is_lent
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = ["Inbox", "Outbox", "Waits"]

# One frame on the wire, the next coded and waiting; one arriving while another is decoded.
DEPTH = 2
# On a GPU a frame is copied there, read, and given back: in the meantime the next one is copied.
GPU_DEPTH = 3

# A generator of steps yields the transfer that it waits for, or None to give others a turn.
Waits = Generator[Transfer | None, None, None]

# Sent in place of the frames still owed by a rank that failed: its peers fail too and do not wait.
NOTHING: Bytes = np.empty(0, np.uint8)


def depth(context: Context) -> int:
    """Return how many frames of a channel may be under way at this end."""
    return DEPTH if context.pool.gpu < 0 else GPU_DEPTH


class Inbox:
    """Frames from one source: a few receives are posted as long as so many are to come."""

    def __init__(self, context: Context, source: int, tag: int, n_frames: int) -> None:
        self._context, self._source, self._tag = context, source, tag
        self._pool = context.pool.arrivals(context.transport.is_near(source))
        self._buffer_bytes = context.message_bytes
        self._depth = depth(context)
        self._left = n_frames  # messages to come, by what both ends computed or the sender said
        self._posted: deque[tuple[Bytes, Transfer]] = deque()
        # What peers want back; whoever fails may be kept in mind, with its frames, by its error.
        self._loans: deque[weakref.ref[Loan]] = deque(maxlen=self._depth + 1)
        self._post()

    def take(self) -> Generator[Transfer | None, None, Frame]:
        """Wait for the next frame and hand it over."""
        buffer, transfer = self._posted[0]
        try:
            yield transfer
        except MPI.Exception:  # larger than any frame; its end is lost
            self._posted.popleft()
            self._left -= 1
            raise
        self._posted.popleft()
        self._left -= 1
        buffer, nbytes = self._found(buffer, transfer.nbytes)
        header = yield from self._arrived(buffer, nbytes)
        self._post()
        return Frame(buffer, nbytes - TRAILER_BYTES, header)

    def decode(self, frame: Frame, tensor: Tensor) -> Waits:
        """Decode a frame that was taken from here."""
        try:
            yield from places.decode(self._context, frame, tensor)
            give_back(frame.buffer)  # if it is a peer's, which may wait for it
        except (FormatError, MismatchError) as error:
            raise type(error)(f"{self._between}: {error}") from error

    def operand(
        self, op: Operator, own: Tensor, result: Tensor | None, room: Callable[[], Bytes]
    ) -> Generator[Transfer | None, None, Operand]:
        """Wait for the next frame, which is to be folded with ``own`` to ``result``.

        Returns
        -------
        Operand
            The frame, if frames are folded as they are there; else its values, which were decoded
            to what ``room`` returns.
        """
        if places.folds_frames(self._context, op, own, result):
            return (yield from self.take())
        values = Tensor(room()[: own.nbytes], own.dtype)
        yield from self.receive(values)
        return values

    def receive(self, tensor: Tensor) -> Waits:
        """Wait for the next frame and decode it."""
        frame = yield from self.take()
        yield from self._use(frame, tensor)

    def receive_all(self, tensors: Sequence[Tensor]) -> Waits:
        """Decode one frame after the other.

        A GPU begins with the next one, if that has come, while it is at one.
        """
        ahead = Ahead()
        try:
            for tensor in tensors:
                yield from ahead.finish(places.frames_ahead(tensor) if self.has_come() else 0)
                frame = yield from self.take()
                ahead.begin(self._use(frame, tensor))
            yield from ahead.finish()
        finally:
            ahead.close()

    def has_come(self) -> bool:
        """Whether the next frame is here."""
        return bool(self._posted) and self._posted[0][1].poll()

    def _use(self, frame: Frame, tensor: Tensor) -> Waits:
        yield from self.decode(frame, tensor)
        self.release(frame)

    def release(self, frame: Frame) -> None:
        """Give back the memory of a frame that was taken from here."""
        self._pool.give(frame.buffer)

    def drain(self) -> Waits:
        """Receive and drop what is still to come."""
        for loan in filter(None, [reference() for reference in self._loans]):
            loan.give_back()
        while self._left:
            self._post()
            buffer, transfer = self._posted[0]
            try:
                yield transfer
            except MPI.Exception:
                self._left -= 1
            else:
                self._left -= 1
                with suppress(FormatError, MismatchError, MPI.Exception):
                    found, nbytes = self._found(buffer, transfer.nbytes)
                    yield from self._arrived(found, nbytes)
                    give_back(found)
            self._posted.popleft()
            self._pool.give(buffer)
        while self._posted:  # for frames that the sender does not have
            buffer, transfer = self._posted[0]
            transfer.Cancel()
            with suppress(MPI.Exception):
                yield transfer
            self._posted.popleft()
            self._pool.give(buffer)

    @property
    def _between(self) -> str:
        return f"rank {self._context.rank}: frame from rank {self._source}"

    def _found(self, buffer: Bytes, nbytes: int) -> tuple[Bytes, int]:
        """Return where a message is, and its size: what came may only say so."""
        arrival = self._context.transport.arrived(buffer, nbytes, self._context.pool.gpu)
        if arrival is None:
            return buffer, nbytes
        self._loans.append(weakref.ref(arrival.loan))
        return arrival.memory, arrival.memory.size

    def _arrived(self, buffer: Bytes, nbytes: int) -> Generator[Transfer | None, None, Bytes]:
        """Note how many messages are to come; return the header of the frame in this one."""
        self._context.record.received_bytes += nbytes
        if not nbytes:
            self._left = 0
            raise FormatError(
                f"rank {self._context.rank}: expected a frame from rank {self._source}, "
                "found an empty message: that rank failed"
            )
        expected = self._left
        found = yield from places.edges(buffer, nbytes)
        trailer = None if found is None else unpack_trailer(found[1], 0)
        if found is None or trailer is None:
            raise FormatError(f"{self._between}: expected a frame and a trailer, found other bytes")
        call, self._left = trailer
        if call != self._context.call:
            raise MismatchError(
                f"rank {self._context.rank} called {describe(self._context.call)}, "
                f"rank {self._source} called {describe(call)}"
            )
        if self._left != expected:
            raise MismatchError(
                f"{self._between}: expected {expected} more frames after it, found {self._left}: "
                "the counts of the ranks differ"
            )
        return found[0]

    def _post(self) -> None:
        while len(self._posted) < min(self._depth, self._left):
            buffer = self._pool.take(self._buffer_bytes)
            transfer = self._context.transport.irecv(buffer, self._source, self._tag)
            self._posted.append((buffer, transfer))


class Outbox:
    """Frames to some destinations: at most a few are under way, ``n_frames`` in all.

    Attributes
    ----------
    unsent
        How many frames are still to be made.
    """

    def __init__(self, context: Context, dests: Sequence[int], tag: int, n_frames: int) -> None:
        self._context, self._dests, self._tag = context, dests, tag
        self._buffer_bytes = context.message_bytes
        self._depth = depth(context)
        self.unsent = n_frames
        self._sent: deque[tuple[Bytes, list[Transfer]]] = deque()

    def encode(self, tensor: Tensor) -> Waits:
        """Encode a tensor, as soon as there is room, and start sending its frame."""
        yield from self.room()
        yield from self._encode(tensor)

    def encode_all(self, tensors: Sequence[Tensor]) -> Waits:
        """Encode tensors one after the other, and start sending the frame of each.

        A GPU begins with the next one while a frame is on its way to the host, if there is room for
        it: what is begun is brought to its end before anybody waits for a peer.
        """
        ahead = Ahead()
        try:
            for tensor in tensors:
                most = places.frames_ahead(tensor)
                yield from ahead.finish(most)
                while len(ahead) and not self.has_room(len(ahead), most):
                    yield from ahead.finish(len(ahead) - 1)
                if not len(ahead):
                    yield from self.room()
                ahead.begin(self._encode(tensor))
            yield from ahead.finish()
        finally:
            ahead.close()

    def _encode(self, tensor: Tensor) -> Waits:
        buffer = self._context.pool.take(self._buffer_bytes)
        nbytes = yield from places.encode(self._context, tensor, buffer)
        yield from self._start(buffer, nbytes, tensor.nbytes)

    def has_room(self, n_begun: int, ahead: int) -> bool:
        """Whether one more frame may be begun though none is waited for."""
        while self._sent and all(transfer.finished() for transfer in self._sent[0][1]):
            self._gone()
        return len(self._sent) + n_begun < self._depth + ahead

    def fold_encode(
        self,
        op: Operator,
        inputs: Sequence[Operand],
        own: Tensor,
        result: Tensor | None,
        divisor: int | None = None,
        summed: int = 1,
    ) -> Waits:
        """Fold, once there is room, and start sending the frame of the result.

        The arguments are those of :func:`places.fold_encode`.
        """
        buffer = self._context.pool.take(self._buffer_bytes)
        nbytes = yield from places.fold_encode(
            self._context, op, inputs, own, result, buffer, divisor, summed
        )
        yield from self._start(buffer, nbytes, own.nbytes)

    def forward(self, frame: Frame, value_bytes: int) -> Waits:
        """Start sending a frame as it is, as soon as there is room; takes over its buffer.

        One in a peer's memory is copied: the peer may wait for that before it sends more.
        """
        yield from self.room()
        buffer = frame.buffer
        if is_lent(buffer):
            buffer = self._context.pool.take(self._buffer_bytes)
            buffer[: frame.nbytes] = frame.memory
        yield from self._start(buffer, frame.nbytes, value_bytes)

    def flush(self) -> Waits:
        """Wait until all that was sent has left."""
        while self._sent:
            yield from self._oldest()

    def drain(self) -> Waits:
        """Send an empty message, the last one, if frames are still owed."""
        if self.unsent:
            self.unsent = 0
            self._send(NOTHING, NOTHING)
        yield from self.flush()

    def room(self) -> Waits:
        """Wait until one more frame may be under way."""
        while len(self._sent) >= self._depth:
            yield from self._oldest()

    def _oldest(self) -> Waits:
        _, transfers = self._sent[0]
        yield from transfers
        self._gone()

    def _gone(self) -> None:
        """Give back the memory of the oldest frame, which has left."""
        buffer, _ = self._sent.popleft()
        if buffer is not NOTHING:
            self._context.pool.give(buffer)

    def _start(self, buffer: Bytes, nbytes: int, value_bytes: int) -> Waits:
        yield from places.seal(buffer, nbytes, self._context.call, self.unsent - 1)
        self.unsent -= 1
        nbytes += TRAILER_BYTES
        self._send(buffer, buffer[:nbytes])
        record = self._context.record
        record.value_bytes += value_bytes * len(self._dests)
        record.wire_bytes += nbytes * len(self._dests)

    def _send(self, buffer: Bytes, message: Bytes) -> None:
        transfers = self._context.transport.send_all(message, self._dests, self._tag)
        self._sent.append((buffer, transfers))
