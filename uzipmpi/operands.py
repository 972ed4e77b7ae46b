"""Buffer arguments of collectives as tensors: one, or one for each rank.

A buffer with a derived datatype is packed by the rank that has it, and travels as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uzipmpi import buffers, derived
from uzipmpi.typing import Tensor

__all__ = ["Operand", "each", "whole"]


class Operand:
    """A buffer argument as tensors.

    Parameters
    ----------
    tensors
        The memory.
    specs
        Where the tensors were packed from, if a datatype is derived.
    """

    def __init__(self, tensors: Sequence[Tensor], specs: Sequence[Any] = ()) -> None:
        self.tensors = tensors
        self._specs = specs
        self._used = False

    @property
    def nbytes(self) -> int:
        """Bytes in all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def pack(self) -> None:
        """Bring packed values up to date with the buffer, if they were used before."""
        if not self._used:
            self._used = True
            return
        for tensor, spec in zip(self.tensors, self._specs, strict=False):
            tensor.memory[:] = derived.pack(spec).memory

    def unpack(self) -> None:
        """Put received values in their place."""
        for tensor, spec in zip(self.tensors, self._specs, strict=False):
            derived.unpack(tensor, spec)


def whole(spec: Any, *, writable: bool = False) -> Operand | None:
    """Return a block specification as one tensor; None if MPI should judge it."""
    tensor = buffers.block(spec, writable=writable)
    if tensor is not None:
        return Operand([tensor])
    if buffers.is_derived(spec):
        return Operand([derived.pack(spec)], [spec])
    return None


def each(spec: Any, n: int, *, vector: bool, writable: bool = False) -> Operand | None:
    """Return a specification as one tensor for each rank; None if MPI should judge it."""
    if vector:
        tensors = buffers.blocks(spec, n, writable=writable)
    else:
        all_ = buffers.block(spec, writable=writable, n_blocks=n)
        tensors = None if all_ is None else split(all_, n)
    if tensors is not None:
        return Operand(tensors)
    specs = buffers.pieces(spec, n, vector=vector) if buffers.is_derived(spec) else None
    if specs:
        return Operand([derived.pack(piece) for piece in specs], specs)
    return None


def split(tensor: Tensor, n: int) -> list[Tensor]:
    """Cut a tensor into ``n`` equal parts; of bytes, whatever the size of its entries."""
    size = tensor.nbytes // n
    return [Tensor(tensor.memory[i * size : (i + 1) * size], tensor.dtype) for i in range(n)]
