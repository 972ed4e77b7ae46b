"""Exchanges between GPUs through their memory, on the emulated GPU.

Its kernels wait for each other as those of GPUs do: two streams of a process take turns, and two
processes share memory.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import emulated_module
import numpy as np
import pytest
from linked_ranks import (
    TIMED_OUT,
    LinkedRank,
    contributions,
    finish,
    folded,
    linked,
    outlives_its_peer,
    send_both_ways,
)
from samples import FLOATS, TILE, tensor_of

from uzipmpi.kernels import device, link
from uzipmpi.kernels.device import DeviceMemory
from uzipmpi.typing import DType, Tensor

ABORTED, MISMATCH, DAMAGED = 2, 3, 4
LARGE = 1 << 20
HEAD = 128 * 34  # bytes of RegionHead
by_name = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)


@pytest.fixture(autouse=True)
def gpu(gpu_module: Path) -> Iterator[ModuleType]:
    """The emulated GPU half, in the place of any other."""
    with emulated_module.installed(gpu_module) as module:
        yield module


@by_name
@pytest.mark.parametrize(
    "pattern", ["normal", "random_bits", "zeros", "constant", "zero_heavy", "special", "wrapped"]
)
def test_values_arrive(pattern: str, dtype: DType) -> None:
    """More records than slots, both ways at once, with one alignment and then with the least."""
    ranks = linked(2)
    tensors = [tensor_of(pattern, dtype, count) for count in (6 * TILE + 77, 9 * TILE)]
    for offset in (0, dtype.itemsize):
        found = send_both_ways(ranks, tensors, offset)
        assert (found[0] == tensors[1].memory).all()
        assert (found[1] == tensors[0].memory).all()


@by_name
@pytest.mark.parametrize("pattern", ["normal", "random_bits", "zeros", "zero_heavy", "wrapped"])
def test_the_same_values_arrive_at_several_peers(pattern: str, dtype: DType) -> None:
    """One of them has received before, so its slots are others than those of the rest."""
    sender, *receivers = ranks = linked(4, LARGE)
    earlier = tensor_of("normal", dtype, 3 * TILE + 5)
    sender.exchange(dtype, sends=[(2, sender.put(earlier.memory))])
    rooms = [(receivers[1], receivers[1].room(earlier.nbytes), earlier)]
    for offset, codec in ((0, "auto"), (dtype.itemsize, "tier"), (0, "raw")):
        tensor = tensor_of(pattern, dtype, 7 * TILE + 77, offset)
        values = sender.put(tensor.memory, offset)
        sender.exchange(dtype, sends=[(peer, values) for peer in (1, 2, 3)], codec=codec)
        rooms += [(rank, rank.room(tensor.nbytes, offset), tensor) for rank in receivers]
    for rank, room, _ in rooms:
        rank.exchange(dtype, receives=[(0, room)])
    for rank, room, tensor in rooms:
        assert (rank.get(room) == tensor.memory).all()
    assert not any(finish(ranks))


def test_one_of_several_peers_that_takes_nothing_ends_the_message_for_all() -> None:
    sender, *receivers = ranks = linked(4)
    tensor = tensor_of("normal", DType.BFLOAT16, 64 * TILE)
    values = sender.put(tensor.memory)
    sender.exchange(tensor.dtype, sends=[(peer, values) for peer in (1, 2, 3)], timeout=0.3)
    for rank in receivers[:2]:
        rank.exchange(tensor.dtype, receives=[(0, rank.room(tensor.nbytes))])
    found = [rank.finish() for rank in ranks]
    assert found == [[TIMED_OUT], [ABORTED], [ABORTED], []]


@pytest.mark.parametrize("codec", ["auto", "tier", "raw"])
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 70000])
def test_counts(count: int, codec: str) -> None:
    ranks = linked(2, LARGE)
    tensors = [tensor_of("outliers", DType.BFLOAT16, count, seed) for seed in range(2)]
    found = send_both_ways(ranks, tensors, codec=codec)
    assert (found[0] == tensors[1].memory).all()
    assert (found[1] == tensors[0].memory).all()


@pytest.mark.parametrize("menu", range(8))
def test_menus(menu: int) -> None:
    ranks = linked(2)
    tensors = [tensor_of("outliers", DType.BFLOAT16, 2 * TILE, seed) for seed in range(2)]
    found = send_both_ways(ranks, tensors, codec="tier", menu=menu)
    assert (found[0] == tensors[1].memory).all()


def test_what_compresses_is_smaller_on_the_way(gpu: ModuleType) -> None:
    """The bytes behind a tile's end in its slot stay as they were."""
    ranks = linked(2)
    tensor = tensor_of("normal", DType.BFLOAT16, 2 * TILE)
    send_both_ways(ranks, [tensor, tensor])
    links = ranks[1].links
    slots = DeviceMemory(links._here(0), links._region_bytes, 1, links)[-2 * 8192 :]
    for slot in (ranks[1].get(slots[:8192]), ranks[1].get(slots[8192:])):
        used = np.flatnonzero(slot).max() + 1
        assert 0.6 < used / tensor[:TILE].nbytes < 0.75


