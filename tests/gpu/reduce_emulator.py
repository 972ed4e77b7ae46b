"""The GPU's fused kernels compiled for a processor that plays the lanes of the GPU in turn."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from emulated_objects import KERNELS, compile_sources
from emulator import GUARD, HERE, POISON, aligned

from uzipmpi.kernels import codec, reduce
from uzipmpi.typing import Bytes, DType

PLAIN = 2**64 - 1
SCRATCH_BYTES = 16


@dataclass(frozen=True)
class Input:
    """What one rank contributes: a frame, or values ``offset`` bytes behind a multiple of 16."""

    memory: Bytes
    is_frame: bool
    offset: int = 0


class FoldArguments(ctypes.Structure):
    """EmulatedFold of emulated_reduce.cpp."""

    _fields_ = [
        ("op", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("count", ctypes.c_uint64),
        ("divisor", ctypes.c_int),
        ("before", ctypes.c_void_p),
        ("n_inputs", ctypes.c_int),
        ("memories", ctypes.POINTER(ctypes.c_void_p)),
        ("frame_bytes", ctypes.POINTER(ctypes.c_uint64)),
    ]


def build(folder: Path, *options: str) -> Path:
    """Compile the GPU sources as C++; return the library."""
    names = ("reduce_face_gpu.cu", "reduce_gpu.cu", "reduce_encode_gpu.cu", "shards_gpu.cu")
    sources = [*(KERNELS / name for name in names), HERE / "emulated_reduce.cpp"]
    objects = compile_sources(sources, *options)
    library = folder / "emulated_reduce.so"
    subprocess.run(["g++", "-shared", *options, *objects, "-o", library], check=True)
    return library


class ReduceEmulator:
    """Folds and encodes as the GPU does; checks that nothing but the outputs changes."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        pointer, number = ctypes.c_void_p, ctypes.c_int
        fold = ctypes.POINTER(FoldArguments)
        self._declare("emulated_reduce", fold, pointer, pointer, number)
        self._declare("emulated_accumulate", fold, pointer, pointer, number)
        self._declare("emulated_reduce_encode", fold, pointer, number, *[pointer] * 4, number)
        self._declare(
            "emulated_encode_shards", *[pointer] * 3, number, number, pointer, *[number] * 4
        )
        self.scratch = aligned(SCRATCH_BYTES * 64)
        self.scratch[:] = 0

    def _declare(self, name: str, *types: type) -> None:
        function = getattr(self.library, name)
        function.restype, function.argtypes = ctypes.c_char_p, types

    def _arguments(
        self,
        op: str,
        inputs: Sequence[Input],
        dtype: DType,
        count: int,
        divisor: int,
        before: Bytes | None,
    ) -> tuple[FoldArguments, list[Bytes]]:
        memories = []
        for source in inputs:
            memory = aligned(source.memory.size, source.offset)
            memory[: source.memory.size] = source.memory
            memories.append(memory)
        n = len(inputs)
        sizes = [source.memory.size if source.is_frame else PLAIN for source in inputs]
        return FoldArguments(
            reduce.OPS.index(op),
            dtype,
            count,
            divisor,
            None if before is None else before.ctypes.data,
            n,
            (ctypes.c_void_p * n)(*(memory.ctypes.data for memory in memories)),
            (ctypes.c_uint64 * n)(*sizes),
        ), memories

    def reduce(
        self,
        op: str,
        inputs: Sequence[Input],
        dtype: DType,
        count: int,
        *,
        divisor: int = 1,
        before: Bytes | None = None,
        accumulate: bool = False,
        in_place: int | None = None,
        offset: int = 0,
        blocks: int = 0,
    ) -> tuple[int, Bytes]:
        """Return the status and the result; it is written over the plain input ``in_place``."""
        arguments, memories = self._arguments(op, inputs, dtype, count, divisor, before)
        wide = 8 if dtype is DType.FLOAT64 else 4
        size = count * (wide if accumulate else dtype.itemsize)
        out = aligned(size, offset) if in_place is None else memories[in_place]
        status = np.zeros(1, np.uint32)
        name = "emulated_accumulate" if accumulate else "emulated_reduce"
        failure = getattr(self.library, name)(
            arguments, out.ctypes.data, status.ctypes.data, blocks
        )
        if failure is not None:
            raise ValueError(failure.decode())
        assert (out[size:] == POISON).all()
        for i, (source, memory) in enumerate(zip(inputs, memories, strict=True)):
            assert i == in_place or (memory[: source.memory.size] == source.memory).all()
        return int(status[0]), out[:size]

    def reduce_encode(
        self,
        op: str,
        inputs: Sequence[Input],
        dtype: DType,
        count: int,
        *,
        divisor: int = 1,
        like: Bytes | None = None,
        base_shift: int = 0,
        keep: bool = True,
        in_place: int | None = None,
        blocks: int = 0,
    ) -> tuple[int, Bytes | None, Bytes]:
        """Return the status, the result (None unless kept), and its frame's memory."""
        arguments, memories = self._arguments(op, inputs, dtype, count, divisor, None)
        size, room = count * dtype.itemsize, codec.bound(count, dtype)
        out = (aligned(size) if in_place is None else memories[in_place]) if keep else None
        frame, status = aligned(room), np.zeros(1, np.uint32)
        header = None
        if like is not None:
            header = aligned(64)
            header[:64] = like[:64]
        failure = self.library.emulated_reduce_encode(
            arguments,
            None if header is None else header.ctypes.data,
            base_shift,
            None if out is None else out.ctypes.data,
            frame.ctypes.data,
            self.scratch.ctypes.data,
            status.ctypes.data,
            blocks,
        )
        if failure is not None:
            raise ValueError(failure.decode())
        assert (frame[room:] == POISON).all()
        assert out is None or (out[size:] == POISON).all()
        assert not self.scratch.any()
        if status[0]:
            return int(status[0]), None, frame[:room]
        frame_bytes = codec.info(frame[:64]).frame_bytes
        return 0, None if out is None else out[:size], frame[:frame_bytes]

    def encode_shards(
        self,
        shards: Sequence[Bytes],
        dtype: DType,
        *,
        codec_name: str = "auto",
        menu: int = -1,
        blocks: int = 0,
        offset: int = 0,
    ) -> list[Bytes]:
        """Return the frames of tensors that lie one behind the other from ``offset`` on."""
        memory = aligned(sum(shard.size for shard in shards), offset)
        memory[:-GUARD] = np.concatenate([*shards, np.zeros(0, np.uint8)])
        n = len(shards)
        places = np.cumsum([0, *(shard.size for shard in shards)]) + memory.ctypes.data
        counts = [shard.size // dtype.itemsize for shard in shards]
        rooms = [codec.bound(count, dtype) for count in counts]
        frames = [aligned(room) for room in rooms]
        failure = self.library.emulated_encode_shards(
            (ctypes.c_void_p * n)(*(int(place) for place in places[:-1])),
            (ctypes.c_uint64 * n)(*counts),
            (ctypes.c_void_p * n)(*(frame.ctypes.data for frame in frames)),
            n,
            dtype,
            self.scratch.ctypes.data,
            menu,
            codec_name == "raw",
            codec_name == "tier",
            blocks,
        )
        if failure is not None:
            raise ValueError(failure.decode())
        assert not self.scratch.any()
        for frame, room in zip(frames, rooms, strict=True):
            assert (frame[room:] == POISON).all()
        return [frame[: codec.info(frame[:64]).frame_bytes].copy() for frame in frames]
