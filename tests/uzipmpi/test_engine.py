"""Who moves operations on when a thread waits for one."""

from __future__ import annotations

import threading
import time
import zlib

import numpy as np
import pytest
from mpi4py import MPI

from uzipmpi.engine import Engine
from uzipmpi.kernels.device import DeviceMemory
from uzipmpi.transports.transfer import Transfer

CALLS = 20  # in a step
BLOCK = bytes(1 << 18)  # long enough for others to wake up while zlib lets them run


class Busy:
    """An operation whose steps let other threads run now and then, as calls of a driver do."""

    error = None

    def __init__(self, steps: int) -> None:
        self.done = False
        self.threads: list[str] = []
        self.ended = False
        self._steps = steps
        self.begun = threading.Event()

    @property
    def hurried(self) -> bool:
        return sum(range(4000)) > 0  # as long as looking at some tens of operations takes

    def advance(self) -> bool:
        self.begun.set()
        self.threads.append(threading.current_thread().name)
        for _ in range(CALLS):
            zlib.crc32(BLOCK)
        self._steps -= 1
        self.ended = self._steps <= 0
        return True

    def complete(self) -> None:
        self.done = True

    def cancel(self) -> bool:
        return True


@pytest.fixture
def engine():
    engine = Engine()
    yield engine
    engine.close()


def seconds_alone(steps: int) -> float:
    task = Busy(steps)
    start = time.perf_counter()
    while not task.ended:
        task.advance()
    return time.perf_counter() - start


def seconds_beside(engine: Engine, steps: int) -> float:
    task = Busy(steps)
    engine.add(task)
    task.begun.wait()  # now the engine's thread is at it
    start = time.perf_counter()
    engine.finish(task)
    return time.perf_counter() - start


def test_who_waits_does_not_slow_down_the_thread_that_is_at_it(engine):
    times = [(seconds_beside(engine, 20), seconds_alone(20)) for _ in range(5)]
    # Who spins, and lets go of the interpreter for a moment each time only, can keep the other
    # from it for seconds.
    assert sum(beside for beside, _ in times) < 3 * sum(alone for _, alone in times) + 0.2, times


def test_who_waits_does_the_work(engine):
    task = Busy(50)
    engine.add(task)
    engine.finish(task)
    mine = task.threads.count(threading.current_thread().name)
    assert mine >= 45


def test_who_asks_again_and_again_does_the_work(engine):
    task = Busy(50)
    engine.add(task)
    deadline = time.monotonic() + 10
    while not task.done and time.monotonic() < deadline:
        engine.advance()
    mine = task.threads.count(threading.current_thread().name)
    assert task.done
    assert mine >= 45


def test_two_who_wait_both_end(engine):
    tasks = [Busy(200), Busy(100)]
    threads = [threading.Thread(target=engine.finish, args=(task,)) for task in tasks]
    for task in tasks:
        engine.add(task)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_what_nobody_waits_for_is_moved_on_by_a_thread(engine):
    task = Busy(5)
    engine.add(task)
    deadline = time.monotonic() + 10
    while not task.done and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert task.done
    assert threading.current_thread().name not in task.threads


class Pending(Busy):
    """An operation that waits, for others to move it or for a GPU, until it was asked often."""

    def __init__(self, hurried: bool) -> None:
        super().__init__(50)
        self._hurried = hurried

    @property
    def hurried(self) -> bool:
        return self._hurried

    def advance(self) -> bool:
        self._steps -= 1
        self.ended = self._steps <= 0
        return self.ended


@pytest.mark.parametrize("hurried", [True, False])
def test_where_microseconds_count_nobody_sleeps(engine, monkeypatch, hurried):
    here, pauses = threading.current_thread(), []
    sleep = time.sleep

    def noted(seconds):
        if threading.current_thread() is here:
            pauses.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", noted)
    task = Pending(hurried)
    engine.add(task)
    engine.finish(task)
    assert bool(pauses) != hurried


def test_microseconds_count_where_mpi_moves_gpu_memory():
    memory = {"host": np.empty(8, np.uint8), "gpu": DeviceMemory(0, 8, 0, None), "none": None}
    found = {place: Transfer(MPI.Request(), where).hurried for place, where in memory.items()}
    assert found == {"host": False, "gpu": True, "none": False}
