"""Operations that go on while the program does something else, and the requests for them.

A request is one of MPI's generalised requests: complete when the values are in place, so MPI's
own ``Waitall`` takes a list that mixes them with others. One thread per process moves all
operations on; it sleeps while there are none. ``Wait`` and ``Test`` of our own requests do its
work themselves.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Literal

from mpi4py import MPI

from uzipmpi.algorithms.stream import Stream
from uzipmpi.transports.transfer import Transfer

__all__ = ["Operation", "Request", "Stages", "release"]

# How long the thread sleeps when nothing moved: MPI cannot wake it. It begins with the shortest
# pause each time that something moves and doubles it up to the longest.
SHORTEST_PAUSE = 20e-6
LONGEST_PAUSE = 200e-6
# To wake a thread costs the caller some 30 microseconds, so it stays awake for a while.
PATIENCE_AWAKE = 20e-3
# A send that was dropped still owes its parts when the program ends; without progress for this
# long its receiver is taken to be gone.
PATIENCE_AT_EXIT = 2.0


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
        self._stages: Stages | None = None
        self._stage: Transfer | Stream | None = None
        self._request = MPI.Grequest.Start(self._query, None, self._cancel)

    def begin(self, stages: Stages) -> Request:
        """Give the operation its stages, hand it to the progress thread and return its request."""
        self._stages = stages
        request = Request(self._request, self)
        _engine.add(self)
        return request

    def advance(self) -> bool:
        """Move on, without blocking; return whether that was possible."""
        failure: Exception | None = None
        try:
            if isinstance(self._stage, Stream):
                moved = self._stage.advance()
                if not self._stage.done:
                    return moved
                failure = self._stage.error
            elif self._stage is not None and not self._stage.finished():
                return False
        except MPI.Exception as error:
            failure = error
        self._next(failure)
        return True

    @property
    def ended(self) -> bool:
        """Whether no stage is left."""
        return self._stages is None

    def complete(self) -> None:
        """Tell MPI that the operation has ended."""
        self.cancellable = None
        self._request.Complete()
        self.done = True  # last: whoever sees it may take the request for complete

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
        if not completed and self.cancellable is not None:
            self.cancellable.Cancel()


class Request(MPI.Request):
    """A request for an operation of uzipmpi's.

    Waiting through ``MPI.Request.Waitall`` and the like works as well; an error that is not
    MPI's is ``MPI.ERR_OTHER`` there. But MPICH (5.0.2) aborts when its ``Waitall`` gets a null
    request beside one of these that is not complete; ``uzipmpi.Request.Waitall`` does not.
    """

    operation: Operation | None = None

    def __new__(
        cls, request: MPI.Request | None = None, operation: Operation | None = None
    ) -> Request:
        return super().__new__(cls, request)

    def __init__(
        self, request: MPI.Request | None = None, operation: Operation | None = None
    ) -> None:
        self.operation = operation

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Block until the operation has ended, and move all operations on meanwhile."""
        operation = self.operation
        if operation is None:
            return super().Wait(status)
        _engine.finish(operation)
        operation.raised = True  # by us, not by MPI's call of the query function
        self.operation = None
        super().Wait(status)
        if operation.error is not None:
            raise operation.error
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Move all operations on, and return whether this one has ended."""
        operation = self.operation
        if operation is None:
            return super().Test(status)
        if not operation.done:
            _engine.advance()
            if not operation.done:
                return False
        return self.Wait(status)

    @classmethod
    def Waitall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> Literal[True]:
        """Wait for all requests, ours and others; see :meth:`mpi4py.MPI.Request.Waitall`."""
        for request in requests:
            if isinstance(request, Request) and request.operation is not None:
                _engine.finish(request.operation)
        return super().Waitall(requests, statuses)

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Block as ``Wait`` does; there is no object to return."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Test as ``Test`` does; there is no object to return."""
        return self.Test(status), None


class Engine:
    """All operations of the process that are under way, and the thread that moves them on."""

    _keyval: int | None = None

    def __init__(self) -> None:
        self._arrivals: deque[Operation] = deque()  # appended to without the lock
        self._operations: list[Operation] = []
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._asleep = False

    def add(self, operation: Operation) -> None:
        """Take charge of an operation."""
        self._arrivals.append(operation)
        if self._thread is None:
            self._open()
        if self._asleep:
            self._work.set()

    def advance(self) -> bool:
        """Move on what can be moved; return whether anything was. Never blocks."""
        if not self._lock.acquire(blocking=False):
            return False  # another thread is at it
        try:
            while self._arrivals:
                self._operations.append(self._arrivals.popleft())
            # A list, not a generator: each operation gets its turn.
            moved = any([operation.advance() for operation in self._operations])  # noqa: C419
            ended = [operation for operation in self._operations if operation.ended]
            if ended:
                self._operations = [op for op in self._operations if not op.ended]
        finally:
            self._lock.release()
        for operation in ended:
            operation.complete()
        return moved

    def finish(self, operation: Operation) -> None:
        """Move operations on until one has ended."""
        pause = 0.0  # at first only give the core away
        while not operation.done:
            if self.advance():
                pause = 0.0
            elif not operation.done:
                time.sleep(pause)
                pause = min(pause + 1e-6, SHORTEST_PAUSE)

    def close(self) -> None:
        """Stop the thread and let sends finish; MPI must not be called after it is finalised."""
        if self._thread is None:
            return
        self._closing = True
        self._work.set()
        self._thread.join()
        self._thread = None
        self._closing = False
        deadline = time.monotonic() + PATIENCE_AT_EXIT
        while self._arrivals or any(op.cancellable is None for op in self._operations):
            if self.advance():
                deadline = time.monotonic() + PATIENCE_AT_EXIT
            elif time.monotonic() > deadline:
                break
            else:
                time.sleep(SHORTEST_PAUSE)
        for operation in self._operations:
            if operation.cancellable is not None:
                operation.cancellable.Cancel()
        self.advance()

    def _open(self) -> None:
        self._thread = threading.Thread(target=self._run, name="uzipmpi progress", daemon=True)
        self._thread.start()
        if self._keyval is None:
            # MPI frees COMM_SELF first when it is finalised; the interpreter may end before that.
            atexit.register(self.close)
            self._keyval = MPI.Comm.Create_keyval(delete_fn=_close_engine)
            MPI.COMM_SELF.Set_attr(self._keyval, self)

    def _run(self) -> None:
        pause = SHORTEST_PAUSE
        idle_since = time.monotonic()
        while not self._closing:
            if self.advance():
                pause = SHORTEST_PAUSE
                continue
            if self._operations or self._arrivals:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > PATIENCE_AWAKE:
                self._sleep()
                idle_since = time.monotonic()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _sleep(self) -> None:
        """Sleep until there is an operation; one that comes just now wakes the thread at once."""
        self._work.clear()
        self._asleep = True
        if not self._arrivals and not self._closing:
            self._work.wait()
        self._asleep = False


def release(request: MPI.Request) -> None:
    """Let a request that nobody waits for run to its end; its buffers live that long."""
    if isinstance(request, Request):
        request.Free()
        return

    def stages() -> Stages:
        yield Transfer(request)

    Operation().begin(stages()).Free()


def _close_engine(comm: MPI.Comm, keyval: int, engine: Engine) -> None:
    engine.close()


_engine = Engine()
