"""Exchanges through memory of the host: copies, and streams that wait for words.

The GPU is emulated: streams of a process take turns, and two processes share memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import emulated_module
import numpy as np
import pytest
from linked_ranks import (
    TIMED_OUT,
    contributions,
    finish,
    folded,
    outlives_its_peer,
    send_both_ways,
)
from piped_ranks import PipedRank, piped
from samples import FLOATS, TILE, tensor_of

from uzipmpi.kernels import link, pipe
from uzipmpi.kernels.device import DeviceMemory, Stream
from uzipmpi.typing import DType, Tensor

ABORTED, MISMATCH, DAMAGED = 2, 3, 4
PIECE = 64 * 1024  # bytes of values, in the smallest slots
by_name = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)


@pytest.fixture(autouse=True)
def gpu(gpu_module: Path) -> Iterator[ModuleType]:
    """The emulated GPU half, in the place of any other."""
    with emulated_module.installed(gpu_module) as module:
        yield module


@by_name
@pytest.mark.parametrize("pattern", ["normal", "random_bits", "zeros", "special"])
def test_values_arrive(pattern: str, dtype: DType) -> None:
    """More pieces than slots one way, with one alignment and then with the least."""
    ranks = piped(2)
    counts = (5 * PIECE // dtype.itemsize + 77, TILE)
    tensors = [tensor_of(pattern, dtype, count) for count in counts]
    for offset in (0, dtype.itemsize):
        found = send_both_ways(ranks, tensors, offset)
        assert (found[0] == tensors[1].memory).all()
        assert (found[1] == tensors[0].memory).all()


@pytest.mark.parametrize("codec", ["auto", "tier", "raw"])
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 70000])
def test_counts(count: int, codec: str) -> None:
    ranks = piped(2)
    tensors = [tensor_of("outliers", DType.BFLOAT16, count, seed) for seed in range(2)]
    found = send_both_ways(ranks, tensors, codec=codec)
    assert (found[0] == tensors[1].memory).all()
    assert (found[1] == tensors[0].memory).all()


def test_frames_of_any_size_follow_each_other() -> None:
    """Sizes are forecast by those before; what was not expected comes as well."""
    sender, receiver = ranks = piped(2)
    patterns = ("normal", "random_bits", "zeros", "normal", "random_bits")
    tensors = [tensor_of(one, DType.BFLOAT16, 60_000, i) for i, one in enumerate(patterns)]
    for codec in ("auto", "raw", "auto"):
        for tensor in tensors:
            out = receiver.room(tensor.nbytes)
            sender.exchange(tensor.dtype, sends=[(1, sender.put(tensor.memory))], codec=codec)
            receiver.exchange(tensor.dtype, receives=[(0, out)])
            assert (receiver.get(out) == tensor.memory).all()
    assert not any(finish(ranks))


def test_what_compresses_is_smaller_on_the_way() -> None:
    """The bytes behind a frame's end in its slot stay as they were."""
    ranks = piped(2)
    tensor = tensor_of("normal", DType.BFLOAT16, PIECE // 2)
    for _ in range(4):  # the first time nobody knows its size
        send_both_ways(ranks, [tensor, tensor])
    links = ranks[1].links
    slot = links._region_bytes // 4 // 4096 * 4096
    start = links._share.address + links._region_bytes - slot
    last = ranks[1].get(DeviceMemory(start, slot, 1, links))[:-128]
    used = np.flatnonzero(last).max() + 1
    assert 0.6 < used / tensor.nbytes < 0.75 + 8192 / tensor.nbytes


def test_bytes_are_sent_as_they_are() -> None:
    ranks = piped(2)
    values = np.arange(200_000, dtype=np.uint8)
    tensors = [Tensor(values, DType.BYTES), Tensor(values[::-1].copy(), DType.BYTES)]
    found = send_both_ways(ranks, tensors, 3)
    assert (found[1] == values).all()
    assert (found[0] == values[::-1]).all()


def test_messages_follow_each_other() -> None:
    """Many more than there are slots; nobody waits meanwhile, the sender is far ahead."""
    sender, receiver = ranks = piped(2)
    tensors = [tensor_of("normal", DType.FLOAT16, seed % 4 * 600, seed) for seed in range(40)]
    outs = [receiver.room(tensor.nbytes) for tensor in tensors]
    values = [sender.put(tensor.memory) for tensor in tensors]
    for memory in values:
        sender.exchange(DType.FLOAT16, sends=[(1, memory)])
    for tensor, out in zip(tensors, outs, strict=True):
        receiver.exchange(tensor.dtype, receives=[(0, out)])
    for tensor, out in zip(tensors, outs, strict=True):
        assert (receiver.get(out) == tensor.memory).all()
    assert not any(finish(ranks))


@pytest.mark.parametrize("codec", ["tier", "raw"])
def test_values_may_change_when_the_stream_goes_on(codec: str) -> None:
    """Though the peer has taken nothing: what fits the slots is sent."""
    sender, receiver = ranks = piped(2)
    tensor = tensor_of("normal", DType.BFLOAT16, PIECE // 2)
    values, out = sender.put(tensor.memory), receiver.room(tensor.nbytes)
    sender.exchange(tensor.dtype, sends=[(1, values)], codec=codec)
    sender.stream.synchronize()
    sender.stream.copy(values, np.zeros(values.size, np.uint8))
    sender.stream.synchronize()
    receiver.exchange(tensor.dtype, receives=[(0, out)])
    assert (receiver.get(out) == tensor.memory).all()
    assert not any(finish(ranks))


@pytest.mark.parametrize("other", ["dtype", "count", "word"])
def test_ends_that_disagree_both_end(other: str) -> None:
    sender, receiver = piped(2)
    values = sender.put(np.zeros(40000, np.uint8))
    out = receiver.room(40000 if other != "count" else 39998)
    sender.exchange(DType.BFLOAT16, sends=[(1, values)])
    receiver.exchange(
        DType.FLOAT16 if other == "dtype" else DType.BFLOAT16,
        receives=[(0, out)],
        word=int(other == "word"),
    )
    assert receiver.finish() == [MISMATCH]
    assert sender.finish() == [ABORTED]
    assert (receiver.get(out) == 0x5A).all()
    receiver.exchange(DType.BFLOAT16, receives=[(0, out)])  # does nothing
    assert receiver.finish() == [MISMATCH]


@pytest.mark.parametrize("role", ["send", "receive", "fold"])
def test_who_waits_in_vain_gives_up(role: str) -> None:
    rank, other = piped(2)
    memory = rank.put(np.zeros(6 * PIECE, np.uint8))  # more than the slots hold
    arguments = {
        "send": {"sends": [(1, memory)]},
        "receive": {"receives": [(1, memory)]},
        "fold": {"fold": link.Fold("sum", memory, memory)},
    }
    begin = time.monotonic()
    rank.exchange(DType.FLOAT32, timeout=0.2, **arguments[role])
    assert rank.finish() == [TIMED_OUT]
    assert 0.2 < time.monotonic() - begin < 5
    other.exchange(DType.FLOAT32, sends=[(0, other.put(np.zeros(4, np.uint8)))])
    assert other.finish() == [ABORTED]


def test_what_has_not_begun_does_not_wait() -> None:
    """Work before an exchange takes longer than the time limit: nobody has waited meanwhile."""
    rank, other = ranks = piped(2)
    out = rank.room(4096)
    rank.exchange(DType.FLOAT32, receives=[(1, out)], timeout=0.1)  # no stream is emulated yet
    time.sleep(0.5)
    assert not rank.links.ended_by
    other.exchange(DType.FLOAT32, sends=[(0, other.put(np.zeros(4096, np.uint8)))])
    assert not any(finish(ranks[::-1]))


def test_abort_ends_a_wait() -> None:
    rank, other = piped(2)
    rank.exchange(DType.FLOAT32, receives=[(1, rank.room(4096))], timeout=60)
    waiter = threading.Thread(target=rank.stream.synchronize)
    begin = time.monotonic()
    waiter.start()
    time.sleep(0.1)
    other.links.abort()
    waiter.join(20)
    assert time.monotonic() - begin < 20
    assert rank.finish() == [ABORTED]


def test_a_driver_that_fails_ends_all() -> None:
    """What is queued in part would leave both ends out of step."""
    rank, other = piped(2)
    memory = rank.room(4096)
    other.exchange(DType.FLOAT32, receives=[(0, other.room(4096))], timeout=60)
    exchange = pipe.prepare(rank.links, DType.FLOAT32, sends=[(1, memory)], timeout=60)
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        exchange.launch(Stream.of(1 << 40, rank.device))
    assert rank.links.ended_by == ABORTED
    assert other.finish() == [ABORTED]
    rank.links.close()


def test_close_ends_what_is_under_way() -> None:
    rank, other = piped(2)
    rank.exchange(DType.FLOAT32, receives=[(1, rank.room(4096))], timeout=60)
    begin = time.monotonic()
    rank.links.close()
    assert time.monotonic() - begin < 20
    assert other.links.ended_by == ABORTED


@pytest.mark.parametrize("place", [0, 40, 2048])
def test_damage_is_noticed_or_harmless(place: int) -> None:
    """Whatever a peer writes, nothing changes but the memory for what comes from it."""
    generator = np.random.default_rng(place)
    noticed = 0
    for _ in range(6):
        sender, receiver = piped(2)
        count = 8 * TILE
        tensor = tensor_of("outliers", DType.BFLOAT16, count)
        sender.exchange(tensor.dtype, sends=[(1, sender.put(tensor.memory))])
        assert sender.finish() == [0]
        slot = DeviceMemory(receiver.links._share.address + 4096 + place, 1024, 1, receiver)
        receiver.stream.copy(slot, generator.integers(0, 256, slot.size, np.uint8))
        receiver.exchange(DType.BFLOAT16, receives=[(0, receiver.room(2 * count))])
        (status,) = receiver.finish()
        assert status in (0, DAMAGED)
        noticed += status == DAMAGED
        assert sender.links.ended_by == (ABORTED if status else 0)
    assert noticed > 3 or place == 2048


@by_name
@pytest.mark.parametrize(("op", "n", "divisor"), [("sum", 2, 1), ("sum", 3, 3), ("prod", 2, 1)])
def test_folds_are_those_of_the_cpu(op: str, n: int, divisor: int, dtype: DType) -> None:
    """Each rank sends its tensor to all others, and all fold all of them."""
    ranks = piped(n)
    tensors = contributions(n, dtype, PIECE // dtype.itemsize + 1055)
    results = []
    for rank, tensor in zip(ranks, tensors, strict=True):
        own = rank.put(tensor.memory, dtype.itemsize * (rank.rank % 2))
        out = own if rank.rank else rank.room(own.size)
        sends = [(peer, own) for peer in range(n) if peer != rank.rank]
        if out is own:  # what is sent must not change before it is gone
            sends = [(peer, rank.put(tensor.memory)) for peer, _ in sends]
        rank.exchange(dtype, sends=sends, fold=link.Fold(op, own, out, divisor))
        results.append(out)
    expected = folded(op, tensors, divisor)
    for rank, out in zip(ranks, results, strict=True):
        assert (rank.get(out) == expected).all()
    assert not any(finish(ranks))


@pytest.mark.parametrize("codec", ["tier", "raw"])
@pytest.mark.parametrize("n", [2, 3])
def test_a_fold_replaces_what_is_sent(n: int, codec: str) -> None:
    """Twice, with more pieces than slots; one rank comes late, when all others' pieces wait."""
    ranks = piped(n)
    tensors = contributions(n, DType.BFLOAT16, 6 * PIECE // 2 + 3)
    places = [rank.put(tensor.memory) for rank, tensor in zip(ranks, tensors, strict=True)]
    expected = folded("sum", tensors)
    again = folded("max", [Tensor(expected, DType.BFLOAT16)] * 2)
    for op in ("sum", "max"):
        for rank, place in zip(ranks, places, strict=True):
            sends = [(peer, place) for peer in range(n) if peer != rank.rank]
            fold = link.Fold(op, place, place)
            rank.exchange(DType.BFLOAT16, sends=sends, fold=fold, codec=codec)
    for rank, place in zip(ranks, places, strict=True):
        assert (rank.get(place) == again).all()
    assert not any(finish(ranks))


def test_a_copy_is_made_as_well() -> None:
    ranks = piped(2)
    tensor = tensor_of("normal", DType.FLOAT32, 2 * TILE + 9)
    outs = []
    for rank in ranks:
        out, received = rank.room(tensor.nbytes), rank.room(tensor.nbytes)
        own = rank.put(tensor.memory)
        sends, receives = [(1 - rank.rank, own)], [(1 - rank.rank, received)]
        copy = link.Copy(out, own)
        rank.exchange(DType.FLOAT32, sends=sends, receives=receives, copy=copy)
        outs += [(rank, out), (rank, received)]
    for rank, out in outs:
        assert (rank.get(out) == tensor.memory).all()
    assert not any(finish(ranks))


@pytest.mark.parametrize("codec", ["tier", "raw"])
def test_reduce_scatter_and_allgather(codec: str) -> None:
    """Two exchanges of all ranks, each with a shard for every other."""
    n, count = 3, 3 * 1500
    ranks = piped(n)
    tensors = contributions(n, DType.FLOAT16, count)
    outs = []
    for rank, tensor in zip(ranks, tensors, strict=True):
        me = rank.rank
        shards = [slice(k * tensor.nbytes // n, (k + 1) * tensor.nbytes // n) for k in range(n)]
        own, out = rank.put(tensor.memory), rank.room(tensor.nbytes)
        others = [peer for peer in range(n) if peer != me]
        rank.exchange(
            tensor.dtype,
            sends=[(peer, own[shards[peer]]) for peer in others],
            fold=link.Fold("sum", own[shards[me]], out[shards[me]]),
            codec=codec,
        )
        rank.exchange(
            tensor.dtype,
            sends=[(peer, out[shards[me]]) for peer in others],
            receives=[(peer, out[shards[peer]]) for peer in others],
            codec=codec,
        )
        outs.append(out)
    for rank, out in zip(ranks, outs, strict=True):
        assert (rank.get(out) == folded("sum", tensors)).all()
    assert not any(finish(ranks))


def test_a_rank_alone_folds_its_own() -> None:
    (rank,) = piped(1)
    tensor = tensor_of("normal", DType.FLOAT32, 1500)
    memory = rank.put(tensor.memory)
    rank.exchange(DType.FLOAT32, fold=link.Fold("sum", memory, memory, 3))
    assert (rank.get(memory) == folded("sum", [tensor], 3)).all()
    assert rank.finish() == [0]


def test_a_peer_that_is_killed(gpu_module: Path) -> None:
    outlives_its_peer(PipedRank, gpu_module)


def test_memory_is_given_back() -> None:
    """Files and mappings, here and of peers, and the thread that watches."""

    def used() -> tuple[int, int, int]:
        mapped = Path("/proc/self/maps").read_text().count("memfd:uzipmpi")
        watching = [one for one in threading.enumerate() if one.name == "uzipmpi-pipes"]
        return mapped, len(list(Path("/proc/self/fd").iterdir())), len(watching)

    before = used()
    ranks = piped(2)
    tensor = tensor_of("normal", DType.BFLOAT16, TILE)
    send_both_ways(ranks, [tensor, tensor])
    assert used() == (before[0] + 2, before[1] + 4, before[2] + 2)
    for rank in ranks:
        rank.links.close()
    assert used() == before


@pytest.mark.parametrize(("size", "staging_bytes"), [(2, 80 << 20), (8, 80 << 20), (3, 4 << 20)])
def test_memory_that_is_taken(gpu: ModuleType, size: int, staging_bytes: int) -> None:
    pipes = pipe.Pipes(0, 0, size, staging_bytes)
    assert (size - 1) * gpu.pipe_device_bytes(pipes._slot_bytes) <= staging_bytes
    assert pipes._slot_bytes <= gpu.MOST_SLOT_BYTES
    pipes.close()


def test_what_is_refused() -> None:
    rank, other = piped(2)
    memory = rank.room(1000)
    handle = other.links.handle
    with pytest.raises(ValueError, match=r"expected rank 1 of 2 with slots of .*, found rank 0"):
        rank.links.connect(1, rank.links.handle)
    with pytest.raises(ValueError, match=r"peers that are connected, found .0."):
        rank.exchange(DType.BYTES, sends=[(0, memory)])
    with pytest.raises(ValueError, match="whole number of values of 8 bytes, found 999"):
        rank.exchange(DType.FLOAT64, sends=[(1, memory[:999])])
    with pytest.raises(RuntimeError, match="aligned to their own size"):
        rank.exchange(DType.FLOAT32, sends=[(1, memory[1:801])])
    with pytest.raises(RuntimeError, match="one message in each direction"):
        rank.exchange(DType.BYTES, sends=[(1, memory), (1, memory)])
    with pytest.raises(ValueError, match="operators sum, prod, min, max, found 'xor'"):
        rank.exchange(DType.FLOAT32, fold=link.Fold("xor", memory, memory))
    with pytest.raises(ValueError, match="codec auto, tier or raw between GPUs, found ans"):
        rank.exchange(DType.FLOAT32, sends=[(1, memory)], codec="ans")
    prepared = pipe.prepare(rank.links, DType.BYTES, sends=[(1, memory)], timeout=1)
    rank.links.disconnect()
    for _ in range(2):
        rank.links.close()
    with pytest.raises(ValueError, match="links that are not closed"):
        prepared.launch(rank.stream)
    with pytest.raises(ValueError, match="links that are not closed"):
        rank.links.connect(1, handle)
    with pytest.raises(ValueError, match="a rank of at most 9, found rank 9 of 10"):
        pipe.Pipes(0, 9, 10, 0)
