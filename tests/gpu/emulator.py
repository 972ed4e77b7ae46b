"""The GPU codec on the emulated GPU, whose memory is that of arrays."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np

from uzipmpi.kernels import codec
from uzipmpi.typing import Bytes, DType

HERE = Path(__file__).parent
GUARD = 64  # bytes behind a buffer that must stay as they are
POISON = 0xA5
DEFAULT_STREAM = (-1, 0)  # of the current device, where all is done at once


def aligned(size: int, offset: int = 0) -> Bytes:
    """Return poisoned memory, ``offset`` bytes behind a multiple of 16, and guarded."""
    memory = np.full(size + offset + 16 + GUARD, POISON, np.uint8)
    start = -memory.ctypes.data % 16 + offset
    return memory[start : start + size + GUARD]


class Emulator:
    """Encodes and decodes as the GPU does; checks that nothing but the output changes."""

    def __init__(self, gpu: ModuleType) -> None:
        self.gpu = gpu
        self.scratch_bytes = gpu.SCRATCH_BYTES
        self.scratch = aligned(self.scratch_bytes)
        self.scratch[: self.scratch_bytes] = 0

    def encode(
        self,
        values: Bytes,
        dtype: DType,
        *,
        codec_name: str = "auto",
        menu: int = -1,
        blocks: int = 0,
        offset: int = 0,
    ) -> Bytes:
        """Return a frame; the values lie ``offset`` bytes behind a multiple of 16."""
        source = aligned(values.size, offset)
        source[: values.size] = values
        count = values.size // dtype.itemsize
        room = codec.bound(count, dtype)
        frame = aligned(room)
        self.gpu.encode(
            source.ctypes.data,
            count,
            dtype,
            frame.ctypes.data,
            self.scratch.ctypes.data,
            codec_name,
            menu,
            blocks,
            *DEFAULT_STREAM,
        )
        assert (frame[room:] == POISON).all()
        assert not self.scratch[: self.scratch_bytes].any()
        return frame[: codec.info(frame[:64]).frame_bytes].copy()

    def decode(
        self, frame: Bytes, dtype: DType, count: int, *, blocks: int = 0, offset: int = 0
    ) -> tuple[int, Bytes]:
        """Return the status word and the values."""
        # Exactly as long as the frame: an address sanitizer sees what is read behind it.
        source = aligned(frame.size)
        source[: frame.size] = frame
        size = count * dtype.itemsize
        values = aligned(size, offset)
        status = np.zeros(1, np.uint32)
        self.gpu.decode(
            source.ctypes.data,
            frame.size,
            dtype,
            count,
            values.ctypes.data,
            status.ctypes.data,
            blocks,
            *DEFAULT_STREAM,
        )
        assert (values[size:] == POISON).all()
        return int(status[0]), values[:size]
