"""What is kept to be used again, and what makes room."""

from __future__ import annotations

import gc
import threading
import weakref

from uzipmpi.kernels.kept import Kept


def test_an_item_of_the_size_comes_back() -> None:
    kept: Kept[str] = Kept(100)
    kept.give(10, "a")
    kept.give(20, "b")
    assert kept.nbytes == 30
    assert kept.take(10) == "a"
    assert kept.take(10) is None
    assert kept.take(20) == "b"
    assert kept.nbytes == 0


def test_sizes_that_nobody_asks_for_make_room() -> None:
    """A program that goes on with other sizes does not allocate for ever."""
    released: list[str] = []
    kept: Kept[str] = Kept(100, released.append)
    for name in "abcd":
        kept.give(25, name)
    kept.give(50, "large")
    assert released == ["a", "b"]
    assert kept.take(50) == "large"
    kept.give(50, "large")
    kept.give(50, "larger")
    assert released == ["a", "b", "c", "d"]
    assert kept.nbytes == 100


def test_a_size_in_use_is_kept() -> None:
    released: list[str] = []
    kept: Kept[str] = Kept(100, released.append)
    kept.give(50, "old")
    kept.give(40, "new")
    item = kept.take(50)
    assert item == "old"
    kept.give(50, item)
    kept.give(30, "third")
    assert released == ["new"]


def test_what_is_larger_than_the_bound_is_released() -> None:
    released: list[str] = []
    kept: Kept[str] = Kept(100, released.append)
    kept.give(101, "a")
    assert (released, kept.nbytes, kept.take(101)) == (["a"], 0, None)


def test_all_is_released() -> None:
    released: list[str] = []
    kept: Kept[str] = Kept(100, released.append)
    kept.give(10, "a")
    kept.give(20, "b")
    kept.clear()
    assert (sorted(released), kept.nbytes) == (["a", "b"], 0)


def test_a_finaliser_gives_amid_a_call() -> None:
    class Owner:
        pass

    kept: Kept[str] = Kept(100)
    owner = Owner()
    weakref.finalize(owner, kept.give, 10, "a")
    with kept._lock:  # as if the collector ran amid a call of this very thread
        del owner
        gc.collect()
    assert kept.take(20) is None  # whoever comes next finishes it
    assert kept.take(10) == "a"


def test_threads_never_have_the_same() -> None:
    kept: Kept[list[int]] = Kept(1 << 20)
    wrong: list[int] = []

    def work(thread: int) -> None:
        for _ in range(3000):
            item = kept.take(8) or []
            item[:] = [thread]
            if item != [thread]:
                wrong.append(thread)
            kept.give(8, item)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
