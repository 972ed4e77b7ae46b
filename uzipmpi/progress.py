"""Operations that go on while the program does something else, and the requests for them.

A request is one of MPI's generalised requests: complete when the values are in place, so MPI's
own ``Waitall`` takes a list that mixes them with others. One thread per process moves all
operations on; it sleeps while there are none. ``Wait`` and ``Test`` of our own requests do its
work themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any, Literal

from mpi4py import MPI

from uzipmpi.algorithms.stream import Stream, carry_on_with
from uzipmpi.engine import engine
from uzipmpi.requests import Completions
from uzipmpi.standin import StandIn
from uzipmpi.transports.transfer import Arrival, Transfer

__all__ = [
    "Kept",
    "Operation",
    "Outcome",
    "Request",
    "Stages",
    "both",
    "in_background",
    "release",
    "share",
]


# Yields what it waits for; whatever went wrong there is raised at the yield.
Stages = Generator[Transfer | Stream, None, None]


class Operation:
    """Something under way, and what its request will report.

    Parameters
    ----------
    source, tag, nbytes
        For the status; ``nbytes`` are the bytes of values.

    Attributes
    ----------
    cancellable
        The receive that ``Cancel`` withdraws, as long as it can.
    cancelled
        Whether it did.
    error
        What went wrong.
    done
        Whether the operation has ended; its request is complete then.
    value
        The object that was received, if it is about one.
    request
        MPI's request for it, which knows about the object, but waits for the progress thread.
    """

    def __init__(
        self, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG, nbytes: int = 0
    ) -> None:
        self.source, self.tag, self.nbytes = source, tag, nbytes
        self.cancellable: Transfer | None = None
        self.cancelled = False
        self.error: Exception | None = None
        self.done = False
        self.raised = False
        self.value: Any = None
        self._cancelling = False
        self._stages: Stages | None = None
        self._stage: Transfer | Stream | None = None
        self.request = MPI.Grequest.Start(self._query, None, self._cancel)

    def begin(self, stages: Stages) -> Request:
        """Give the operation its stages, hand it to the progress thread and return its request."""
        self._stages = stages
        request = Request(self.request, self)
        engine.add(self)
        return request

    def advance(self) -> bool:
        """Move on, without blocking; return whether that was possible."""
        if self._cancelling:
            self._withdraw()
        moved = False
        while self._stages is not None:
            failure: Exception | None = None
            try:
                if isinstance(self._stage, Stream):
                    moved = self._stage.advance() or moved
                    if not self._stage.done:
                        break
                    failure = self._stage.error
                elif self._stage is not None and not self._stage.finished():
                    break
            except Exception as error:
                failure = error
            self._next(failure)
            moved = True
        return moved

    @property
    def ended(self) -> bool:
        """Whether no stage is left."""
        return self._stages is None

    @property
    def hurried(self) -> bool:
        """Whether a GPU is at it, or MPI at memory of one, where microseconds count."""
        stage = self._stage
        return isinstance(stage, Stream) and any(one.hurried for one in stage.pending())

    def complete(self) -> None:
        """Tell MPI that the operation has ended."""
        self.cancellable = None
        if self.value is None:
            self.request.Complete()
        else:
            self.request.complete(self.value)
        self.done = True  # last: whoever sees it may take the request for complete

    def cancel(self) -> bool:
        """Withdraw the receive at the next advance, if that is possible; return whether it is."""
        self._cancelling = self.cancellable is not None
        return self._cancelling

    def _withdraw(self) -> None:
        """Cancel the receive, here where no other thread is asking MPI about it."""
        self._cancelling = False
        if self.cancellable is not None and not self.cancellable.poll():
            self.cancellable.Cancel()

    def _next(self, failure: Exception | None) -> None:
        assert self._stages is not None
        self._stage = None
        try:
            self._stage = self._stages.throw(failure) if failure else next(self._stages)
        except StopIteration:
            self._stages = None
        except Exception as error:
            self.error = error
            self._stages = None

    def _query(self, status: MPI.Status) -> None:
        """Fill in the status; MPI calls this in whatever completes the request."""
        status.Set_source(self.source)
        status.Set_tag(self.tag)
        status.Set_elements(MPI.BYTE, self.nbytes)
        status.Set_cancelled(self.cancelled)
        if self.error is not None and not self.raised:
            # mpi4py prints the traceback of what a query function raises: keep it short.
            if isinstance(self.error, MPI.Exception):
                raise MPI.Exception(self.error.Get_error_code()) from None
            raise MPI.Exception(MPI.ERR_OTHER) from None

    def _cancel(self, completed: bool) -> None:
        """Note that MPI was asked to cancel; it may hold locks of its own when it calls this."""
        if not completed:
            self.cancel()


class Request(Completions, MPI.Request, metaclass=StandIn, stands_for=MPI.Request):
    """A request for an operation of uzipmpi's, or one of mpi4py's.

    Waiting through ``MPI.Request.Waitall`` and the like works as well; an error that is not
    MPI's is ``MPI.ERR_OTHER`` there. But MPICH (5.0.2) aborts when its ``Waitall`` gets a null
    request beside one of these that is not complete; ``uzipmpi.Request.Waitall`` does not.

    One that is dropped is freed, as MPI would keep it for ever: its operation runs to its end.
    Objects made of it by mpi4py's own classes, or of its handle, must not be used from then on.

    The class may take the place of ``MPI.Request``: all requests are instances of it.

    Attributes
    ----------
    sole
        No other object stands for the request; one that does sees to it.
    """

    _operation: Operation | None = None
    sole = True

    def __new__(
        cls, request: MPI.Request | None = None, operation: Operation | None = None
    ) -> Request:
        return super().__new__(cls, request)

    def __init__(
        self, request: MPI.Request | None = None, operation: Operation | None = None
    ) -> None:
        self._operation = operation or getattr(request, "operation", None)
        share(request)

    def __del__(self) -> None:
        ending = sys.is_finalizing() or MPI.Is_finalized()
        if self.sole and not ending and self._left_alone:
            release(self)

    @property
    def _left_alone(self) -> bool:
        """Whether nobody would see to the request if it is dropped now."""
        return self.operation is not None

    @property
    def operation(self) -> Operation | None:
        """What the request stands for; None once it is complete, and null."""
        if not self:
            self._operation = None
        return self._operation

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Block until the operation has ended, and move all operations on meanwhile."""
        operation = self.operation
        if operation is None:
            return super().Wait(status)
        engine.finish(operation)
        operation.raised = True  # by us, not by MPI's call of the query function
        super().Wait(status)
        self._operation = None
        if operation.error is not None:
            raise operation.error
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Move all operations on, and return whether this one has ended."""
        operation = self.operation
        if operation is None:
            return super().Test(status)
        if not operation.done:
            engine.advance()
            if not operation.done:
                return False
        return self.Wait(status)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Block as ``Wait`` does; return the object that mpi4py's ``irecv`` has received."""
        if self.operation is None:
            return super().wait(status)
        return self.Wait(status) and None

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Test as ``Test`` does; return an object as well, as ``wait`` does."""
        if self.operation is None:
            return super().test(status)
        return self.Test(status), None


class Kept(Request):
    """A request of MPI's whose buffers live as long as they have to, should nobody wait for it."""

    @property
    def _left_alone(self) -> bool:
        return bool(self)


