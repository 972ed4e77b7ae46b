"""Split send: the fixed part of a frame leaves in slices while the rest is still being coded.

Everything before the directory of a frame has its address before anything is coded (FORMAT.md),
and is 92% of it or more. Messages, in order: the slices of the fixed part after the header; the
header, which is final last; the rest. A frame that is ``raw`` from the start has no slices. If one
grows so large on the way that it becomes ``raw``, the slices so far were sent in vain, those still
to come are empty, and the rest begins after the header.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from mpi4py import MPI

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import NOTHING, Waits
from uzipmpi.algorithms.context import CODEC_AT, RAW, Context
from uzipmpi.algorithms.frame import Frame
from uzipmpi.algorithms.scratch import scratch
from uzipmpi.algorithms.stream import Stream
from uzipmpi.errors import FormatError, MismatchError
from uzipmpi.kernels import codec
from uzipmpi.kernels.codec import HEADER_BYTES
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = ["SplitInbox", "SplitOutbox", "split_incoming", "split_outgoing"]

# Groups of 8 tiles that are coded between two looks at the wire.
GROUPS_PER_TURN = 16


def slices(frame: Bytes, fixed_stop: int, slice_bytes: int) -> list[Bytes]:
    """Cut the fixed part of a frame, without its header."""
    return [
        frame[start : min(start + slice_bytes, fixed_stop)]
        for start in range(HEADER_BYTES, fixed_stop, slice_bytes)
    ]


class SplitOutbox:
    """A frame that is sent while it is made."""

    def __init__(self, context: Context, tensor: Tensor, dest: int, tag: int) -> None:
        self._context, self._dest, self._tag = context, dest, tag
        self.tensor = tensor
        self.frame = scratch.take(codec.bound(tensor.count, tensor.dtype))
        self.encoder = codec.Encoder(
            tensor,
            self.frame,
            codec="raw" if tensor.dtype is DType.BYTES else context.config.codec,
            verify=context.config.verify,
        )
        raw = self.encoder.fixed_stop >= self.frame.size
        self.fixed_stop = HEADER_BYTES if raw else self.encoder.fixed_stop
        self.unsent = deque(slices(self.frame, self.fixed_stop, context.chunk_bytes))
        self._owed = len(self.unsent) + 2
        self._sent: deque[Transfer] = deque()

    def send(self, message: Bytes, value_bytes: int = 0) -> None:
        """Start sending the next message."""
        self._owed -= 1
        self._sent.append(self._context.transport.isend(message, self._dest, self._tag))
        self._context.record.wire_bytes += message.size
        self._context.record.value_bytes += value_bytes

    def reap(self) -> None:
        """Forget what has left; MPI moves on with the rest at this occasion."""
        while self._sent and self._sent[0].finished():
            self._sent.popleft()

    def flush(self) -> Waits:
        """Wait until all that was sent has left."""
        yield from self._sent

    def drain(self) -> Waits:
        """Send an empty message in place of each one still owed."""
        while self._owed:
            self.send(NOTHING)
        yield from self.flush()


def split_outgoing(outbox: SplitOutbox) -> Stream:
    """Code a tensor and send each slice of its frame as soon as it is final."""

    def steps() -> Waits:
        sent = HEADER_BYTES
        while outbox.unsent:
            final = outbox.encoder.advance(GROUPS_PER_TURN)
            while outbox.unsent and sent + outbox.unsent[0].size <= final:
                message = outbox.unsent.popleft()
                sent += message.size
                outbox.send(message)
            if outbox.encoder.fell_back:
                for _ in outbox.unsent:
                    outbox.send(NOTHING)
                break
            outbox.reap()
            yield None
        frame = outbox.frame[: outbox.encoder.finish()]
        outbox.send(frame[:HEADER_BYTES])
        outbox.send(frame[rest_start(frame, outbox.fixed_stop) :], outbox.tensor.nbytes)
        yield from outbox.flush()
        scratch.give(outbox.frame)

    return Stream(steps(), outbox)


def rest_start(header: Bytes, fixed_stop: int) -> int:
    """Return where the last message of a split frame begins."""
    return HEADER_BYTES if header[CODEC_AT] == RAW else fixed_stop


class SplitInbox:
    """The places of a frame that arrives in slices; all receives but the last are posted at once.

    Raises
    ------
    FormatError
        If a tensor of ``nbytes`` cannot have such a fixed part.
    """

    def __init__(
        self, context: Context, nbytes: int, source: int, tag: int, fixed_stop: int
    ) -> None:
        bound = HEADER_BYTES + nbytes
        if not HEADER_BYTES <= fixed_stop <= bound:
            raise FormatError(f"expected a fixed part within {bound} bytes, found {fixed_stop}")
        self._context, self._source, self._tag = context, source, tag
        self._fixed_stop = fixed_stop
        self._frame = scratch.take(bound)
        places = slices(self._frame, fixed_stop, context.chunk_bytes)
        places.append(self._frame[:HEADER_BYTES])
        self._posted = deque((place, self._post(place)) for place in places)
        self._rest_posted = False

    def receive(self, tensor: Tensor) -> Waits:
        """Wait for all messages and decode the frame."""
        filled = True
        while self._posted:
            place, transfer = self._posted[0]
            yield transfer
            self._posted.popleft()
            self._context.record.received_bytes += transfer.nbytes
            filled = filled and transfer.nbytes == place.size
        # The header came last; where it says raw, slices may be missing, but it may not.
        if not filled and not (transfer.nbytes == HEADER_BYTES and self._frame[CODEC_AT] == RAW):
            raise FormatError(
                f"rank {self._context.rank}: expected slices of a split frame from rank "
                f"{self._source} that fill their places, found shorter ones: that rank failed"
            )
        start = rest_start(self._frame, self._fixed_stop)
        rest = self._post_rest(self._frame[start:])
        yield rest
        self._posted.clear()
        self._context.record.received_bytes += rest.nbytes
        try:
            yield from places.decode(
                self._context, Frame.of(self._frame[: start + rest.nbytes]), tensor
            )
        except (FormatError, MismatchError) as error:
            raise type(error)(
                f"rank {self._context.rank}: frame from rank {self._source}: {error}"
            ) from error
        scratch.give(self._frame)

    def drain(self) -> Waits:
        """Receive and drop what is still to come."""
        while self._posted or not self._rest_posted:
            if not self._posted:
                self._post_rest(self._frame)
            _, transfer = self._posted.popleft()
            with suppress(MPI.Exception):
                yield transfer

    def _post(self, place: Bytes) -> Transfer:
        return self._context.transport.irecv(place, self._source, self._tag)

    def _post_rest(self, place: Bytes) -> Transfer:
        rest = self._post(place)
        self._posted.append((place, rest))
        self._rest_posted = True
        return rest


def split_incoming(inbox: SplitInbox, tensor: Tensor) -> Stream:
    """Receive a split frame and decode it when it is complete."""
    return Stream(inbox.receive(tensor), inbox)
