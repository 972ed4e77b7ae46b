"""What moves operations on: whoever waits for one, and a thread while nobody does."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from mpi4py import MPI

from uzipmpi.transports.transfer import give_way

__all__ = ["Task", "engine"]

# How long a thread sleeps when nothing moved: MPI cannot wake it. The progress thread begins with
# the shortest pause each time that something moves and doubles it up to the longest.
SHORTEST_PAUSE = 20e-6
LONGEST_PAUSE = 200e-6
# How long who asks waits for another thread that is at it: to come back at once, and to spin then,
# would keep the other from the interpreter.
PATIENCE_BESIDE = 1e-3
# To wake a thread costs the caller some 30 microseconds, so it stays awake for a while.
PATIENCE_AWAKE = 20e-3
# A send that was dropped still owes its parts when the program ends; without progress for this
# long its receiver is taken to be gone.
PATIENCE_AT_EXIT = 2.0


class Task(Protocol):
    """Something under way."""

    done: bool
    error: Exception | None

    def advance(self) -> bool:
        """Move on, without blocking; return whether that was possible."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do but to complete."""

    @property
    def hurried(self) -> bool:
        """Whether a GPU is at it, or MPI at memory of one, where microseconds count."""

    def complete(self) -> None:
        """Tell those who wait that it has ended."""

    def cancel(self) -> bool:
        """Withdraw, at the next advance, what nobody may ever match; return whether it can be."""


class Engine:
    """All operations of the process that are under way, and the thread that moves them on."""

    _keyval: int | None = None

    def __init__(self) -> None:
        self._arrivals: deque[Task] = deque()  # appended to without the lock
        self._tasks: list[Task] = []
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._asleep = False
        self._asked = 0  # how often others than the thread were at it: it leaves the work to them

    def add(self, task: Task) -> None:
        """Take charge of an operation."""
        self._arrivals.append(task)
        if self._thread is None:
            self._open()
        if self._asleep:
            self._work.set()

    def advance(self) -> bool:
        """Move on what can be moved; return whether anything was.

        Blocks for no longer than a step of another thread that is at it, or a millisecond.
        """
        self._asked += 1
        return self._advance(PATIENCE_BESIDE)

    def _advance(self, patience: float = 0.0) -> bool:
        if not self._lock.acquire(timeout=patience):
            return False
        try:
            while self._arrivals:
                self._tasks.append(self._arrivals.popleft())
            moved = [task for task in self._tasks if task.advance()]
            ended = [task for task in moved if task.ended]
            if ended:
                self._tasks = [task for task in self._tasks if not task.ended]
        finally:
            self._lock.release()
        for task in ended:
            task.complete()
        return bool(moved)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Move operations on until a condition holds; it is not asked again once it has."""
        pause = 0.0  # at first only give the core away
        while not condition():
            if self.advance():
                pause = 0.0
                continue
            if not pause or any(task.hurried for task in list(self._tasks)):
                give_way()
            else:
                time.sleep(pause)
            pause = min(pause + 1e-6, SHORTEST_PAUSE)

    def finish(self, task: Task) -> None:
        """Move operations on until one has ended."""
        self.wait_until(lambda: task.done)

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
        while self._arrivals or not all([task.cancel() for task in self._tasks]):  # noqa: C419
            if self.advance():
                deadline = time.monotonic() + PATIENCE_AT_EXIT
            elif time.monotonic() > deadline:
                break
            else:
                time.sleep(SHORTEST_PAUSE)
        self.advance()

    def _open(self) -> None:
        self._thread = threading.Thread(target=self._run, name="uzipmpi progress", daemon=True)
        self._thread.start()
        if self._keyval is None:
            # MPI frees COMM_SELF first when it is finalised; the interpreter may end before that.
            atexit.register(self.close)
            os.register_at_fork(after_in_child=self._forget)
            self._keyval = MPI.Comm.Create_keyval(delete_fn=_close)
            MPI.COMM_SELF.Set_attr(self._keyval, self)

    def _forget(self) -> None:
        """Begin afresh in a forked child: what is under way is its parent's."""
        Engine.__init__(self)

    def _run(self) -> None:
        pause = SHORTEST_PAUSE
        idle_since = time.monotonic()
        seen = self._asked
        while not self._closing:
            left_alone = self._asked == seen
            seen = self._asked
            if left_alone and self._advance():
                pause = SHORTEST_PAUSE
                continue
            if self._tasks or self._arrivals:
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


def _close(comm: MPI.Comm, keyval: int, closing: Engine) -> None:
    closing.close()


engine = Engine()
