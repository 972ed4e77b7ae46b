"""Point to point, each rank to the next (one rank to itself): whole, split, chunked."""

from __future__ import annotations

import itertools

from calls import CODECS, CUTS, FLOATS, Array, Calls, bits, empty, same

from uzipmpi.algorithms import sendrecv
from uzipmpi.algorithms.stream import drive
from uzipmpi.typing import DType, Tensor


def exchange(calls: Calls, array: Array, chunk_bytes: int, codec: str, algorithm: str) -> Array:
    """Send to the next rank what it expects, and return what came from the one before."""
    dest, source = (calls.rank + 1) % calls.size, (calls.rank - 1) % calls.size
    context = calls.context(chunk_bytes, codec)
    parts, sending = sendrecv.outgoing(context, Tensor.of(array), dest, context.tag, algorithm)
    found = calls.comm.sendrecv(parts, dest, source=source)
    recv = empty(array.size, DType.of(array.dtype))
    receiving = sendrecv.incoming(context, Tensor.of(recv), source, context.tag, found)
    drive([receiving, sending])
    assert context.record.value_bytes == array.nbytes, (algorithm, context.record)
    return recv


def drop(calls: Calls, algorithm: str) -> None:
    """What is discarded leaves nothing behind that the next tensor with this tag could meet."""
    dest, source = (calls.rank + 1) % calls.size, (calls.rank - 1) % calls.size
    context = calls.context(1000)
    arrays = [bits(seed, 3000, DType.BFLOAT16) for seed in (1, 2)]
    recv = empty(3000, DType.BFLOAT16)
    for array, wanted in zip(arrays, (False, True), strict=True):
        parts, sending = sendrecv.outgoing(context, Tensor.of(array), dest, context.tag, algorithm)
        found = calls.comm.sendrecv(parts, dest, source=source)
        if wanted:
            receiving = sendrecv.incoming(context, Tensor.of(recv), source, context.tag, found)
        else:
            receiving = sendrecv.discard(context, array.nbytes, source, context.tag, found)
        drive([receiving, sending])
    assert same(recv, arrays[1]), algorithm


def main() -> None:
    calls = Calls()
    rotation = itertools.cycle(CODECS)
    before = (calls.rank - 1) % calls.size
    for algorithm in sendrecv.ALGORITHMS:
        drop(calls, algorithm)
        for dtype, (count, chunk_bytes) in itertools.product(FLOATS, CUTS):
            codec = next(rotation)
            received = exchange(
                calls, bits(calls.rank, count, dtype), chunk_bytes, codec, algorithm
            )
            assert same(received, bits(before, count, dtype)), (algorithm, dtype, count, codec)


if __name__ == "__main__":
    main()
