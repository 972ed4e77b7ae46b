"""Writes the golden frames: ``NAME.frame``, and ``NAME.values``, the bytes that it decodes to.

They were made once, when version 1 of the format was released, and must decode forever. Run this
only to add frames, with a new version's name: existing files are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from uzipmpi.kernels import reference
from uzipmpi.typing import Bytes, DType, Tensor

HERE = Path(__file__).parent
MAX_BYTES = 4096
TILE = 1024
RAW, TIER, ANS = 0, 1, 2
DESCENDING = tuple(range(15, -1, -1))  # values of N(0, 0.5) have the higher symbols of the window


def normal(dtype: DType, count: int) -> Bytes:
    """Return values of N(0, 0.5), from a generator that will not change with NumPy's versions."""
    raw = np.random.RandomState(count).standard_normal(count) / 2
    return raw.astype(dtype.numpy).view(np.uint8)


def short(dtype: DType, count: int) -> Bytes:
    """Return values of N(0, 0.5) rounded to bfloat16."""
    narrow = normal(DType.BFLOAT16, count).view(DType.BFLOAT16.numpy)
    return narrow.astype(dtype.numpy).view(np.uint8)


def kinds_of_tiles(dtype: DType) -> Bytes:
    """Return tiles of zeros, of one value, and with few values that are not zero."""
    tiles = np.zeros((4, TILE), dtype.numpy)
    tiles[1] = 1.5
    tiles[2, 100:900:50] = normal(dtype, 16).view(dtype.numpy)
    tiles[3, 7] = np.nan
    return tiles.ravel().view(np.uint8)


def table() -> np.ndarray:
    """Return frequencies that fit pairs of N(0, 0.5)'s symbols, none of them zero."""
    weight = np.array([1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 16, 24, 32, 24, 1], float)
    pairs = np.outer(weight, weight).ravel()
    frequencies = 1 + np.floor(pairs * (4096 - 256) / pairs.sum()).astype(np.uint16)
    frequencies[pairs.argmax()] += 4096 - frequencies.sum()
    return frequencies


def tier(dtype: DType, menu: int, base: int, **parameters: int) -> reference.Header:
    return reference.Header(dtype, TIER, menu=menu, base=base, order=DESCENDING, **parameters)


def frames() -> Iterator[tuple[str, Bytes, Bytes]]:
    """Yield name, frame and values."""
    bf16, fp16, fp32, fp64, e4m3, e5m2 = list(DType)[1:]
    cases = {
        "bf16-tier-222": (normal(bf16, TILE + 10), tier(bf16, 2, 112, has_checksum=True)),
        "bf16-tier-4": (normal(bf16, TILE), tier(bf16, 0, 114)),
        "fp16-tier-3": (normal(fp16, TILE), tier(fp16, 1, 1)),
        "fp32-tier-223": (normal(fp32, TILE), tier(fp32, 3, 113)),
        "fp32-tier-zero-planes": (short(fp32, TILE), tier(fp32, 5, 112, zero_planes=3)),
        "fp64-tier-zero-planes": (short(fp64, TILE + 1), tier(fp64, 4, 1009, zero_planes=31)),
        "e4m3-tier-2122": (normal(e4m3, TILE), tier(e4m3, 4, 7)),
        "e5m2-tier-11123": (normal(e5m2, TILE), tier(e5m2, 6, 0)),
        "bf16-packed": (kinds_of_tiles(bf16), tier(bf16, 7, 112, packed=True)),
        "fp64-packed": (kinds_of_tiles(fp64), tier(fp64, 2, 1009, packed=True)),
        "bf16-ans": (normal(bf16, TILE), reference.Header(bf16, ANS, menu=2, base=113)),
        "fp64-ans": (
            short(fp64, TILE),
            reference.Header(fp64, ANS, menu=3, base=1009, zero_planes=31),
        ),
        "e5m2-ans": (normal(e5m2, TILE), reference.Header(e5m2, ANS, menu=5, has_checksum=True)),
        "fp32-raw": (normal(fp32, 33), reference.Header(fp32, RAW, has_checksum=True)),
        "bytes-raw": (np.arange(7, dtype=np.uint8), reference.Header(DType.BYTES, RAW)),
        "empty-raw": (np.zeros(0, np.uint8), reference.Header(bf16, RAW)),
    }
    for name, (values, header) in cases.items():
        tensor = Tensor(values, header.dtype)
        yield f"v1-{name}", reference.encode(tensor, header, table=table()), values


def main() -> None:
    for name, frame, values in frames():
        if frame.size >= MAX_BYTES:
            raise ValueError(f"{name}: expected less than {MAX_BYTES} bytes, found {frame.size}")
        if (HERE / f"{name}.frame").exists():
            continue
        (HERE / f"{name}.frame").write_bytes(frame.tobytes())
        (HERE / f"{name}.values").write_bytes(values.tobytes())
        print(f"{name}: {frame.size} bytes, kinds {reference.kinds_of(frame)}")


if __name__ == "__main__":
    main()
