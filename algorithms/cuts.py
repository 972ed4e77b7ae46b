"""Where tensors are cut: into shards, one per rank, and into chunks, one per frame.

Ranks compute the same cuts from what all of them know. Cuts are made by bytes, at multiples of 8:
one rank may hold as bytes what another holds as floats, and both must find the same chunks. The
shards of reductions are cut by values; there all ranks have floats.
"""

from __future__ import annotations

from collections.abc import Sequence

from uzipmpi.typing import Tensor

__all__ = [
    "LEAST_BYTES",
    "LEAST_GPU_BYTES",
    "byte_shards",
    "cut",
    "even_counts",
    "piece_bytes",
    "shards",
    "step_bytes",
]

LARGEST_ITEM = 8
# 1024 values, a tile of the frame format, of any type: smaller remainders travel verbatim.
TILES_BYTES = 1024 * LARGEST_ITEM
# Chunks of a tensor smaller than PIECES of the largest size. Below LEAST_BYTES a frame costs more
# time in Python than its coding, which could overlap, takes.
PIECES = 4
LEAST_BYTES = 128 << 10
LEAST_GPU_BYTES = 4 << 20  # a GPU codes them in less time than Python hands them on


def step_bytes(chunk_bytes: int) -> int:
    """Round the size of a chunk down to whole tiles of any data type, or at least whole values."""
    unit = TILES_BYTES if chunk_bytes >= TILES_BYTES else LARGEST_ITEM
    return max(chunk_bytes // unit * unit, LARGEST_ITEM)


def piece_bytes(nbytes: int, most: int, least: int = LEAST_BYTES) -> int:
    """Return the size of the chunks of a tensor, ``most`` or what makes ``PIECES`` of them.

    While one chunk is on the wire, another is coded: a tensor of one chunk would gain nothing.
    """
    return min(most, step_bytes(max(-(-nbytes // PIECES), least)))


def cut(tensor: Tensor, chunk_bytes: int) -> list[Tensor]:
    """Cut a tensor into chunks of a multiple of 8 bytes; an empty tensor has none."""
    return [
        Tensor(tensor.memory[start : start + chunk_bytes], tensor.dtype)
        for start in range(0, tensor.nbytes, chunk_bytes)
    ]


def even_counts(count: int, n_parts: int) -> list[int]:
    """Share ``count`` values as evenly as possible; the first parts get the remainder."""
    share, remainder = divmod(count, n_parts)
    return [share + (part < remainder) for part in range(n_parts)]


def byte_shards(tensor: Tensor, n_parts: int) -> list[Tensor]:
    """Cut a tensor into about even parts by its bytes, at multiples of 8: alike for any type."""
    units = even_counts(-(-tensor.nbytes // LARGEST_ITEM), n_parts)
    cut, start = [], 0
    for unit_count in units:
        stop = start + unit_count * LARGEST_ITEM
        cut.append(Tensor(tensor.memory[start:stop], tensor.dtype))
        start = stop
    return cut


def shards(tensor: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Cut a tensor into consecutive shards of ``counts`` values."""
    cut, start = [], 0
    for count in counts:
        cut.append(tensor[start : start + count])
        start += count
    return cut
