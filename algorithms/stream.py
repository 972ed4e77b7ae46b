"""Streams, the parts of an operation that move on their own, and the loop that drives them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import Inbox, Outbox, Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.transports.transfer import Transfer, wait_any
from uzipmpi.typing import Tensor

__all__ = [
    "Channel",
    "Stream",
    "Together",
    "carry_on_with",
    "drive",
    "incoming",
    "moving",
    "outgoing",
    "receiving",
    "relay",
    "sending",
]


# How long a stream that failed waits for peers without seeing anything of them: one that takes part
# in another call than this may never send what is owed.
PATIENCE = 2.0
PAUSE = 20e-6


class Channel(Protocol):
    """What a stream drains after an error."""

    def drain(self) -> Waits:
        """Take what peers still send, and send what they still wait for."""


class Stream:
    """Steps that run until they wait for a transfer, and go on when it is complete.

    Parameters
    ----------
    steps
        A generator that yields the transfer it waits for, or None to give others a turn. If the
        transfer fails, its exception is raised at the yield.
    channels
        What to drain if a step raises: peers are told, and what they still send is dropped.

    Attributes
    ----------
    done
        Whether nothing is left to do, and no transfer is under way.
    error
        The first exception that a step raised; it is set before ``done``.
    """

    done: bool
    error: Exception | None

    def __init__(self, steps: Waits, *channels: Channel) -> None:
        self.done = False
        self.error = None
        self._steps = steps
        self._channels = channels
        self._waiting: Transfer | None = None
        self._drains: list[Stream] = []
        self._deadline = 0.0

    def advance(self) -> bool:
        """Take one step if nothing has to be waited for; return whether one was taken."""
        if self._drains:
            return self._drain()
        return not self.done and self._step()

    def pending(self) -> list[Transfer]:
        """Return the transfers of which one must be complete before the next step."""
        if self._drains:
            return [transfer for drain in self._drains for transfer in drain.pending()]
        return [] if self._waiting is None else [self._waiting]

    def fail(self, error: Exception) -> None:
        """Give up here; peers are told."""
        if self.error is not None or self.done:
            return
        self._steps.close()
        self._waiting = None
        self.error = error
        self._drains = [Stream(channel.drain()) for channel in self._channels]
        self._deadline = time.monotonic() + PATIENCE
        self.done = not self._drains

    def _step(self) -> bool:
        failure: Exception | None = None
        try:
            if self._waiting is not None and not self._waiting.finished():
                return False
        except Exception as error:
            failure = error
        try:
            self._waiting = self._steps.throw(failure) if failure else next(self._steps)
        except StopIteration:
            self._waiting = None
            self.done = True
        except Exception as error:
            self.fail(error)
        return True

    def _drain(self) -> bool:
        # All side by side: a peer may wait for one of them before it serves another.
        advanced = advance_all(self._drains)
        if advanced:
            self._drains = [drain for drain in self._drains if not drain.done]
            self._deadline = time.monotonic() + PATIENCE
        elif time.monotonic() > self._deadline:
            for drain in self._drains:
                _carry_on(drain)
            self._drains = []
        self.done = not self._drains
        return advanced


class Together(Stream):
    """Streams that run side by side.

    Parameters
    ----------
    streams
        The streams, in the order in which they are started.
    at_once
        How many are started before the first must have ended; the iterable may make them as
        they are asked for. All by default.
    as_one
        If one fails, all do.
    """

    def __init__(
        self, streams: Iterable[Stream], at_once: int | None = None, *, as_one: bool = True
    ) -> None:
        self.error = None
        self._as_one = as_one
        self._unstarted = iter(streams)
        self._running = list(islice(self._unstarted, at_once))
        self.done = not self._running

    def advance(self) -> bool:
        """Let every stream take a step if it can; return whether any did."""
        advanced = ended = False
        for stream in self._running:
            if stream.advance():
                advanced = True
                ended = ended or stream.done
                if stream.error is not None and self.error is None:
                    self.error = stream.error
                    if self._as_one:
                        self.fail(stream.error)
        if ended or self.error is not None:
            left = [stream for stream in self._running if not stream.done]
            left += islice(self._unstarted, len(self._running) - len(left))
            self._running = left
            self.done = not left
        return advanced

    def pending(self) -> list[Transfer]:
        """Return the transfers of which one must be complete before the next step."""
        return [transfer for stream in self._running for transfer in stream.pending()]

    def fail(self, error: Exception) -> None:
        """Give up here; peers are told, also those of streams that were not started."""
        self.error = error
        for stream in self._running:
            stream.fail(error)
        self._unstarted = failed(self._unstarted, error)


def failed(streams: Iterable[Stream], error: Exception) -> Iterator[Stream]:
    """Let each stream that is started fail at once."""
    for stream in streams:
        stream.fail(error)
        yield stream


def advance_all(streams: Sequence[Stream]) -> bool:
    """Let every stream take a step if it can; return whether any did."""
    advanced = False
    for stream in streams:
        advanced = stream.advance() or advanced
    return advanced


def drive(streams: Sequence[Stream]) -> None:
    """Run streams to their end, blocking in MPI while none can advance.

    Raises
    ------
    Exception
        The first error of a stream, after all of them have ended.
    """
    stream = streams[0] if len(streams) == 1 else Together(streams, as_one=False)
    try:
        while not stream.done:
            if stream.advance():
                continue
            if stream.error is None:
                wait_any(stream.pending())
            else:  # what it waits for may never come: it gives up in the end
                time.sleep(PAUSE)
    except BaseException:
        # MPI still writes to the buffers of what is under way: they must outlive the interruption.
        _kept.append(stream)
        raise
    if stream.error is not None:
        raise stream.error


_kept: list[Stream] = []
_carry_on: Callable[[Stream], None] = _kept.append


def carry_on_with(carry_on: Callable[[Stream], None]) -> None:
    """Say what moves on streams that their caller does not wait for: peers may come late."""
    global _carry_on
    _carry_on = carry_on


def moving(context: Context, source: Tensor, destination: Tensor) -> Stream:
    """Copy a rank's own part, which goes through no frame; both may be the same memory."""
    return Stream(places.move(context, source, destination))


