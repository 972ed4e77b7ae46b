"""The word that every message of a collective carries, and the trailer around it."""

from __future__ import annotations

import numpy as np
import pytest

import uzipmpi.algorithms
from uzipmpi.algorithms import call, operators, registry

assert uzipmpi.algorithms  # importing the package fills the registry


@pytest.mark.parametrize("root", [None, 0, 1, 65_534])
@pytest.mark.parametrize("op", [None, operators.SUM, operators.AVG])
def test_word_says_everything(op: operators.Operator | None, root: int | None) -> None:
    ring = registry.find("allreduce", "ring")
    words = call.describe(call.word(ring.code, op, root))
    assert words.startswith("allreduce (ring)")
    assert ("operator" in words) == (op is not None)
    assert op is None or op.name in words
    assert ("root" in words) == (root is not None)
    assert root is None or words.endswith(f"root {root}")


def test_words_differ() -> None:
    codes = [
        registry.find(operation, name).code
        for operation in ("allreduce", "reduce", "bcast", "alltoall", "scan", "exscan")
        for name in registry.names(operation)
    ]
    words = {call.word(code, op, root) for code in codes for op in OPS for root in (None, 0, 1)}
    assert len(words) == len(codes) * len(OPS) * 3
    assert all(0 < word < 1 << 32 for word in words)


OPS = (operators.SUM, operators.PROD, operators.MIN, operators.MAX, operators.AVG)


def test_users_operators_are_told_apart_by_name() -> None:
    first = operators.Op(maximum)
    second = operators.Op(product)
    assert call.word(1, first) != call.word(1, second)
    assert "user's operator" in call.describe(call.word(1, first))


def maximum(x: float, y: float) -> float:
    return max(x, y)


def product(x: float, y: float) -> float:
    return x * y


def test_trailer() -> None:
    buffer = np.full(64, 0xA5, np.uint8)
    assert call.unpack_trailer(buffer, 20) is None
    call.pack_trailer(buffer, 20, 0xDEADBEEF, 7)
    assert call.unpack_trailer(buffer, 20) == (0xDEADBEEF, 7)
    assert call.unpack_trailer(buffer, 21) is None
    assert (buffer[:20] == 0xA5).all()
    assert (buffer[20 + call.TRAILER_BYTES :] == 0xA5).all()


def test_unknown_word() -> None:
    assert "0x000000ff" in call.describe(0xFF)
