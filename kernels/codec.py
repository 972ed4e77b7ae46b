"""Frames from tensors and back: the face of the compiled codec. FORMAT.md says what a frame is."""

from __future__ import annotations

from dataclasses import dataclass

from uzipmpi.kernels import _codec
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = [
    "CODECS",
    "HEADER_BYTES",
    "SIMD_PATHS",
    "Encoder",
    "FrameInfo",
    "bound",
    "decode",
    "encode",
    "force_simd",
    "info",
    "predict",
    "simd_path",
]

HEADER_BYTES = 64
CODECS = ("raw", "tier", "ans")
"""Names of the codecs; the index is FORMAT.md's code."""
SIMD_PATHS: tuple[str, ...] = tuple(_codec.simd_paths())
"""Instruction sets that this processor can run, portable first. All give the same bytes."""

_CHECKSUM = 1
_PACKED = 2


def bound(count: int, dtype: DType) -> int:
    """Return the most bytes that a frame of ``count`` values can have."""
    return HEADER_BYTES + count * dtype.itemsize


def encode(
    tensor: Tensor, out: Bytes, *, codec: str = "auto", verify: bool = False, threads: int = 1
) -> int:
    """Write the frame of a tensor to the start of ``out``.

    Parameters
    ----------
    tensor
        The values; not changed, and not overlapping ``out``.
    out
        At least ``bound(tensor.count, tensor.dtype)`` bytes.
    codec
        ``auto``, ``tier``, ``ans`` or ``raw``. Whatever it is, the frame is ``raw`` where nothing
        else is smaller.
    verify
        Include a checksum, which ``decode(..., verify=True)`` asks for.
    threads
        Most threads to use. The bytes do not depend on it.

    Returns
    -------
    int
        Bytes of the frame.

    Raises
    ------
    ValueError
        If ``out`` is too small or ``codec`` unknown.
    """
    return _codec.encode(tensor.memory, tensor.dtype, out, codec, verify, threads)


def decode(frame: Bytes, out: Tensor, *, verify: bool = False, threads: int = 1) -> None:
    """Write the values of a frame to a tensor of the same data type and count.

    Parameters
    ----------
    frame
        Exactly the bytes of a frame, from any source: nothing in them is trusted.
    out
        The destination; unspecified after a ``FormatError``.
    verify
        Require a checksum and check it.
    threads
        Most threads to use.

    Raises
    ------
    FormatError
        If the frame is malformed, or is one of another data type or count.
    """
    _codec.decode(frame, out.dtype, out.memory, verify, threads)


def predict(tensor: Tensor) -> float:
    """Return the ratio of frame to tensor, at most 1, expected from a sample of the values."""
    return _codec.predict(tensor.memory, tensor.dtype)


@dataclass(frozen=True)
class FrameInfo:
    """What the header of a frame says."""

    dtype: DType
    codec: str
    count: int
    """Number of values."""
    frame_bytes: int
    """Size of the frame, header included."""
    tail_bytes: int
    """Size of the part that depends on the values."""
    menu: int
    base: int
    zero_planes: int
    packed: bool
    checksum: bool

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return self.count * self.dtype.itemsize

    @property
    def ratio(self) -> float:
        """Size of the frame over the size of its tensor; infinite for an empty one."""
        return self.frame_bytes / self.nbytes if self.nbytes else float("inf")


def info(frame: Bytes) -> FrameInfo:
    """Describe a frame of which at least the header is given.

    Raises
    ------
    FormatError
        If the header is malformed.
    """
    dtype, codec, flags, count, frame_bytes, menu, zero_planes, base, tail = _codec.header(frame)
    return FrameInfo(
        dtype=DType(dtype),
        codec=CODECS[codec],
        count=count,
        frame_bytes=frame_bytes,
        tail_bytes=tail,
        menu=menu,
        base=base,
        zero_planes=zero_planes,
        packed=bool(flags & _PACKED),
        checksum=bool(flags & _CHECKSUM),
    )


class Encoder:
    """Writes the frame that :func:`encode` would write, in steps.

    The frame's fixed part (header, heads, remainder) has its place before anything is coded. It can
    be sent while the rest is being coded: bytes ``HEADER_BYTES .. advance(n)`` are final, and the
    header and all after ``fixed_stop`` are final after :meth:`finish`.

    Parameters
    ----------
    tensor, out, codec, verify
        As for :func:`encode`; both must stay unchanged while the encoder is in use.
    """

    def __init__(
        self, tensor: Tensor, out: Bytes, *, codec: str = "auto", verify: bool = False
    ) -> None:
        self._steps = _codec.StepEncoder(tensor.memory, tensor.dtype, out, codec, verify)
        self.fixed_stop = self._steps.fixed_stop
        """Bytes of the fixed part."""

    @property
    def fell_back(self) -> bool:
        """Whether the frame grew too large and became ``raw``: what was final before is void."""
        return self._steps.fell_back

    def advance(self, n_groups: int) -> int:
        """Code up to ``n_groups`` more groups of 8192 values.

        Returns
        -------
        int
            Up to which byte the fixed part is final.
        """
        return self._steps.advance(n_groups)

    def finish(self) -> int:
        """Code what remains; return the bytes of the frame. Call it once."""
        return self._steps.finish()


def simd_path() -> str:
    """Return the name of the instruction set in use."""
    return _codec.simd_path()


def force_simd(name: str) -> None:
    """Use one of ``SIMD_PATHS`` from now on, in the whole process.

    Raises
    ------
    ValueError
        If the name is unknown or this processor cannot run it.
    """
    _codec.force_simd(name)
