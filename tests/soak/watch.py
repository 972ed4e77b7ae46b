"""Looking after a run: hangs end with all stacks, and memory must stay flat."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

from uzipmpi.algorithms.scratch import scratch

PAGE = os.sysconf("SC_PAGESIZE")


class Watchdog:
    """Ends the program when a step takes too long, after every rank has printed its stacks.

    Parameters
    ----------
    rank
        Of this process.
    seconds
        What a step may take.
    repeat
        How to run a step again.
    """

    def __init__(self, rank: int, seconds: int, repeat: str) -> None:
        self._rank, self._seconds, self._repeat = rank, seconds, repeat
        self._since = time.monotonic()
        self._step = 0
        self._what = ""
        # Its default action needs no interpreter: a call that hangs may not let go of it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, step: int, what: str) -> None:
        """Note that a step begins."""
        self._step, self._what, self._since = step, what, time.monotonic()
        faulthandler.dump_traceback_later(self._seconds + 20)
        signal.alarm(self._seconds + 30)

    def describe(self) -> str:
        """Say where the program is, and how to come there again."""
        return f"rank {self._rank}, step {self._step} ({self._what}): {self._repeat % self._step}"

    def end(self) -> None:
        """Stop watching."""
        self._since = float("inf")
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)

    def _watch(self) -> None:
        while time.monotonic() - self._since < self._seconds:
            time.sleep(0.5)
        print(f"hangs: {self.describe()}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        time.sleep(5)  # the other ranks print theirs
        os.kill(os.getpid(), signal.SIGKILL)


class Heap(ctypes.Structure):
    """The C library's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class Memory:
    """What a process holds after a warm-up, and how much it grows from there.

    Free scratch, of which there is more where more has been going on at once, is freed first.
    Resident memory has gaps; the heap in use must be flatter.
    """

    MOST_RESIDENT = 64 << 20
    MOST_HEAP = 16 << 20

    def __init__(self) -> None:
        self.before: tuple[int, int] | None = None
        self._growth = (0, 0)

    def measure(self) -> None:
        """Measure; the first time sets the mark."""
        scratch.clear()
        now = resident_bytes(), heap_bytes()
        if self.before is None:
            self.before = now
        self._growth = now[0] - self.before[0], now[1] - self.before[1]

    @property
    def flat(self) -> bool:
        """Whether it grew by less than is allowed."""
        return self._growth[0] <= self.MOST_RESIDENT and self._growth[1] <= self.MOST_HEAP

    def __str__(self) -> str:
        names = (("resident", self.MOST_RESIDENT), ("heap", self.MOST_HEAP))
        return ", ".join(
            f"{name} {before >> 20} MiB after warm-up, {growth / (1 << 20):+.1f} MiB since"
            f" (allowed {most >> 20})"
            for (name, most), before, growth in zip(
                names, self.before or (0, 0), self._growth, strict=True
            )
        )


def heap_bytes() -> int:
    """Return the bytes of the C library's heap in use; 0 where unknown."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype = Heap
    heap = libc.mallinfo2()
    return int(heap.uordblks + heap.hblkhd)


def resident_bytes() -> int:
    """Return what this process holds, after everything that can be freed was."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
