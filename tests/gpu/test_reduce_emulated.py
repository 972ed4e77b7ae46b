"""Fused reductions and the encoder of many tensors, on an emulated GPU, against the CPU's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from emulator import Emulator
from reduce_emulator import Input, ReduceEmulator
from samples import FLOATS, PATTERNS, TILE, tensor_of

from uzipmpi.kernels import codec, reduce
from uzipmpi.typing import Bytes, DType, Tensor

HEADER = 64
by_name = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)


@pytest.fixture(scope="module")
def fused(emulator: Emulator) -> ReduceEmulator:
    """The fused kernels on this processor."""
    return ReduceEmulator(emulator.gpu)


def folded(op: str, tensors: Sequence[Tensor], divisor: int = 1) -> Bytes:
    """Return what the CPU folds tensors to."""
    out = Tensor(np.empty_like(tensors[0].memory), tensors[0].dtype)
    reduce.fold(op, tensors, out, divisor)
    return out.memory


def decoded(frame: Bytes, like: Tensor) -> Bytes:
    """Return the values of a frame as the CPU reads them."""
    out = Tensor(np.empty_like(like.memory), like.dtype)
    codec.decode(frame, out)
    return out.memory


def plain(tensor: Tensor, offset: int = 0) -> Input:
    return Input(tensor.memory, False, offset)


class Frames:
    """Frames of tensors: of codec ``tier`` by the emulated GPU, which always writes dense ones."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    def tier(self, tensor: Tensor, menu: int = -1) -> Input:
        frame = self.emulator.encode(tensor.memory, tensor.dtype, codec_name="tier", menu=menu)
        return Input(frame, True)

    def raw(self, tensor: Tensor) -> Input:
        return Input(self.emulator.encode(tensor.memory, tensor.dtype, codec_name="raw"), True)


@pytest.fixture
def frames(emulator: Emulator) -> Frames:
    """Makes frames."""
    return Frames(emulator)


@by_name
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
def test_every_pattern_and_operator(
    fused: ReduceEmulator, frames: Frames, pattern: str, dtype: DType
) -> None:
    """A tier frame, plain values and a raw frame, in this order, with NaN of every payload."""
    count = 2 * TILE + 77
    tensors = [tensor_of(pattern, dtype, count, seed=seed) for seed in range(3)]
    inputs = [frames.tier(tensors[0]), plain(tensors[1]), frames.raw(tensors[2])]
    for op, divisor in (("sum", 3), ("prod", 1), ("min", 8), ("max", 1)):
        status, values = fused.reduce(op, inputs, dtype, count, divisor=divisor)
        assert status == 0
        np.testing.assert_array_equal(values, folded(op, tensors, divisor), f"{op} {divisor}")


@by_name
def test_frames_of_every_menu_together(fused: ReduceEmulator, frames: Frames, dtype: DType) -> None:
    patterns = ("normal", "outliers", "wrapped", "special")
    tensors = [tensor_of(patterns[menu % 4], dtype, TILE + 5, seed=menu) for menu in range(8)]
    inputs = [frames.tier(tensor, menu) for menu, tensor in enumerate(tensors)]
    assert len({codec.info(frame.memory).menu for frame in inputs}) >= 4
    status, values = fused.reduce("sum", inputs, dtype, tensors[0].count)
    assert status == 0
    np.testing.assert_array_equal(values, folded("sum", tensors))


@by_name
def test_packed_frames_of_the_cpu(fused: ReduceEmulator, frames: Frames, dtype: DType) -> None:
    """Their tiles cannot be fetched ahead; those of what they are folded with can."""
    read = 0
    for pattern in ("zero_heavy", "zeros", "constant", "outliers"):
        count = 9 * TILE + 31
        tensors = [tensor_of(pattern, dtype, count, seed=seed) for seed in (1, 2, 3)]
        frame = np.empty(codec.bound(count, dtype), np.uint8)
        frame = frame[: codec.encode(tensors[0], frame, codec="tier")]
        read += codec.info(frame).packed
        inputs = [Input(frame, True), plain(tensors[1]), frames.tier(tensors[2], menu=2)]
        for some in ([0, 1], [1, 0], [0, 2], [0, 1, 2]):
            expected = folded("sum", [tensors[i] for i in some])
            parts = [inputs[i] for i in some]
            status, values = fused.reduce("sum", parts, dtype, count)
            assert status == 0
            np.testing.assert_array_equal(values, expected)
            status, _, made = fused.reduce_encode("sum", parts, dtype, count, keep=False)
            assert status == 0
            np.testing.assert_array_equal(decoded(made, tensors[0]), expected)
    assert read >= 2


