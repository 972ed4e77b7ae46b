"""Damaged frames: rejected or decoded as the reference decodes them, never a byte out of bounds.

Frames and tensors lie right before a page that may not be touched, so a stray access ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from samples import TILE, guarded, guarded_copy, mixed, tensor_of

from uzipmpi.errors import FormatError
from uzipmpi.kernels import codec, reference
from uzipmpi.kernels.reference_header import ANS, RAW, TIER
from uzipmpi.typing import Bytes, DType, Tensor

HEADER_BYTES = 64
MAX_FRAME = 1 << 16
MAX_DECODED = 1 << 24
# Windows end at the exponent of 1.0, near the commonest of N(0, 0.5).
ORDER = tuple(range(16))[::-1]
FRAME_BYTES, BODY_BYTES = slice(16, 24), slice(48, 56)


def tier_frame(
    dtype: DType,
    patterns: list[str],
    count: int,
    kinds: list[int] | None = None,
    **parameters: int,
) -> Bytes:
    tensor = mixed(patterns, dtype, count, seed=9)
    middle = (1 << reference.Header(dtype, TIER).exponent_bits - 1) - 1
    header = reference.Header(
        dtype, TIER, base=max(0, middle - 15), order=ORDER, **{"menu": 2, **parameters}
    )
    return reference.encode(tensor, header, kinds=kinds)


def ans_frame(
    dtype: DType,
    patterns: list[str],
    count: int,
    kinds: list[int] | None = None,
    zero_planes: int = 0,
) -> Bytes:
    """A table with a hump in the place of the commonest codes, and 1 for all others."""
    tensor = mixed(patterns, dtype, count, seed=9)
    table = np.ones(256, np.uint16)
    table[range(0x88, 0x100, 17)] += 480
    byte_mode = dtype.itemsize == 1
    middle = (1 << reference.Header(dtype, ANS).exponent_bits - 1) - 1
    base = 0 if byte_mode else max(0, middle - 15)
    header = reference.Header(dtype, ANS, menu=2, base=base, zero_planes=zero_planes)
    return reference.encode(tensor, header, kinds=kinds, table=table)


KINDS = ["zeros", "constant", "zero_heavy", "outliers", "random_bits"]
BF16, FP16, FP32, FP64, E4M3, E5M2 = list(DType)[1:]
MAKERS: dict[str, Callable[[], Bytes]] = {
    "tier-bf16": lambda: tier_frame(BF16, ["outliers", "normal"], 2 * TILE + 3),
    "tier-bf16-three-bits": lambda: tier_frame(BF16, ["special"], TILE, [0], menu=7),
    "tier-fp16-raw-tile": lambda: tier_frame(FP16, ["normal", "random_bits"], 2 * TILE),
    "tier-fp32-zero-planes": lambda: tier_frame(
        FP32, ["short_mantissa"], 2 * TILE + 1, zero_planes=3
    ),
    "tier-fp64-raw-symbols": lambda: tier_frame(
        FP64, ["special_exponents"], TILE, [0], menu=0, zero_planes=63
    ),
    "tier-e4m3": lambda: tier_frame(E4M3, ["normal"], TILE, [0], menu=6),
    "tier-bf16-packed": lambda: tier_frame(BF16, KINDS, 5 * TILE + 7, packed=True),
    "tier-fp64-packed": lambda: tier_frame(
        FP64, ["special_exponents", *KINDS[:3]], 4 * TILE, packed=True, zero_planes=15
    ),
    "tier-e5m2-packed": lambda: tier_frame(E5M2, KINDS, 9 * TILE, packed=True),
    "tier-remainder-only": lambda: tier_frame(FP32, ["normal"], 100),
    "ans-bf16": lambda: ans_frame(BF16, ["outliers"], 2 * TILE + 5),
    "ans-fp64": lambda: ans_frame(FP64, ["special_exponents"], TILE, zero_planes=63),
    "ans-fp16-raw-block": lambda: ans_frame(FP16, ["normal"], TILE, [1]),
    "ans-e4m3-blocks": lambda: ans_frame(E4M3, ["normal", "zeros"], 5 * TILE),
    "raw-fp32": lambda: reference.encode(
        tensor_of("normal", FP32, 60), reference.Header(FP32, RAW)
    ),
}


@cache
def sample(name: str) -> Bytes:
    return MAKERS[name]()


class Target:
    """Decodes any bytes, from guarded memory into guarded memory."""

    def __init__(self) -> None:
        self.input = guarded(MAX_FRAME)
        self.output = guarded(MAX_DECODED)

    def decode(self, frame: Bytes, out: Tensor, *, verify: bool = False) -> Bytes | None:
        """Return the decoded bytes, or None where the frame is rejected."""
        given = self.input[MAX_FRAME - frame.size :]
        given[:] = frame
        try:
            codec.decode(given, out, verify=verify)
        except FormatError:
            return None
        return out.memory


def by_reference(frame: Bytes) -> Tensor | None:
    try:
        return reference.decode(frame)
    except FormatError:
        return None


def destination(frame: Bytes, otherwise: Bytes, target: Target) -> Tensor:
    """Return a tensor as the frame's header wants it; if that is nonsense, as another's does."""
    try:
        header = reference.parse(frame)
    except FormatError:
        header = reference.parse(otherwise)
    n_bytes = header.count * header.itemsize
    assert n_bytes <= MAX_DECODED, "a small frame that says it holds much more"
    return Tensor(target.output[MAX_DECODED - n_bytes :], header.dtype)


def agree(frame: Bytes, original: Bytes, target: Target) -> bool:
    """Tell whether reference and all SIMD paths reject a frame, or decode it to the same bytes."""
    expected = by_reference(frame)
    out = destination(frame, original, target)
    for path in codec.SIMD_PATHS:
        codec.force_simd(path)
        found = target.decode(frame, out)
        if expected is None or found is None:
            if expected is not found:
                return False
        elif not np.array_equal(expected.memory, found):
            return False
    return True


def flips(frame: Bytes, bits: Iterator[int] | range) -> Iterator[tuple[int, Bytes]]:
    """Yield each bit and the frame with it flipped."""
    for bit in bits:
        damaged = frame.copy()
        damaged[bit // 8] ^= 1 << bit % 8
        yield bit, damaged


def with_checksum(frame: Bytes) -> Bytes:
    frame = frame.copy()
    frame[7] |= 1
    frame[24:32] = np.frombuffer(np.uint64(reference.checksum(frame)).tobytes(), np.uint8)
    return frame


@pytest.fixture(autouse=True)
def restore_path() -> Iterator[None]:
    before = codec.simd_path()
    yield
    codec.force_simd(before)


@pytest.mark.parametrize("name", MAKERS)
def test_samples_are_sound(name: str) -> None:
    target = Target()
    frame = sample(name)
    assert by_reference(frame) is not None
    assert agree(frame, frame, target)
    checked = with_checksum(frame)
    assert target.decode(checked, destination(checked, frame, target), verify=True) is not None


def test_samples_cover_the_kinds() -> None:
    kinds = {name: set(reference.kinds_of(sample(name))) for name in MAKERS}
    assert kinds["tier-bf16-packed"] >= {1, 2, 3}
    assert kinds["tier-fp16-raw-tile"] == {0, 1}
    assert kinds["ans-fp16-raw-block"] == {1}


@pytest.mark.parametrize("name", MAKERS)
def test_every_truncation_is_rejected(name: str) -> None:
    target = Target()
    frame = sample(name)
    out = destination(frame, frame, target)
    for size in range(frame.size):
        assert target.decode(frame[:size], out) is None, f"{size} of {frame.size} bytes"
    assert target.decode(np.append(frame, np.uint8(0)), out) is None


@pytest.mark.parametrize("name", MAKERS)
def test_every_flip_is_caught_by_the_checksum(name: str) -> None:
    target = Target()
    frame = with_checksum(sample(name))
    out = destination(frame, frame, target)
    for bit, damaged in flips(frame, range(8 * frame.size)):
        assert target.decode(damaged, out, verify=True) is None, f"bit {bit % 8} of {bit // 8}"


@pytest.mark.parametrize("name", MAKERS)
def test_every_flip_without_checksum_is_harmless(simd: str, name: str) -> None:
    target = Target()
    frame = sample(name)
    out = destination(frame, frame, target)
    for _, damaged in flips(frame, range(8 * HEADER_BYTES)):
        target.decode(damaged, destination(damaged, frame, target))
    for _, damaged in flips(frame, range(8 * HEADER_BYTES, 8 * frame.size)):
        target.decode(damaged, out)


@pytest.mark.parametrize("name", MAKERS)
def test_flips_mean_the_same_to_the_reference(name: str) -> None:
    """All of the header; the rest in steps that reach every section and every bit of a byte."""
    target = Target()
    frame = sample(name)
    rest = range(8 * HEADER_BYTES, 8 * frame.size, max(1, 8 * frame.size // 700) | 1)
    for bit, damaged in flips(frame, iter([*range(8 * HEADER_BYTES), *rest])):
        assert agree(damaged, frame, target), f"bit {bit % 8} of byte {bit // 8}"


def directory_bits(frame: Bytes) -> range:
    header = reference.parse(frame)
    begin, end = (0, 0) if header.codec == RAW else (header.directory_at, header.tails_at)
    return range(8 * begin, 8 * end)


@pytest.mark.parametrize("name", MAKERS)
def test_flips_in_the_directory_mean_the_same(name: str) -> None:
    target = Target()
    frame = sample(name)
    for bit, damaged in flips(frame, directory_bits(frame)):
        assert agree(damaged, frame, target), f"bit {bit % 8} of byte {bit // 8}"


@pytest.mark.parametrize(
    "name", [n for n in MAKERS if n not in ("raw-fp32", "tier-remainder-only")]
)
def test_short_tail_sections(name: str) -> None:
    """Truncated, with a header that says so: every length in the tail section is then a lie."""
    target = Target()
    frame = sample(name)
    body_bytes = reference.parse(frame).body_bytes
    generator = np.random.default_rng(1)
    cuts = {1, 2, 15, 16, 17, body_bytes, *generator.integers(1, body_bytes + 1, 40).tolist()}
    for cut in sorted(cut for cut in cuts if 0 < cut <= body_bytes):
        short = frame[: frame.size - cut].copy()
        short[FRAME_BYTES] = np.frombuffer(np.uint64(short.size).tobytes(), np.uint8)
        short[BODY_BYTES] = np.frombuffer(np.uint64(body_bytes - cut).tobytes(), np.uint8)
        assert agree(short, frame, target), f"{cut} bytes cut"


@pytest.mark.parametrize("name", MAKERS)
def test_garbage_behind_a_sound_header(name: str) -> None:
    target = Target()
    frame = sample(name)
    header = reference.parse(frame)
    starts = [HEADER_BYTES]
    if header.codec != RAW:
        starts += [header.directory_at, header.tails_at]
    for seed in range(45):
        generator = np.random.default_rng(seed)
        garbage = frame.copy()
        start = starts[seed % len(starts)]
        garbage[start:] = generator.integers(0, 256, frame.size - start)
        garbage[start:] &= np.uint8(generator.choice([0xFF, 0x0F, 0x01]))
        assert agree(garbage, frame, target), f"seed {seed}"


@pytest.mark.parametrize("name", MAKERS)
def test_mutations_mean_the_same_to_the_reference(name: str) -> None:
    """Bytes overwritten, copied about and set to extremes: the corpus a fuzzer would begin with."""
    target = Target()
    frame = sample(name)
    bits = directory_bits(frame)
    for seed in range(120):
        generator = np.random.default_rng(seed)
        mutated = frame.copy()
        for _ in range(generator.integers(1, 4)):
            mutate(mutated, bits, generator)
        assert agree(mutated, frame, target), f"seed {seed}"


def mutate(frame: Bytes, directory: range, generator: np.random.Generator) -> None:
    """Change a few bytes, half of the time in the directory."""
    low, high = 32, frame.size
    if directory and generator.random() < 0.5:
        low, high = directory.start // 8, directory.stop // 8
    size = min(int(generator.integers(1, 9)), high - low)
    at = int(generator.integers(low, high - size + 1))
    source = int(generator.integers(0, frame.size - size + 1))
    choice = generator.integers(4)
    if choice == 0:
        frame[at : at + size] = generator.integers(0, 256, size)
    elif choice == 1:
        frame[at : at + size] = generator.choice([0, 0xFF, 0x7F, 0x80])
    elif choice == 2:
        frame[at : at + size] = frame[source : source + size].copy()
    else:
        frame[at] = (int(frame[at]) + generator.choice([1, 255])) % 256


@pytest.mark.parametrize("frame", [b"", b"UZIP", bytes(64), b"UZIP\x01" + bytes(59), b"\xff" * 200])
def test_not_a_frame(frame: bytes) -> None:
    memory = guarded_copy(np.frombuffer(frame, np.uint8))
    with pytest.raises(FormatError):
        codec.decode(memory, Tensor(guarded(0), BF16))


def test_a_huge_count_takes_no_memory() -> None:
    """Counts for which sizes pass 2^32 or 2^64, in a frame of a few bytes."""
    frame = sample("tier-bf16-packed").copy()
    out = Tensor(guarded(2 * TILE), BF16)
    for count in (2**31, 2**32 + 1, 2**40, 2**54, 2**61, 2**62, 2**63, 2**64 - 1):
        frame[8:16] = np.frombuffer(np.uint64(count).tobytes(), np.uint8)
        with pytest.raises(FormatError):
            codec.decode(frame, out)
