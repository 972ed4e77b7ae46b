"""Cuts cover a tensor once, in order, and do not depend on what its bytes are called."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from uzipmpi.algorithms.cuts import (
    PIECES,
    byte_shards,
    cut,
    even_counts,
    piece_bytes,
    shards,
    step_bytes,
)
from uzipmpi.typing import DType, Tensor


def joined(parts: list[Tensor]) -> bytes:
    return b"".join(part.memory.tobytes() for part in parts)


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(1, 20000), st.sampled_from(list(DType)))
def test_cut(count: int, chunk_bytes: int, dtype: DType) -> None:
    memory = np.arange(count * dtype.itemsize, dtype=np.uint32).astype(np.uint8)
    step = step_bytes(chunk_bytes)
    parts = cut(Tensor(memory, dtype), step)
    assert joined(parts) == memory.tobytes()
    assert all(part.nbytes == step for part in parts[:-1])
    assert all(part.nbytes % dtype.itemsize == 0 for part in parts)
    as_bytes = cut(Tensor(memory, DType.BYTES), step)
    assert [part.nbytes for part in as_bytes] == [part.nbytes for part in parts]


@settings(deadline=None)
@given(st.integers(0, 8 << 20), st.sampled_from([8192, 1 << 16, 1 << 20]))
def test_tensors_have_enough_chunks_to_overlap(nbytes: int, most: int) -> None:
    most = step_bytes(most)
    size = piece_bytes(nbytes, most)
    assert size <= most
    assert size in (most, 128 << 10) or -(-nbytes // size) >= PIECES
    tensor = Tensor(np.empty(nbytes, np.uint8), DType.BYTES)
    assert len(cut(tensor, size)) == -(-nbytes // size)


def test_chunks_are_whole_tiles() -> None:
    assert step_bytes(1 << 20) == 1 << 20
    assert step_bytes(100_000) == 12 * 8192
    assert step_bytes(100) == 96
    assert step_bytes(1) == 8


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9))
def test_even_counts(count: int, n_parts: int) -> None:
    counts = even_counts(count, n_parts)
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)
    values = np.arange(count, dtype=np.float32)
    assert joined(shards(Tensor.of(values), counts)) == values.tobytes()


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9), st.sampled_from(list(DType)))
def test_byte_shards(count: int, n_parts: int, dtype: DType) -> None:
    memory = np.arange(count * dtype.itemsize, dtype=np.uint32).astype(np.uint8)
    parts = byte_shards(Tensor(memory, dtype), n_parts)
    assert len(parts) == n_parts
    assert joined(parts) == memory.tobytes()
    assert all(part.nbytes % dtype.itemsize == 0 for part in parts)
