"""Scratch is used again, by one user at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from uzipmpi.algorithms.scratch import ALIGNMENT, KEPT_BYTES, Pool, rounded_up


def test_a_buffer_is_used_again() -> None:
    pool = Pool()
    first, second = pool.take(1000), pool.take(1000)
    assert first.size == second.size == 1000
    assert first.ctypes.data % ALIGNMENT == second.ctypes.data % ALIGNMENT == 0
    assert first.ctypes.data != second.ctypes.data
    pool.give(first)
    assert pool.take(500).ctypes.data != first.ctypes.data
    assert pool.take(1000) is first


def test_a_buffer_serves_similar_sizes() -> None:
    """Memory that is kept does not grow with the number of different sizes."""
    pool = Pool()
    places = set()
    for nbytes in range(1 << 16, 1 << 17, 64):
        buffer = pool.take(nbytes)
        assert buffer.size == nbytes
        assert buffer.ctypes.data % ALIGNMENT == 0
        buffer[:] = 1
        places.add(buffer.ctypes.data)
        pool.give(buffer)
    assert len(places) <= 5


def test_rounding() -> None:
    for nbytes in (*range(3000), *((1 << 20) + d for d in range(-3, 70))):
        assert nbytes <= rounded_up(nbytes) <= max(nbytes * 1.25, nbytes + ALIGNMENT)


def test_little_is_kept() -> None:
    pool = Pool()
    buffers = [pool.take(KEPT_BYTES // 2) for _ in range(3)]
    for buffer in buffers:
        pool.give(buffer)
    again = [pool.take(KEPT_BYTES // 2) for _ in range(3)]
    assert sum(any(new is old for old in buffers) for new in again) == 2


def test_what_another_thread_gives_back_is_used() -> None:
    pool = Pool()
    mine = pool.take(64)
    with ThreadPoolExecutor(1) as other:
        other.submit(pool.give, mine).result()
    assert pool.take(64) is mine


def test_threads_never_have_the_same() -> None:
    pool = Pool()

    def work(thread: int) -> bool:
        alone = True
        for _ in range(3000):
            buffer = pool.take(256)
            buffer[:] = thread
            alone = alone and bool((buffer == thread).all())
            pool.give(buffer)
        return alone

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))