@by_name
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_output_may_be_the_plain_values(
    fused: ReduceEmulator, frames: Frames, dtype: DType, place: int
) -> None:
    count = 3 * TILE + 9
    tensors = [tensor_of("normal", dtype, count, seed=seed) for seed in range(3)]
    inputs = [frames.tier(tensor) for tensor in tensors]
    inputs[place] = plain(tensors[place], offset=8)
    status, values = fused.reduce("sum", inputs, dtype, count, in_place=place, blocks=2)
    assert status == 0
    np.testing.assert_array_equal(values, folded("sum", tensors))


@by_name
@pytest.mark.parametrize("count", [0, 1, TILE - 1, TILE, TILE + 1, 8 * TILE, 17 * TILE + 3])
def test_counts_and_addresses(
    fused: ReduceEmulator, frames: Frames, dtype: DType, count: int
) -> None:
    tensors = [tensor_of("normal", dtype, count, seed=seed) for seed in range(2)]
    for offset, blocks in ((0, 1), (dtype.itemsize, 2), (8, 0)):
        inputs = [frames.tier(tensors[0]), plain(tensors[1], offset)]
        for order in (1, -1):
            status, values = fused.reduce(
                "sum", inputs[::order], dtype, count, offset=offset, blocks=blocks
            )
            assert status == 0
            np.testing.assert_array_equal(values, folded("sum", tensors[::order]))


@by_name
@pytest.mark.parametrize("op", reduce.OPS)
def test_one_frame_is_decoded_and_its_nan_made_quiet(
    fused: ReduceEmulator, frames: Frames, dtype: DType, op: str
) -> None:
    """As for the CPU, where a fold of one tensor rounds it; zeros keep their sign."""
    tensor = tensor_of("special", dtype, 2 * TILE, seed=1)
    status, values = fused.reduce(op, [frames.tier(tensor)], dtype, tensor.count)
    assert status == 0
    np.testing.assert_array_equal(values, folded(op, [tensor]))


@by_name
@pytest.mark.parametrize("op", reduce.OPS)
def test_many_inputs_in_several_calls_round_once(
    fused: ReduceEmulator, frames: Frames, dtype: DType, op: str
) -> None:
    count = TILE + 100
    tensors = [tensor_of("normal", dtype, count, seed=seed) for seed in range(18)]
    inputs = [frames.tier(tensor) for tensor in tensors[:-1]] + [plain(tensors[-1])]
    with pytest.raises(ValueError, match="at most 16 inputs"):
        fused.reduce(op, inputs, dtype, count)
    with pytest.raises(RuntimeError, match="1 to 16 inputs"):
        fused.reduce(op, [], dtype, count)
    _, before = fused.reduce(op, inputs[:7], dtype, count, accumulate=True)
    _, before = fused.reduce(op, inputs[7:12], dtype, count, accumulate=True, before=before)
    status, values = fused.reduce(op, inputs[12:], dtype, count, before=before, divisor=18)
    assert status == 0
    np.testing.assert_array_equal(values, folded(op, tensors, 18))


def test_every_pair_of_8_bit_values(fused: ReduceEmulator) -> None:
    words = np.arange(256, dtype=np.uint8)
    for dtype, op in itertools.product((DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2), reduce.OPS):
        pair = [Tensor(np.repeat(words, 256), dtype), Tensor(np.tile(words, 256), dtype)]
        status, values = fused.reduce(op, [plain(tensor) for tensor in pair], dtype, 65536)
        assert status == 0
        np.testing.assert_array_equal(values, folded(op, pair), f"{dtype.name} {op}")


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("op", reduce.OPS)
def test_every_16_bit_value(fused: ReduceEmulator, dtype: DType, op: str) -> None:
    generator = np.random.default_rng(5)
    words = [np.arange(65536, dtype=np.uint16), *(generator.permutation(65536) for _ in range(2))]
    tensors = [Tensor(word.astype(np.uint16).view(np.uint8), dtype) for word in words]
    status, values = fused.reduce(op, [plain(t) for t in tensors], dtype, 65536, divisor=3)
    assert status == 0
    np.testing.assert_array_equal(values, folded(op, tensors, 3))


