"""The GPU codec compiled for a processor that plays the lanes of the GPU in turn."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
from emulated_objects import KERNELS, compile_sources

from uzipmpi.kernels import codec
from uzipmpi.typing import Bytes, DType

HERE = Path(__file__).parent
GUARD = 64  # bytes behind a buffer that must stay as they are
POISON = 0xA5


def build(folder: Path) -> Path:
    """Compile the GPU sources as C++; return the library."""
    names = ("codec_face_gpu.cu", "encode_gpu.cu", "ans_encode_gpu.cu", "decode_gpu.cu")
    sources = [*(KERNELS / name for name in names), HERE / "emulated.cpp"]
    objects = compile_sources(sources)
    library = folder / "emulated.so"
    subprocess.run(["g++", "-shared", *objects, "-o", library], check=True)
    return library


def aligned(size: int, offset: int = 0) -> Bytes:
    """Return poisoned memory, ``offset`` bytes behind a multiple of 16, and guarded."""
    memory = np.full(size + offset + 16 + GUARD, POISON, np.uint8)
    start = -memory.ctypes.data % 16 + offset
    return memory[start : start + size + GUARD]


class Emulator:
    """Encodes and decodes as the GPU does; checks that nothing but the output changes."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        pointer, count, code = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
        self.library.emulated_encode.restype = ctypes.c_char_p
        self.library.emulated_encode.argtypes = [
            pointer,
            count,
            code,
            pointer,
            pointer,
            *[code] * 5,
        ]
        self.library.emulated_decode.restype = ctypes.c_char_p
        self.library.emulated_decode.argtypes = [
            pointer,
            count,
            code,
            count,
            pointer,
            pointer,
            code,
        ]
        self.scratch = aligned(16)
        self.scratch[:16] = 0

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
        failure = self.library.emulated_encode(
            source.ctypes.data,
            count,
            dtype,
            frame.ctypes.data,
            self.scratch.ctypes.data,
            menu,
            codec_name == "raw",
            codec_name == "ans" or (codec_name == "auto" and dtype.itemsize == 1),
            codec_name in ("tier", "ans"),
            blocks,
        )
        assert failure is None, failure
        assert (frame[room:] == POISON).all()
        assert not self.scratch[:16].any()
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
        failure = self.library.emulated_decode(
            source.ctypes.data,
            frame.size,
            dtype,
            count,
            values.ctypes.data,
            status.ctypes.data,
            blocks,
        )
        assert failure is None, failure
        assert (values[size:] == POISON).all()
        return int(status[0]), values[:size]
