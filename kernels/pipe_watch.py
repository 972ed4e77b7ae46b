"""Whoever looks after the words that streams wait for, as no such wait has an end of its own.

While messages are under way a thread looks at the words of a rank's pipes (``pipe_gpu.hpp``). Where
nothing has changed for too long, or a peer has given up, it raises the abort words and lifts all
others, again and again until what was queued has run through: a peer may still write them.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import NamedTuple

import numpy as np

from uzipmpi.kernels.device_pool import gpu_half

__all__ = ["ABORTED", "TIMED_OUT", "Head", "Watch", "Watched"]

TIMED_OUT, ABORTED, DAMAGED = 1, 2, 4  # as in link_gpu.hpp
PERIOD = 0.01  # seconds between two looks
FAR = 1 << 30  # beyond any word that is waited for


class Head:
    """The words that a region begins with.

    Parameters
    ----------
    address
        Of the region.
    """

    def __init__(self, address: int) -> None:
        gpu = gpu_half()
        stride = gpu.PIPE_WORD_BYTES // 4
        words = (ctypes.c_uint32 * (gpu.PIPE_HEAD_WORDS * stride)).from_address(address)
        self.words = np.ctypeslib.as_array(words)[::stride]
        slots = gpu.PIPE_SLOTS
        self.flags = self.words[1 : 1 + slots]
        self.acknowledgements = self.words[1 + slots : 1 + 2 * slots]
        self.begun = self.words[1 + 2 * slots : 3 + 2 * slots]
        self.ended = self.words[3 + 2 * slots :]

    @property
    def abort(self) -> int:
        """Why all has ended; 0: it has not."""
        return int(self.words[0])

    def give_up(self, reason: int) -> None:
        """End it, unless it has ended."""
        if not self.abort:
            self.words[0] = reason


class Watched(NamedTuple):
    """A pipe by its number, and the heads of its regions."""

    pipe: int
    here: Head
    there: Head

    def is_pending(self) -> bool:
        """Whether messages are queued that have not ended."""
        return bool(tuple(self.here.ended) != gpu_half().count_queued(self.pipe)[:2])

    def is_waiting(self) -> bool:
        """Whether a stream has come to a message that has not ended."""
        return bool((self.here.begun != self.here.ended).any())

    def lift(self) -> None:
        """Let no queued wait wait any more."""
        _, _, sent, received = gpu_half().count_queued(self.pipe)
        self.here.acknowledgements[:] = (sent + FAR) % (1 << 32)
        self.here.flags[:] = (received + FAR) % (1 << 32)


class Watch:
    """The watch of a rank's pipes; its thread sleeps while nothing is under way."""

    def __init__(self) -> None:
        self.pipes: list[Watched] = []
        self._timeout = float("inf")
        self._seen: list[bytes] = []
        self._since = 0.0
        self._awake = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def begin(self, timeout: float) -> None:
        """Watch what has been queued, which gives up after so many seconds without progress."""
        self._timeout = timeout
        if self._awake:
            return
        with self._changed:
            self._awake = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="uzipmpi-pipes", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Let the thread end."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def ended_by(self) -> int:
        """Why all has ended; 0: it has not."""
        reasons = [one.here.abort or self._damage(one) for one in self.pipes]
        reason = next((one for one in reasons if one not in (0, ABORTED)), max(reasons, default=0))
        if reason and 0 in reasons:
            self.give_up(ABORTED)  # of one pipe, so of all
        return reason

    def _damage(self, one: Watched) -> int:
        if not gpu_half().found_by(one.pipe):
            return 0
        one.here.give_up(DAMAGED)
        one.there.give_up(ABORTED)
        return DAMAGED

    def give_up(self, reason: int) -> None:
        """End what is under way, here and with the peers, for good."""
        for one in self.pipes:
            one.here.give_up(reason)
            one.there.give_up(ABORTED)
            one.lift()

    def _is_over(self) -> bool:
        return self._thread is not threading.current_thread()

    def _run(self) -> None:
        while not self._is_over():
            self._sleep_until_pending()
            time.sleep(min(PERIOD, self._timeout / 4))
            if not self._is_over():
                self._look()

    def _sleep_until_pending(self) -> None:
        with self._changed:
            self._awake = False
            if not any(one.is_pending() for one in self.pipes):
                while not self._awake and not self._is_over():
                    self._changed.wait()
                self._since = time.monotonic()
            self._awake = True

    def _look(self) -> None:
        now = time.monotonic()
        if not any(one.is_pending() for one in self.pipes):
            return  # peers may be gone
        if self.ended_by:
            self.give_up(ABORTED)
            return
        seen = [one.here.words.tobytes() for one in self.pipes]
        waiting = any(one.is_waiting() for one in self.pipes)
        if not waiting or seen != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > self._timeout:
            self.give_up(TIMED_OUT)
