"""A frame in memory of the host or of a GPU."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from uzipmpi.kernels.codec import HEADER_BYTES
from uzipmpi.typing import Bytes, Tensor

__all__ = ["Frame", "Operand"]


class Frame(NamedTuple):
    """A frame at the start of a scratch buffer, owned by whoever holds this.

    Attributes
    ----------
    buffer, nbytes
        The buffer, and the size of the frame.
    header
        The first bytes of the frame, in host memory.
    """

    buffer: Bytes
    nbytes: int
    header: Bytes

    @classmethod
    def of(cls, memory: Bytes) -> Frame:
        """Return a frame that is all of some host memory."""
        return cls(memory, memory.size, memory[:HEADER_BYTES])

    @property
    def memory(self) -> Bytes:
        """The frame itself."""
        return self.buffer[: self.nbytes]


Operand: TypeAlias = "Tensor | Frame"
"""What is folded: values, or a frame of them."""
