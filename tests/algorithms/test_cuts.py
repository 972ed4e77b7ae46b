"""Cuts cover a tensor once, in order, and do not depend on what its bytes are called."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from uzipmpi.algorithms.cuts import byte_shards, chunks, even_counts, shards, step_bytes
from uzipmpi.typing import DType, Tensor


def joined(parts: list[Tensor]) -> bytes:
    return b"".join(part.memory.tobytes() for part in parts)


@given(st.integers(0, 5000), st.integers(1, 20000), st.sampled_from(list(DType)))
def test_chunks(count: int, chunk_bytes: int, dtype: DType) -> None:
    memory = np.arange(count * dtype.itemsize, dtype=np.uint32).astype(np.uint8)
    step = step_bytes(chunk_bytes)
    parts = chunks(Tensor(memory, dtype), step)
    assert joined(parts) == memory.tobytes()
    assert all(part.nbytes == step for part in parts[:-1])
    assert all(part.nbytes % dtype.itemsize == 0 for part in parts)
    as_bytes = chunks(Tensor(memory, DType.BYTES), step)
    assert [part.nbytes for part in as_bytes] == [part.nbytes for part in parts]


def test_chunks_are_whole_tiles() -> None:
    assert step_bytes(1 << 20) == 1 << 20
    assert step_bytes(100_000) == 12 * 8192
    assert step_bytes(100) == 96
    assert step_bytes(1) == 8


@given(st.integers(0, 1000), st.integers(1, 9))
def test_even_counts(count: int, n_parts: int) -> None:
    counts = even_counts(count, n_parts)
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)
    values = np.arange(count, dtype=np.float32)
    assert joined(shards(Tensor.of(values), counts)) == values.tobytes()


@given(st.integers(0, 1000), st.integers(1, 9), st.sampled_from(list(DType)))
def test_byte_shards(count: int, n_parts: int, dtype: DType) -> None:
    memory = np.arange(count * dtype.itemsize, dtype=np.uint32).astype(np.uint8)
    parts = byte_shards(Tensor(memory, dtype), n_parts)
    assert len(parts) == n_parts
    assert joined(parts) == memory.tobytes()
    assert all(part.nbytes % dtype.itemsize == 0 for part in parts)
