"""Every operation that moves data, for every codec and data type: bits arrive as they left."""

from __future__ import annotations

import itertools

from calls import CODECS, CUTS, FLOATS, Calls, bits, empty, run, same, tensors

from uzipmpi.algorithms import registry
from uzipmpi.typing import DType, Tensor


def ragged(rank: int, count: int) -> int:
    """Counts that differ by rank; every third is zero."""
    return 0 if rank % 3 == 1 else max(0, count - 5 * rank)


def bcast(calls: Calls, count: int, dtype: DType, chunk_bytes: int, codec: str) -> None:
    for name, root in itertools.product(registry.names("bcast"), {0, calls.size - 1}):
        sent = bits(root, count, dtype)
        array = sent.copy() if calls.rank == root else empty(count, dtype)
        run("bcast", name, calls.context(chunk_bytes, codec), Tensor.of(array), root)
        assert same(array, sent), (name, root, codec, dtype, count)


def allgather(calls: Calls, count: int, dtype: DType, chunk_bytes: int, codec: str) -> None:
    parts = [bits(rank, ragged(rank, count), dtype) for rank in range(calls.size)]
    for name, in_place in itertools.product(registry.names("allgather"), (False, True)):
        recvs = [empty(part.size, dtype) for part in parts]
        send = parts[calls.rank]
        if in_place:
            recvs[calls.rank] = send = send.copy()
        context = calls.context(chunk_bytes, codec)
        run("allgather", name, context, Tensor.of(send), tensors(recvs))
        assert all(map(same, recvs, parts)), (name, codec, dtype, count)


def alltoall(calls: Calls, count: int, dtype: DType, chunk_bytes: int, codec: str) -> None:
    def part(source: int, dest: int) -> int:
        return ragged((source + 2 * dest) % 4, count)

    def seed(source: int, dest: int) -> int:
        return source * calls.size + dest

    ranks, me = range(calls.size), calls.rank
    sends = [bits(seed(me, dest), part(me, dest), dtype) for dest in ranks]
    recvs = [empty(part(source, me), dtype) for source in ranks]
    context = calls.context(chunk_bytes, codec)
    run("alltoall", "pairwise", context, tensors(sends), tensors(recvs))
    expected = [bits(seed(source, me), part(source, me), dtype) for source in ranks]
    assert all(map(same, recvs, expected)), (codec, dtype, count)


def gather_scatter(calls: Calls, count: int, dtype: DType, chunk_bytes: int, codec: str) -> None:
    parts = [bits(rank, ragged(rank, count), dtype) for rank in range(calls.size)]
    for root in {0, calls.size - 1}:
        recvs = [empty(part.size, dtype) for part in parts] if calls.rank == root else None
        context = calls.context(chunk_bytes, codec)
        destination = None if recvs is None else tensors(recvs)
        run("gather", "linear", context, Tensor.of(parts[calls.rank]), destination, root)
        assert recvs is None or all(map(same, recvs, parts)), (codec, dtype, count)

        recv = empty(parts[calls.rank].size, dtype)
        sends = tensors(parts) if calls.rank == root else None
        context = calls.context(chunk_bytes, codec)
        run("scatter", "linear", context, sends, Tensor.of(recv), root)
        assert same(recv, parts[calls.rank]), (codec, dtype, count)


def bytes_and_floats(calls: Calls) -> None:
    """A rank may hold as bytes, packed, what the others hold as floats."""
    for packed in range(min(2, calls.size)):
        values = bits(7, 5000, DType.FLOAT32)
        array = values.copy() if calls.rank == 0 else empty(5000, DType.FLOAT32)
        tensor = Tensor.of(array)
        if calls.rank == packed:
            tensor = Tensor(tensor.memory, DType.BYTES)
        run("bcast", "scatter_allgather", calls.context(1000), tensor, 0)
        assert same(array, values), packed


def main() -> None:
    calls = Calls()
    rotation = itertools.cycle(CODECS)
    for dtype, (count, chunk_bytes) in itertools.product(FLOATS, CUTS):
        codec = next(rotation)
        for operation in (bcast, allgather, alltoall, gather_scatter):
            operation(calls, count, dtype, chunk_bytes, codec)
    bytes_and_floats(calls)


if __name__ == "__main__":
    main()