def test_bytes_are_sent_as_they_are() -> None:
    ranks = linked(2)
    values = np.arange(5000, dtype=np.uint8)
    backwards = values[::-1].copy()
    tensors = [Tensor(values, DType.BYTES), Tensor(backwards, DType.BYTES)]
    found = send_both_ways(ranks, tensors, 3)
    assert (found[1] == values).all()
    assert (found[0] == backwards).all()


@pytest.mark.parametrize("max_blocks", [1, 2, 5])
def test_messages_follow_each_other(max_blocks: int) -> None:
    """Many more than a ring or the list of openings holds; the sender is far ahead."""
    sender, receiver = ranks = linked(2)
    tensors = [tensor_of("normal", DType.FLOAT16, seed % 4 * 600, seed) for seed in range(80)]
    outs = [receiver.room(tensor.nbytes) for tensor in tensors]
    values = [sender.put(tensor.memory) for tensor in tensors]
    for memory in values:
        sender.exchange(DType.FLOAT16, sends=[(1, memory)], max_blocks=max_blocks)
    for tensor, out in zip(tensors, outs, strict=True):
        receiver.exchange(tensor.dtype, receives=[(0, out)])
    for tensor, out in zip(tensors, outs, strict=True):
        assert (receiver.get(out) == tensor.memory).all()
    assert not any(finish(ranks))


def poke(
    rank: LinkedRank, place: int, words: np.ndarray | np.generic, where: int | None = None
) -> None:
    """Write to the region for the other rank, or elsewhere, as the kernels' structures have it."""
    region = rank.links._here(1 - rank.rank) if where is None else where
    source = np.atleast_1d(words).view(np.uint8)
    there = DeviceMemory(region + place, source.size, rank.device, rank)
    rank.stream.copy(there, source)
    rank.stream.synchronize()


def test_flags_go_on_when_their_rounds_begin_again() -> None:
    """A slot's flag holds 16 bits of how often it was used."""
    sender, receiver = ranks = linked(2)
    tensor = tensor_of("normal", DType.BFLOAT16, 8 * TILE)
    for records in (0xFFFE * 2, 2**33 - 4):  # with two slots
        rounds = records // 2
        poke(sender, 8, np.uint64(records), sender.links._ledger(1))
        poke(receiver, 128 + 8, np.uint64(records), receiver.links._ledger(0))
        poke(sender, HEAD + 16, np.full(2, rounds % 2**32, np.uint32))
        poke(receiver, HEAD, np.full(2, rounds % 2**16 << 48, np.uint64))
        out = receiver.room(tensor.nbytes)
        sender.exchange(tensor.dtype, sends=[(1, sender.put(tensor.memory))])
        receiver.exchange(tensor.dtype, receives=[(0, out)])
        assert (receiver.get(out) == tensor.memory).all()
        assert not any(finish(ranks))


@pytest.mark.parametrize("other", ["dtype", "count", "word"])
def test_ends_that_disagree_both_end(other: str) -> None:
    sender, receiver = linked(2)
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
    assert "another data type or count" in link.complaint(MISMATCH)


@pytest.mark.parametrize("role", ["send", "receive", "fold"])
def test_who_waits_in_vain_gives_up(role: str) -> None:
    rank, other = linked(2)
    memory = rank.put(np.zeros(40000, np.uint8))
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


def test_abort_ends_a_kernel_that_runs() -> None:
    rank, other = linked(2)
    rank.exchange(DType.FLOAT32, receives=[(1, rank.room(4096))], timeout=60)
    waiter = threading.Thread(target=rank.stream.synchronize)
    begin = time.monotonic()
    waiter.start()
    while not waiter.is_alive():
        time.sleep(0.01)
    time.sleep(0.1)
    other.links.abort()
    waiter.join(20)
    assert time.monotonic() - begin < 20
    assert rank.finish() == [ABORTED]