def outgoing(context: Context, tensor: Tensor, dests: Sequence[int], tag: int) -> Stream:
    """Encode a tensor once and send its frames to each of ``dests``."""
    return sending(context, context.chunks(tensor), dests, tag)


def incoming(context: Context, tensor: Tensor, source: int, tag: int) -> Stream:
    """Receive the frames of a tensor and decode them into it."""
    return receiving(context, context.chunks(tensor), source, tag)


def sending(context: Context, pieces: Sequence[Tensor], dests: Sequence[int], tag: int) -> Stream:
    """Encode each piece of a tensor once and send the frames to each of ``dests``."""
    outbox = Outbox(context, dests, tag, len(pieces))

    def steps() -> Waits:
        yield from outbox.encode_all(pieces)
        yield from outbox.flush()

    return Stream(steps(), outbox)


def receiving(context: Context, pieces: Sequence[Tensor], source: int, tag: int) -> Stream:
    """Receive the frames of a tensor's pieces and decode them."""
    inbox = Inbox(context, source, tag, len(pieces))
    return Stream(inbox.receive_all(pieces), inbox)


def relay(context: Context, tensor: Tensor, source: int, dests: Sequence[int], tag: int) -> Stream:
    """Receive the frames of a tensor, send each on to ``dests`` as it is, and decode it."""
    if not dests:
        return incoming(context, tensor, source, tag)
    pieces = context.chunks(tensor)
    inbox = Inbox(context, source, tag, len(pieces))
    outbox = Outbox(context, dests, tag, len(pieces))

    def steps() -> Waits:
        for piece in pieces:
            frame = yield from inbox.take()
            yield from outbox.forward(frame, piece.nbytes)
            yield from inbox.decode(frame, piece)
            yield None
        yield from outbox.flush()

    return Stream(steps(), inbox, outbox)
