"""The codecs that codec_throughput.py compares, each as a pair of calls on bytes, on one core.

A peer is called as its Python package offers it. Where a package takes no destination, each call
allocates its result; that is part of its time, as it would be for a user.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from uzipmpi.kernels import codec
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = ["PEERS", "Measured", "MissingPeerError", "Peer", "open_peer"]


class MissingPeerError(Exception):
    """A peer that cannot take part, with the reason."""


@dataclass(frozen=True)
class Peer:
    """A codec to be measured.

    Parameters
    ----------
    encode
        Takes values and room for a frame; returns the frame.
    decode
        Takes a frame and room for the values; returns the values.
    """

    encode: Callable[[Bytes, Bytes], Any]
    decode: Callable[[Any, Bytes], Any]


@dataclass
class Measured:
    """Seconds for all tensors of a case, in each round, and what was found."""

    encode: list[float]
    decode: list[float]
    frame_bytes: int = 0
    lossless: bool = True


def memcpy(dtype: DType) -> Peer:
    """Return the copy that everything is compared with: both ways, it is the same."""

    def copy(source: Bytes, out: Bytes) -> Bytes:
        out = out[: source.size]
        np.copyto(out, source)
        return out

    return Peer(copy, copy)


def ours(name: str) -> Callable[[DType], Peer]:
    """Return the maker of one of our codecs."""

    def make(dtype: DType) -> Peer:
        def encode(source: Bytes, out: Bytes) -> Bytes:
            return out[: codec.encode(Tensor(source, dtype), out, codec=name)]

        def decode(frame: Bytes, out: Bytes) -> Bytes:
            codec.decode(frame, Tensor(out, dtype))
            return out

        return Peer(encode, decode)

    return make


def zipnn(dtype: DType) -> Peer:
    """Return ZipNN, which splits off exponents as bytes and codes them with Huffman's code."""
    names = {DType.BFLOAT16: "bfloat16", DType.FLOAT16: "float16", DType.FLOAT32: "float32"}
    if dtype not in names:
        raise MissingPeerError(f"has no {dtype.name.lower()}")
    # It depends on torch, some gigabytes with CUDA: not among our requirements.
    package = load("zipnn", "pip install zipnn")
    coder = package.ZipNN(input_format="byte", bytearray_dtype=names[dtype], threads=1)

    def encode(source: Bytes, out: Bytes) -> Any:
        copy = out[: source.size]  # it overwrites what it is given
        np.copyto(copy, source)
        return coder.compress(memoryview(copy))

    return Peer(encode, lambda frame, out: coder.decompress(frame))


def zstd(dtype: DType) -> Peer:
    """Return Zstandard at level 1, for which values are just bytes."""
    package = load("zstandard", "pip install zstandard")
    coder, decoder = package.ZstdCompressor(level=1), package.ZstdDecompressor()
    return Peer(
        lambda source, out: coder.compress(source), lambda frame, out: decoder.decompress(frame)
    )


def blosc2(dtype: DType) -> Peer:
    """Return Blosc2: bits shuffled within blocks, then LZ4."""
    package = load("blosc2", "pip install blosc2")
    parameters = {
        "codec": package.Codec.LZ4,
        "filters": [package.Filter.BITSHUFFLE],
        "typesize": dtype.itemsize,
        "nthreads": 1,
    }

    def decode(frame: bytes, out: Bytes) -> Bytes:
        package.decompress2(frame, dst=out, nthreads=1)
        return out

    return Peer(lambda source, out: package.compress2(source, **parameters), decode)


def load(name: str, hint: str) -> Any:
    """Import a package, or raise MissingPeerError with the line to type."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPeerError(f"not installed ({error}): {hint}") from error


PEERS: dict[str, Callable[[DType], Peer]] = {
    "memcpy": memcpy,
    "tier": ours("tier"),
    "ans": ours("ans"),
    "auto": ours("auto"),
    "raw": ours("raw"),
    "zipnn": zipnn,
    "zstd-1": zstd,
    "blosc2-lz4": blosc2,
}


def open_peer(name: str, dtype: DType) -> Peer:
    """Return a codec ready to use for a data type.

    Raises
    ------
    MissingPeerError
        If its package is not installed or has no such data type.
    """
    return PEERS[name](dtype)