@by_name
@pytest.mark.parametrize("keep", [True, False])
def test_a_fold_becomes_a_frame(
    fused: ReduceEmulator, frames: Frames, dtype: DType, keep: bool
) -> None:
    for pattern, count, blocks in (("normal", 19 * TILE + 31, 2), ("outliers", 8 * TILE, 0)):
        tensors = [tensor_of(pattern, dtype, count, seed=seed) for seed in range(3)]
        inputs = [frames.tier(tensors[0]), plain(tensors[1]), frames.tier(tensors[2])]
        expected = folded("sum", tensors)
        status, values, frame = fused.reduce_encode(
            "sum", inputs, dtype, count, keep=keep, blocks=blocks, base_shift=1
        )
        assert status == 0
        assert (values is not None) == keep
        if values is not None:
            np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(decoded(frame, tensors[0]), expected)
        assert codec.info(frame).codec == "tier"


@by_name
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
@pytest.mark.parametrize("keep", [True, False])
def test_a_frame_of_any_values(
    fused: ReduceEmulator, frames: Frames, pattern: str, dtype: DType, keep: bool
) -> None:
    """Foretold well or not, in place or not, tiles that become raw among them."""
    count = 2 * TILE + 3
    tensors = [tensor_of(pattern, dtype, count, seed=seed) for seed in (1, 2)]
    other = tensor_of("normal", dtype, count, seed=3)
    expected = folded("prod", tensors)
    for like in (None, frames.tier(other, menu=2).memory):
        status, values, frame = fused.reduce_encode(
            "prod",
            [plain(tensors[0]), frames.tier(tensors[1])],
            dtype,
            count,
            like=like,
            keep=keep,
            in_place=0 if keep else None,
            base_shift=-1,
        )
        assert status == 0
        np.testing.assert_array_equal(decoded(frame, other), expected)
        assert values is None or (values == expected).all()


@by_name
def test_the_frame_is_what_encode_makes_with_these_parameters(
    fused: ReduceEmulator, emulator: Emulator, frames: Frames, dtype: DType
) -> None:
    tensor = tensor_of("normal", dtype, 8 * TILE + 5, seed=4)
    frame = frames.tier(tensor).memory
    assert codec.info(frame).codec == "tier"
    _, _, ours = fused.reduce_encode(
        "max", [plain(tensor)], dtype, tensor.count, like=frame, keep=False
    )
    np.testing.assert_array_equal(ours, frame)


@pytest.mark.parametrize("keep", [True, False])
def test_what_does_not_shrink_or_was_not_foretold_becomes_raw(
    fused: ReduceEmulator, frames: Frames, keep: bool
) -> None:
    dtype = DType.BFLOAT16
    tensors = [tensor_of("random_bits", dtype, 9 * TILE + 1, seed=seed) for seed in (1, 2)]
    foretold = frames.tier(tensor_of("normal", dtype, 4 * TILE)).memory
    for like, op, count in itertools.product((None, foretold), ("min", "sum"), (9 * TILE + 1, 5)):
        parts = [tensor[:count] for tensor in tensors]
        status, values, frame = fused.reduce_encode(
            op, [plain(part) for part in parts], dtype, count, like=like, keep=keep
        )
        assert (status, codec.info(frame).codec) == (0, "raw")
        np.testing.assert_array_equal(frame[HEADER:], folded(op, parts))
        assert values is None or (values == folded(op, parts)).all()


@by_name
def test_damaged_frames_are_reported_or_folded_but_harmless(
    fused: ReduceEmulator, frames: Frames, dtype: DType
) -> None:
    count = 9 * TILE + 5
    tensors = [tensor_of("outliers", dtype, count, seed=seed) for seed in (5, 6)]
    frame, sound = frames.tier(tensors[0]).memory, frames.tier(tensors[1])
    generator = np.random.default_rng(6)
    directory = frame.size - codec.info(frame).tail_bytes - 64
    reported = 0
    for turn in range(30):
        damaged = frame.copy()
        low, high = ((0, HEADER), (directory, frame.size), (HEADER, frame.size))[turn % 3]
        damaged[generator.integers(low, high)] ^= 1 << generator.integers(8)
        inputs = [Input(damaged, True), sound][:: 1 if turn % 2 else -1]
        status, values = fused.reduce("sum", inputs, dtype, count)
        status_too, _, made = fused.reduce_encode("sum", inputs, dtype, count, keep=turn % 2 == 0)
        assert (status != 0) == (status_too != 0)
        reported += status != 0
        out = Tensor(np.empty_like(tensors[0].memory), dtype)
        try:
            codec.decode(damaged, out)
        except ValueError:
            assert status != 0
            assert not made[:HEADER].any()
            continue
        # A checksum is not checked by these kernels, nor is codec ans for them.
        assert status == 0 or damaged[6:8].tolist() != frame[6:8].tolist()
        if status == 0:
            both = [out, tensors[1]][:: 1 if turn % 2 else -1]
            np.testing.assert_array_equal(values, folded("sum", both))
            np.testing.assert_array_equal(decoded(made, out), folded("sum", both))
    assert reported >= 10


