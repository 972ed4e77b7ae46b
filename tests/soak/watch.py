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


class Memory:
    """Resident memory after a warm-up, and how much it grows from there."""

    def __init__(self, most_growth: int) -> None:
        self.most_growth = most_growth
        self.before: int | None = None
        self.now = 0

    def measure(self) -> None:
        """Measure; the first time sets the mark."""
        self.now = resident_bytes()
        if self.before is None:
            self.before = self.now

    @property
    def growth(self) -> int:
        """Bytes more than at the mark."""
        return self.now - (self.now if self.before is None else self.before)

    def __str__(self) -> str:
        before = 0 if self.before is None else self.before
        return f"{before >> 20} MiB after warm-up, {self.growth / (1 << 20):+.1f} MiB since"


def resident_bytes() -> int:
    """Return what this process holds, after everything that can be freed was."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