@pytest.mark.parametrize("place", ["flag", "opening", "slot"])
def test_damage_is_noticed_or_harmless(place: str) -> None:
    """Whatever a peer writes, nothing changes but the memory for what comes from it."""
    generator = np.random.default_rng(len(place))
    noticed = 0
    for _ in range(12):
        sender, receiver = linked(2)
        count = 2 * TILE
        sender.exchange(
            DType.BFLOAT16,
            sends=[(1, sender.put(tensor_of("outliers", DType.BFLOAT16, count).memory))],
        )
        assert sender.finish() == [0]
        begin, size = {
            "flag": (HEAD, 6),
            "opening": (128 * 2 + 21, 19),
            "slot": (8192, 8192),
        }[place]
        poke(receiver, begin, generator.integers(0, 256, size, dtype=np.uint8))
        receiver.exchange(DType.BFLOAT16, receives=[(0, receiver.room(2 * count))])
        status = receiver.finish()
        assert status in ([0], [DAMAGED])
        noticed += status == [DAMAGED]
    assert noticed > 3


@by_name
@pytest.mark.parametrize(("op", "n", "divisor"), [("sum", 2, 1), ("sum", 3, 3), ("prod", 2, 1)])
def test_folds_are_those_of_the_cpu(op: str, n: int, divisor: int, dtype: DType) -> None:
    """Each rank sends its tensor to all others, and all fold all of them."""
    ranks = linked(n)
    tensors = contributions(n, dtype, 3 * TILE + 55)
    results = []
    for rank, tensor in zip(ranks, tensors, strict=True):
        own = rank.put(tensor.memory, dtype.itemsize * (rank.rank % 2))
        out = own if rank.rank else rank.room(own.size)
        sends = [(peer, own) for peer in range(n) if peer != rank.rank]
        if out is own and n > 2:  # what is sent must not change before it is gone
            sends = [(peer, rank.put(tensor.memory)) for peer, _ in sends]
        rank.exchange(dtype, sends=sends, fold=link.Fold(op, own, out, divisor))
        results.append(out)
    expected = folded(op, tensors, divisor)
    for rank, out in zip(ranks, results, strict=True):
        assert (rank.get(out) == expected).all()
    assert not any(finish(ranks))


def test_a_fold_replaces_what_is_sent() -> None:
    """Twice, through rings of few slots, after a message that only one of them sends."""
    ranks = linked(2, 100_000)
    count = 40 * TILE + 3
    first = tensor_of("normal", DType.BFLOAT16, 3 * TILE)
    room = ranks[1].room(first.nbytes)
    ranks[0].exchange(DType.BFLOAT16, sends=[(1, ranks[0].put(first.memory))])
    ranks[1].exchange(DType.BFLOAT16, receives=[(0, room)])
    tensors = contributions(2, DType.BFLOAT16, count)
    places = [rank.put(tensor.memory) for rank, tensor in zip(ranks, tensors, strict=True)]
    expected = folded("sum", tensors)
    again = folded("max", [Tensor(expected, DType.BFLOAT16)] * 2)
    for op in ("sum", "max"):
        for rank, place in zip(ranks, places, strict=True):
            sends = [(1 - rank.rank, place)]
            rank.exchange(DType.BFLOAT16, sends=sends, fold=link.Fold(op, place, place))
    for rank, place in zip(ranks, places, strict=True):
        assert (rank.get(place) == again).all()
    assert (ranks[1].get(room) == first.memory).all()
    assert not any(finish(ranks))


def test_a_sender_may_be_far_ahead_of_a_fold_in_place() -> None:
    """One folds with few warps what is slow to decode, and sends what is soon there, to many."""
    ranks = linked(2, 150_000)
    tensors = [tensor_of("normal", DType.BFLOAT16, 300 * TILE, rank) for rank in range(2)]
    places = [rank.put(tensor.memory) for rank, tensor in zip(ranks, tensors, strict=True)]
    for rank, place, codec, blocks in zip(ranks, places, ("raw", "tier"), (2, 9), strict=True):
        rank.exchange(
            DType.BFLOAT16,
            sends=[(1 - rank.rank, place)],
            fold=link.Fold("max", place, place),
            codec=codec,
            max_blocks=blocks,
        )
    for rank, place in zip(ranks, places, strict=True):
        assert (rank.get(place) == folded("max", tensors)).all()
    assert not any(finish(ranks))


