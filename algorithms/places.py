"""Steps of algorithms on tensors wherever they are: in host memory, or queued on a GPU.

On host tensors they are done when called. On a GPU they yield until the GPU has done them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.gpu_steps import gpu_of
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.scratch import Buffers, scratch
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = [
    "copy",
    "copy_of",
    "decode",
    "encode",
    "fold",
    "give_room",
    "on_host",
    "pool",
    "room",
    "settled",
]

Waits = Generator[Transfer | None, None, None]


def encode(context: Context, tensor: Tensor, out: Bytes) -> Generator[Transfer | None, None, int]:
    """Do what :meth:`Context.encode` does; the frame is in host memory."""
    if not tensor.on_device:
        return context.encode(tensor, out)
    return (yield from gpu_of(tensor).encode(context, tensor, out))


def decode(context: Context, frame: Bytes, tensor: Tensor) -> Waits:
    """Do what :meth:`Context.decode` does with a frame in host memory."""
    if tensor.on_device:
        yield from gpu_of(tensor).decode(context, frame, tensor)
    else:
        context.decode(frame, tensor)


def fold(op: Operator, inputs: Sequence[Tensor], out: Tensor, divisor: int | None = None) -> Waits:
    """Do what :meth:`Operator.fold` does; tensors may be in different places."""
    device = next((tensor for tensor in (out, *inputs) if tensor.on_device), None)
    if device is None:
        op.fold(inputs, out, divisor)
    else:
        yield from gpu_of(device).fold(op, inputs, out, divisor)


def copy(source: Tensor, destination: Tensor) -> None:
    """Copy a rank's own part, which goes through no frame; both may be the same memory."""
    if source.on_device:
        gpu_of(source).copy(source, destination)
    elif destination.on_device:
        gpu_of(destination).copy(source, destination)
    else:
        np.copyto(destination.memory, source.memory)


def copy_of(tensor: Tensor) -> Tensor:
    """Return the same values in other memory of the same place."""
    if not tensor.on_device:
        return Tensor(tensor.memory.copy(), tensor.dtype)
    apart = Tensor(room(tensor.nbytes, like=tensor), tensor.dtype)
    copy(tensor, apart)
    return apart


def settled(tensor: Tensor) -> Tensor:
    """Return the tensor once all that its owner has queued on a GPU is done."""
    if tensor.on_device:
        gpu_of(tensor).await_owner(tensor)
    return tensor


def on_host(tensor: Tensor) -> Tensor:
    """Return a tensor in host memory of the same values, which may be the tensor itself."""
    if not tensor.on_device:
        return tensor
    staged = Tensor(gpu_of(tensor).pinned.take(tensor.nbytes), tensor.dtype)
    copy(tensor, staged)
    return staged


def room(nbytes: int, like: Tensor) -> Bytes:
    """Return scratch for values where a tensor is."""
    return gpu_of(like).room(nbytes) if like.on_device else scratch.take(nbytes)


def give_room(buffer: Bytes) -> None:
    """Give back what :func:`room` returned."""
    if isinstance(buffer, np.ndarray):  # that of a GPU goes back by itself
        scratch.give(buffer)


def pool(arguments: Iterable[Any]) -> Buffers:
    """Return where the messages of a call come from: GPUs copy to page-locked memory only fast."""
    for argument in arguments:
        tensors = argument if isinstance(argument, (list, tuple)) else [argument]
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.on_device:
                return gpu_of(tensor).pinned
    return scratch
