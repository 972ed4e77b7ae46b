"""The GPU's fused kernels on the emulated GPU, whose memory is that of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from emulator import DEFAULT_STREAM, GUARD, POISON, aligned

from uzipmpi.kernels import codec, reduce
from uzipmpi.typing import Bytes, DType


@dataclass(frozen=True)
class Input:
    """What one rank contributes: a frame, or values ``offset`` bytes behind a multiple of 16."""

    memory: Bytes
    is_frame: bool
    offset: int = 0


class ReduceEmulator:
    """Folds and encodes as the GPU does; checks that nothing but the outputs changes."""

    def __init__(self, gpu: ModuleType) -> None:
        self.gpu = gpu
        self.scratch = aligned(gpu.SCRATCH_BYTES * gpu.MAX_SHARDS)
        self.scratch[:] = 0

    def _placed(self, inputs: Sequence[Input]) -> tuple[list[Bytes], list[int], list[int]]:
        """Return copies of the inputs in guarded memory, their addresses, and their sizes."""
        memories = []
        for source in inputs:
            memory = aligned(source.memory.size, source.offset)
            memory[: source.memory.size] = source.memory
            memories.append(memory)
        plain = self.gpu.PLAIN_VALUES
        sizes = [source.memory.size if source.is_frame else plain for source in inputs]
        return memories, [memory.ctypes.data for memory in memories], sizes

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
        memories, places, sizes = self._placed(inputs)
        wide = 8 if dtype is DType.FLOAT64 else 4
        size = count * (wide if accumulate else dtype.itemsize)
        out = aligned(size, offset) if in_place is None else memories[in_place]
        status = np.zeros(1, np.uint32)
        function = self.gpu.decode_accumulate if accumulate else self.gpu.decode_reduce
        function(
            reduce.OPS.index(op),
            dtype,
            count,
            *(() if accumulate else (divisor,)),
            0 if before is None else before.ctypes.data,
            places,
            sizes,
            out.ctypes.data,
            status.ctypes.data,
            blocks,
            *DEFAULT_STREAM,
        )
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
        memories, places, sizes = self._placed(inputs)
        size, room = count * dtype.itemsize, codec.bound(count, dtype)
        out = (aligned(size) if in_place is None else memories[in_place]) if keep else None
        frame, status = aligned(room), np.zeros(1, np.uint32)
        header = None
        if like is not None:
            header = aligned(64)
            header[:64] = like[:64]
        self.gpu.decode_reduce_encode(
            reduce.OPS.index(op),
            dtype,
            count,
            divisor,
            0,
            places,
            sizes,
            0 if header is None else header.ctypes.data,
            base_shift,
            0 if out is None else out.ctypes.data,
            frame.ctypes.data,
            self.scratch.ctypes.data,
            status.ctypes.data,
            blocks,
            *DEFAULT_STREAM,
        )
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
        places = np.cumsum([0, *(shard.size for shard in shards)]) + memory.ctypes.data
        counts = [shard.size // dtype.itemsize for shard in shards]
        rooms = [codec.bound(count, dtype) for count in counts]
        frames = [aligned(room) for room in rooms]
        self.gpu.encode_shards(
            places[:-1].tolist(),
            counts,
            [frame.ctypes.data for frame in frames],
            dtype,
            self.scratch.ctypes.data,
            codec_name,
            menu,
            blocks,
            *DEFAULT_STREAM,
        )
        assert not self.scratch.any()
        for frame, room in zip(frames, rooms, strict=True):
            assert (frame[room:] == POISON).all()
        return [frame[: codec.info(frame[:64]).frame_bytes].copy() for frame in frames]
