"""Steps of algorithms on tensors wherever they are: in host memory, or queued on a GPU.

On host tensors they are done when called. On a GPU they yield until the GPU has done them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from uzipmpi.algorithms import gpu_folds
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.device_error import reported
from uzipmpi.algorithms.frame import Frame, Operand
from uzipmpi.algorithms.gpu_steps import gpu_of
from uzipmpi.algorithms.operators import Operator, Predefined
from uzipmpi.algorithms.scratch import Buffers, scratch
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = [
    "copy",
    "copy_of",
    "decode",
    "encode",
    "fold",
    "fold_encode",
    "folds_frames",
    "move",
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


def decode(context: Context, frame: Frame, tensor: Tensor) -> Waits:
    """Do what :meth:`Context.decode` does."""
    if tensor.on_device:
        yield from gpu_of(tensor).decode(context, frame, tensor)
    else:
        context.decode(frame.memory, tensor)


def folds_frames(context: Context, op: Operator, own: Tensor, result: Tensor | None) -> bool:
    """Whether :func:`fold` takes peers' frames as they are, to fold them with ``own``."""
    return gpu_folds.can_fold(context, op, [own] if result is None else [own, result])


def fold(
    context: Context,
    op: Operator,
    inputs: Sequence[Operand],
    out: Tensor,
    divisor: int | None = None,
) -> Waits:
    """Do what :meth:`Operator.fold` does; tensors may be in different places.

    Frames may be among the inputs where :func:`folds_frames` says so.
    """
    tensors = [operand for operand in inputs if isinstance(operand, Tensor)]
    device = next((tensor for tensor in (out, *tensors) if tensor.on_device), None)
    if device is None:
        op.fold(tensors, out, divisor)
    elif isinstance(op, Predefined) and gpu_folds.can_fold(context, op, [*tensors, out]):
        yield from gpu_folds.fold(context, op, inputs, out, divisor)
    else:
        yield from gpu_of(device).fold_on_host(context, op, tensors, out, divisor)


def fold_encode(
    context: Context,
    op: Operator,
    inputs: Sequence[Operand],
    own: Tensor,
    result: Tensor | None,
    out: Bytes,
    divisor: int | None = None,
) -> Generator[Transfer | None, None, int]:
    """Do what :func:`fold` does, and write the frame of the result to ``out`` in host memory.

    Parameters
    ----------
    context, op, inputs, divisor
        As there.
    own
        The input that is this rank's own; the other tensors among them are scratch.
    result
        Where the result goes; None: it is wanted as a frame only.

    Returns
    -------
    int
        The size of the frame in bytes.
    """
    if isinstance(op, Predefined) and folds_frames(context, op, own, result):
        steps = gpu_folds.fold_encode(context, op, inputs, own, result, out, divisor)
        return (yield from steps)
    # Not wanted here, the result takes the place of a peer's contribution.
    spare = (operand for operand in inputs if isinstance(operand, Tensor) and operand is not own)
    folded = next(spare) if result is None else result
    yield from fold(context, op, inputs, folded, divisor)
    return (yield from encode(context, folded, out))


def move(context: Context, source: Tensor, destination: Tensor) -> Waits:
    """Copy a rank's own part, which goes through no frame; both may be the same memory."""
    for tensor in (source, destination):
        if tensor.on_device:
            yield from gpu_of(tensor).move(context, source, destination)
            return
    np.copyto(destination.memory, source.memory)


def copy(source: Tensor, destination: Tensor) -> None:
    """Copy values, and wait until that is done; both may be the same memory."""
    for tensor in (source, destination):
        if tensor.on_device:
            with reported():
                gpu_of(tensor).copy(source, destination)
            return
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
        with reported():
            gpu_of(tensor).await_owner(tensor)
    return tensor


def on_host(tensor: Tensor) -> Tensor:
    """Return a tensor in host memory of the same values, which may be the tensor itself."""
    if not tensor.on_device:
        return tensor
    with reported():
        staged = Tensor(gpu_of(tensor).pinned.take(tensor.nbytes), tensor.dtype)
    copy(tensor, staged)
    return staged


def room(nbytes: int, like: Tensor) -> Bytes:
    """Return memory for values where a tensor is."""
    if not like.on_device:
        return scratch.take(nbytes)
    with reported():
        return gpu_of(like).room(nbytes)


def pool(arguments: Iterable[Any]) -> Buffers:
    """Return where the messages of a call come from: GPUs copy to page-locked memory only fast."""
    for argument in arguments:
        tensors = argument if isinstance(argument, (list, tuple)) else [argument]
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.on_device:
                with reported():
                    return gpu_of(tensor).pinned
    return scratch
