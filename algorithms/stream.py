"""Streams, the parts of an operation that move on their own, and the loop that drives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from mpi4py import MPI

from uzipmpi.algorithms.channel import Inbox, Outbox, Waits
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import chunks
from uzipmpi.transports.transfer import Transfer, wait_any
from uzipmpi.typing import Tensor

__all__ = [
    "Channel",
    "Stream",
    "drive",
    "incoming",
    "outgoing",
    "receiving",
    "relay",
    "sending",
]


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
        What to drain if a step raises: peers expect a known number of messages, whatever happens.

    Attributes
    ----------
    done
        Whether nothing is left to do, and no transfer is under way.
    error
        The first exception that a step raised.
    """

    def __init__(self, steps: Waits, *channels: Channel) -> None:
        self.done = False
        self.error: Exception | None = None
        self._steps = steps
        self._channels = channels
        self._waiting: Transfer | None = None
        self._drains: list[Stream] = []

    def advance(self) -> bool:
        """Take one step if nothing has to be waited for; return whether one was taken."""
        if self._drains:
            # All side by side: a peer may wait for one of them before it serves another.
            advanced = advance_all(self._drains)
            self._drains = [drain for drain in self._drains if not drain.done]
            self.done = not self._drains
            return advanced
        return not self.done and self._step()

    def pending(self) -> list[Transfer]:
        """Return the transfers of which one must be complete before the next step."""
        if self._drains:
            return [transfer for drain in self._drains for transfer in drain.pending()]
        return [] if self._waiting is None else [self._waiting]

    def _step(self) -> bool:
        failure: MPI.Exception | None = None
        try:
            if self._waiting is not None and not self._waiting.finished():
                return False
        except MPI.Exception as error:
            failure = error
        try:
            self._waiting = self._steps.throw(failure) if failure else next(self._steps)
        except StopIteration:
            self._waiting = None
            self.done = True
        except Exception as error:
            self._waiting = None
            self.error = error
            self._drains = [Stream(channel.drain()) for channel in self._channels]
            self.done = not self._drains
        return True


def advance_all(streams: Sequence[Stream]) -> bool:
    """Let every stream take a step if it can; return whether any did."""
    return sum(stream.advance() for stream in streams) > 0


def drive(streams: Iterable[Stream], at_once: int | None = None) -> None:
    """Run streams to their end, blocking in MPI while none can advance.

    Parameters
    ----------
    streams
        The streams, in the order in which they are started.
    at_once
        How many are started before the first must have ended; the iterable may make them as
        they are asked for. All by default.

    Raises
    ------
    Exception
        The first error of a stream, after all of them have ended.
    """
    waiting = iter(streams)
    running = list(islice(waiting, at_once))
    failed: Exception | None = None
    try:
        while running:
            if not advance_all(running):
                wait_any([transfer for stream in running for transfer in stream.pending()])
                continue
            ended = [stream for stream in running if stream.done]
            if ended:
                failed = failed or next((s.error for s in ended if s.error), None)
                running = [stream for stream in running if not stream.done]
                running += islice(waiting, len(ended))
    except BaseException:
        # MPI still writes to the buffers of what is under way: they must outlive the interruption.
        _interrupted.extend(running)
        raise
    if failed is not None:
        raise failed


_interrupted: list[Stream] = []


def outgoing(context: Context, tensor: Tensor, dests: Sequence[int], tag: int) -> Stream:
    """Encode a tensor once and send its frames to each of ``dests``."""
    return sending(context, chunks(tensor, context.chunk_bytes), dests, tag)


def incoming(context: Context, tensor: Tensor, source: int, tag: int) -> Stream:
    """Receive the frames of a tensor and decode them into it."""
    return receiving(context, chunks(tensor, context.chunk_bytes), source, tag)


def sending(context: Context, pieces: Sequence[Tensor], dests: Sequence[int], tag: int) -> Stream:
    """Encode each piece of a tensor once and send the frames to each of ``dests``."""
    outbox = Outbox(context, dests, tag, len(pieces))

    def steps() -> Waits:
        for piece in pieces:
            yield from outbox.encode(piece)
            yield None
        yield from outbox.flush()

    return Stream(steps(), outbox)


def receiving(context: Context, pieces: Sequence[Tensor], source: int, tag: int) -> Stream:
    """Receive the frames of a tensor's pieces and decode them."""
    inbox = Inbox(context, source, tag, len(pieces))

    def steps() -> Waits:
        for piece in pieces:
            yield from inbox.receive(piece)
            yield None

    return Stream(steps(), inbox)


def relay(context: Context, tensor: Tensor, source: int, dests: Sequence[int], tag: int) -> Stream:
    """Receive the frames of a tensor, send each on to ``dests`` as it is, and decode it."""
    if not dests:
        return incoming(context, tensor, source, tag)
    pieces = chunks(tensor, context.chunk_bytes)
    inbox = Inbox(context, source, tag, len(pieces))
    outbox = Outbox(context, dests, tag, len(pieces))

    def steps() -> Waits:
        for piece in pieces:
            frame = yield from inbox.take()
            yield from outbox.forward(frame, piece.nbytes)
            inbox.decode(frame, piece)
            yield None
        yield from outbox.flush()

    return Stream(steps(), inbox, outbox)