def test_what_a_fold_replaces_goes_to_a_single_peer() -> None:
    ranks = linked(3)
    place = ranks[0].put(np.zeros(4096, np.uint8))
    with pytest.raises(RuntimeError, match="single peer"):
        ranks[0].exchange(
            DType.FLOAT32, sends=[(1, place), (2, place)], fold=link.Fold("sum", place, place)
        )


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 300_001), (0, 5), (3, 70_000)])
def test_a_copy_is_made_meanwhile(offset: int, nbytes: int) -> None:
    ranks = linked(2)
    values = np.arange(nbytes, dtype=np.uint32).astype(np.uint8)
    tensor = tensor_of("normal", DType.FLOAT32, 2 * TILE + 9)
    outs = []
    for rank in ranks:
        source, out = rank.put(values, offset), rank.room(nbytes)
        received = rank.room(tensor.nbytes)
        rank.exchange(
            DType.FLOAT32,
            sends=[(1 - rank.rank, rank.put(tensor.memory))],
            receives=[(1 - rank.rank, received)],
            copy=link.Copy(out, source),
        )
        outs.append((out, received))
    for rank, (out, received) in zip(ranks, outs, strict=True):
        assert (rank.get(out) == values).all()
        assert (rank.get(received) == tensor.memory).all()
    assert not any(finish(ranks))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("count", [0, 5, 1025])
def test_folds_of_few_values(op: str, count: int) -> None:
    ranks = linked(2)
    tensors = contributions(2, DType.BFLOAT16, count)
    results = []
    for rank, tensor in zip(ranks, tensors, strict=True):
        own, out = rank.put(tensor.memory), rank.room(tensor.nbytes)
        rank.exchange(tensor.dtype, sends=[(1 - rank.rank, own)], fold=link.Fold(op, own, out))
        results.append(out)
    for rank, out in zip(ranks, results, strict=True):
        assert (rank.get(out) == folded(op, tensors)).all()
    assert not any(finish(ranks))


def test_reduce_scatter_and_allgather() -> None:
    """Two launches of all ranks, each with a shard for every other."""
    n, count = 3, 3 * 1500
    ranks = linked(n)
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
        )
        rank.exchange(
            tensor.dtype,
            sends=[(peer, out[shards[me]]) for peer in others],
            receives=[(peer, out[shards[peer]]) for peer in others],
        )
        outs.append(out)
    for rank, out in zip(ranks, outs, strict=True):
        assert (rank.get(out) == folded("sum", tensors)).all()
    assert not any(finish(ranks))


def test_a_rank_alone_folds_its_own() -> None:
    (rank,) = linked(1)
    tensor = tensor_of("normal", DType.FLOAT32, 1500)
    memory = rank.put(tensor.memory)
    rank.exchange(DType.FLOAT32, fold=link.Fold("sum", memory, memory, 3))
    assert (rank.get(memory) == folded("sum", [tensor], 3)).all()
    assert rank.finish() == [0]


def test_two_processes(mpirun: Callable[..., str], gpu_module: Path) -> None:
    assert "all the same" in mpirun(2, "ranks_link.py", gpu_module, timeout=60)


def test_random_rounds(mpirun: Callable[..., str], gpu_module: Path) -> None:
    arguments = ("--module", gpu_module, "--rounds", 60)
    assert "all the same" in mpirun(2, "ranks_rounds.py", *arguments, timeout=60)


def test_a_peer_that_is_killed(gpu_module: Path) -> None:
    outlives_its_peer(LinkedRank, gpu_module)


def test_names_of_gpus() -> None:
    identities = [link.device_identity(ordinal) for ordinal in range(2)]
    assert identities[0] != identities[1]
    assert link.can_access(0, identities[0])
    assert link.can_access(0, identities[1])
    assert link.can_access(0, "ffffffff:00:00.0/0")  # not seen, so not known


def test_what_is_refused() -> None:
    rank, other = linked(2)
    memory, status = rank.room(1000), device.pinned(4)
    handle = other.links.handle
    with pytest.raises(ValueError, match=r"expected rank 1 of 2 with 2.1 slots, found rank 0"):
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
    rank.links.disconnect()
    with pytest.raises(ValueError, match=r"peers that are connected, found .1."):
        rank.exchange(DType.BYTES, sends=[(1, memory)])
    rank.links.connect(1, handle)
    arguments = {"sends": [(1, memory)], "status": status, "timeout": 1}
    kernel = link.prepare(rank.links, DType.BYTES, **arguments)
    for _ in range(2):
        rank.links.close()
    with pytest.raises(ValueError, match="links that are not closed"):
        kernel.launch(rank.stream)
    with pytest.raises(ValueError, match="links that are not closed"):
        link.prepare(rank.links, DType.BYTES, **arguments)
    with pytest.raises(ValueError, match="a rank of at most 9, found rank 9 of 10"):
        link.Links(0, 9, 10, 0)


def test_every_kernel_one_after_the_other(gpu_module: Path) -> None:
    """What a sanitizer is given on a GPU."""
    program = Path(__file__).with_name("every_exchange.py")
    options = ["--module", str(gpu_module), "--tiles", "6", "--dtype", "BFLOAT16", "FLOAT64"]
    done = subprocess.run(
        [sys.executable, program, *options], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.count("every exchange agrees with the CPU") == 2, done.stderr