def test_frames_of_another_count_type_codec_or_size_are_reported(
    fused: ReduceEmulator, frames: Frames
) -> None:
    dtype, count = DType.BFLOAT16, 3 * TILE + 9
    tensor = tensor_of("normal", dtype, count, seed=7)
    good = frames.tier(tensor).memory
    bad = [good[:size] for size in (64, 65, 1000, good.size - 16, good.size - 1)]
    bad += [frames.tier(tensor[: count - 1]).memory]
    bad += [frames.tier(tensor_of("normal", DType.FLOAT16, count)).memory]
    raw = frames.raw(tensor).memory
    bad += [raw[:-1], np.concatenate([raw, raw[:1]])]
    for frame in bad:
        for inputs in ([Input(frame, True)], [Input(good, True), Input(frame, True)]):
            assert fused.reduce("sum", inputs, dtype, count)[0] != 0
            status, _, made = fused.reduce_encode("sum", inputs, dtype, count)
            assert status != 0
            assert not made[:HEADER].any()
    for size in (0, 63):
        with pytest.raises(RuntimeError, match="64 bytes"):
            fused.reduce("sum", [Input(good[:size], True)], dtype, count)
    with pytest.raises(RuntimeError, match="float type"):
        fused.reduce("sum", [plain(tensor)], DType.BYTES, count)
    with pytest.raises(RuntimeError, match="divisor"):
        fused.reduce("sum", [plain(tensor)], dtype, count, divisor=0)


def test_codecs_that_are_not_folded_are_reported(fused: ReduceEmulator) -> None:
    tensor = tensor_of("normal", DType.BFLOAT16, 66 * TILE, seed=2)
    frame = np.empty(codec.bound(tensor.count, tensor.dtype), np.uint8)
    frame = frame[: codec.encode(tensor, frame, codec="ans")]
    assert codec.info(frame).codec == "ans"
    assert fused.reduce("sum", [Input(frame, True)], tensor.dtype, tensor.count)[0] != 0


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("blocks", [0, 1, 7])
def test_the_frames_of_many_tensors_are_those_of_each(
    fused: ReduceEmulator, emulator: Emulator, dtype: DType, blocks: int
) -> None:
    counts = (9 * TILE + 5, 0, 1, 40 * TILE, TILE, TILE - 1, 8 * TILE + 1)
    patterns = ("normal", "zeros", "constant", "outliers", "wrapped", "special", "random_bits")
    float_type = dtype if dtype is not DType.BYTES else DType.FLOAT8_E5M2
    shards = [
        tensor_of(pattern, float_type, count, seed=count)
        for pattern, count in zip(patterns, counts, strict=True)
    ]
    automatic = "auto" if dtype.itemsize > 1 else "tier"  # not ans
    for codec_name, menu in ((automatic, -1), ("tier", 3), ("raw", -1)):
        made = fused.encode_shards(
            [shard.memory for shard in shards],
            dtype,
            codec_name=codec_name,
            menu=menu,
            blocks=blocks,
            offset=dtype.itemsize,
        )
        for shard, frame in zip(shards, made, strict=True):
            alone = emulator.encode(shard.memory, dtype, codec_name=codec_name, menu=menu)
            assert codec.info(frame) == codec.info(alone)
            out = Tensor(np.empty_like(shard.memory), dtype)
            codec.decode(frame, out)
            np.testing.assert_array_equal(out.memory, shard.memory)


def test_one_to_64_tensors_at_a_time(fused: ReduceEmulator) -> None:
    tensor = tensor_of("normal", DType.BFLOAT16, 64 * 10, seed=8)
    shards = [tensor[10 * i : 10 * i + 10].memory for i in range(64)]
    made = fused.encode_shards(shards, DType.BFLOAT16, blocks=3)
    assert all((frame[HEADER:] == shard).all() for frame, shard in zip(made, shards, strict=True))
    for n in (0, 65):
        with pytest.raises(RuntimeError, match="1 to 64"):
            fused.encode_shards([shards[0]] * n, DType.BFLOAT16)
