"""From which size on compression pays."""

from __future__ import annotations

from itertools import pairwise

import pytest

from uzipmpi.link import LEAST_BYTES, NEVER, OVERHEAD, break_even

MIB = 1 << 20
GBIT = 8 / 1e9  # seconds for a byte on a link of 1 Gbit/s


def test_slow_links_pay_early_and_fast_ones_never() -> None:
    code = 0.4e-9
    assert break_even(10 * GBIT, code, MIB) == LEAST_BYTES
    assert 2 * LEAST_BYTES <= break_even(GBIT, code, MIB) <= 4 * LEAST_BYTES
    assert break_even(GBIT / 100, code, MIB) == NEVER


def test_a_faster_link_or_a_slower_codec_never_lowers_the_size() -> None:
    rates = [0.1, 0.5, 1, 2, 5, 10, 25, 100]
    for code in (0.1e-9, 0.4e-9, 2e-9):
        sizes = [break_even(GBIT / rate, code, MIB) for rate in rates]
        assert all(a <= b for a, b in pairwise(sizes))
    for rate in rates:
        sizes = [break_even(GBIT / rate, code, MIB) for code in (0.1e-9, 0.4e-9, 2e-9, 1e-8)]
        assert all(a <= b for a, b in pairwise(sizes))


@pytest.mark.parametrize("rate", [0.1, 1, 5])
def test_the_saving_covers_the_overhead(rate: float) -> None:
    size = break_even(GBIT / rate, 0.2e-9, MIB)
    assert size * GBIT / rate > OVERHEAD


def test_a_link_that_nobody_measured_is_not_slow() -> None:
    assert break_even(float("inf"), 0.2e-9, MIB) == NEVER
