"""Segments of memory that ranks share: used again, dropped, and let go of by peers."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from uzipmpi.transports import shared
from uzipmpi.transports.shared import Peers, SharedPool

NO_GPU = -1
MIB = 1 << 20


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> SharedPool:
    monkeypatch.setattr(shared, "KEPT_BYTES", 8 * MIB)
    monkeypatch.setattr(shared, "_peers", Peers())
    return SharedPool(NO_GPU)


def exchange(pool: SharedPool, nbytes: int, messages: int = 1) -> int:
    """Pass messages on, as from another process; return how many of their segments were new."""
    serial = next(shared.Segment._serials)
    held = []
    for turn in range(messages):
        memory = pool.take(nbytes)
        memory[:] = turn + 1
        found = shared.note(memory, 0)
        assert found is not None
        arrival = shared.arrival(found[0], 0, NO_GPU)
        assert arrival is not None
        assert np.array_equal(arrival.memory, memory)
        held.append((memory, arrival))
        assert not found[1].query()
        arrival.loan.give_back()
        assert found[1].query()
    held.clear()
    gc.collect()
    return next(shared.Segment._serials) - serial - 1


def test_another_size_finds_room_and_keeps_it(pool: SharedPool) -> None:
    """Where a first size has filled what may be kept, a second one is not allocated for ever."""
    assert exchange(pool, MIB, 8) == 8
    assert exchange(pool, MIB, 8) == 0
    assert exchange(pool, 2 * MIB, 3) == 3
    assert exchange(pool, 2 * MIB, 3) == 0


def test_peers_let_go_of_what_was_dropped(pool: SharedPool) -> None:
    files = len(os.listdir("/proc/self/fd"))
    for turn in range(30):
        exchange(pool, (1 + turn % 7) * MIB, 2)
    mapped = sum(memory.size for memory in shared._peers._mapped.values())
    assert mapped <= (8 + 2 * 7 + 1) * MIB
    assert len(os.listdir("/proc/self/fd")) - files <= 16