class Outcome(Arrival):
    """A request, ours or another, that an operation waits for."""

    def __init__(self, request: MPI.Request) -> None:
        super().__init__(request)
        share(request)
        self._operation: Operation | None = getattr(request, "operation", None)

    def poll(self) -> bool:
        """Return whether the request is complete, or has failed; never blocks."""
        operation = self._operation
        if operation is None:
            return super().poll()
        if not operation.done:
            return False
        operation.raised = True
        super().poll()
        if operation.error is not None:
            self.fail(operation.error)
        self._operation = None
        return True


def both(receiving: MPI.Request, sending: MPI.Request) -> Request:
    """Return a request for two, complete when both are; its status is the receive's."""
    received, sent = Outcome(receiving), Outcome(sending)
    operation = Operation()

    def stages() -> Stages:
        try:
            yield received
        finally:
            yield sent
        status = received.status
        assert status is not None  # it has succeeded
        operation.source, operation.tag = status.source, status.tag
        operation.nbytes = status.Get_elements(MPI.BYTE)

    return operation.begin(stages())


def share(request: MPI.Request | None) -> None:
    """Note that another object, which got the buffers with the handle, stands for a request."""
    if isinstance(getattr(request, "sole", None), bool):
        request.sole = False  # type: ignore[union-attr]


def release(request: MPI.Request) -> None:
    """Let a request that nobody waits for run to its end; its buffers live that long."""
    if getattr(request, "operation", None) is not None:
        request.Free()
        return

    def stages() -> Stages:
        yield Transfer(request)

    Operation().begin(stages()).Free()


def in_background(stream: Stream) -> None:
    """Run a stream to its end though nobody waits for it: its peers do."""

    def stages() -> Stages:
        yield stream

    Operation().begin(stages()).Free()


carry_on_with(in_background)
