"""Steps of algorithms on tensors wherever they are: in host memory, or queued on a GPU.

On host tensors they are done when called. On a GPU they yield until the GPU has done them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from uzipmpi.algorithms import gpu_folds
from uzipmpi.algorithms.call import TRAILER_BYTES, pack_trailer
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.device_error import reported
from uzipmpi.algorithms.frame import Frame, Operand
from uzipmpi.algorithms.gpu_steps import gpu_at, gpu_of, in_gpu, memory_of
from uzipmpi.algorithms.operators import Operator, Predefined
from uzipmpi.algorithms.scratch import Buffers, scratch
from uzipmpi.kernels.codec import HEADER_BYTES
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = [
    "copy",
    "copy_of",
    "decode",
    "edges",
    "encode",
    "fold",
    "fold_encode",
    "folds_frames",
    "frames_ahead",
    "move",
    "on_host",
    "overlap",
    "pool",
    "room",
    "seal",
    "settled",
]

Waits = Generator[Transfer | None, None, None]


def encode(context: Context, tensor: Tensor, out: Bytes) -> Generator[Transfer | None, None, int]:
    """Do what :meth:`Context.encode` does; ``out`` is from the context's pool."""
    if not tensor.on_device:
        return context.encode(tensor, out)
    return (yield from gpu_of(tensor).encode(context, tensor, out))


def frames_ahead(tensor: Tensor) -> int:
    """Return how many frames may be begun before the one that is waited for is made."""
    return int(tensor.on_device)


def decode(context: Context, frame: Frame, tensor: Tensor) -> Waits:
    """Do what :meth:`Context.decode` does."""
    if tensor.on_device:
        yield from gpu_of(tensor).decode(context, frame, tensor)
    else:
        context.decode(frame.memory, tensor)


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share memory; of those in different places none do."""
    if one.on_device and other.on_device:
        first, second = sorted((memory_of(one), memory_of(other)), key=lambda m: m.address)
        return first.address + first.size > second.address
    if one.on_device or other.on_device:
        return False
    return np.may_share_memory(one.memory, other.memory)


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
    summed: int = 1,
) -> Generator[Transfer | None, None, int]:
    """Do what :func:`fold` does, and write the frame of the result to ``out``.

    Parameters
    ----------
    context, op, inputs, divisor
        As there.
    own
        The input that is this rank's own; the other tensors among them are scratch.
    result
        Where the result goes; None: it is wanted as a frame only.
    summed
        How many tensors the sum of which one of the inputs holds already.

    Returns
    -------
    int
        The size of the frame in bytes.
    """
    if isinstance(op, Predefined) and folds_frames(context, op, own, result):
        steps = gpu_folds.fold_encode(context, op, inputs, own, result, out, divisor, summed)
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


def pool(arguments: Iterable[Any], *, on_gpu: bool = False, shared: bool = False) -> Buffers:
    """Return where the messages of a call come from.

    Parameters
    ----------
    arguments
        The call's, its tensors among them. GPUs copy fast to page-locked memory only.
    on_gpu
        MPI takes messages in the memory of a GPU: they are there if all tensors are, and nothing is
        the host's work.
    shared
        There are ranks that share memory with this one.
    """
    tensors: list[Tensor] = []
    for argument in arguments:
        given = argument if isinstance(argument, (list, tuple)) else [argument]
        if isinstance(argument, Operator) and not isinstance(argument, Predefined):
            on_gpu = False
        tensors += [tensor for tensor in given if isinstance(tensor, Tensor)]
    device = next((tensor for tensor in tensors if tensor.on_device), None)
    if device is None:
        return scratch
    with reported():
        gpu = gpu_of(device)
    alike = all(tensor.on_device and gpu_of(tensor) is gpu for tensor in tensors)
    if on_gpu and alike:
        return gpu.messages
    return gpu.shared if shared else gpu.pinned


def edges(
    buffer: Bytes, nbytes: int
) -> Generator[Transfer | None, None, tuple[Bytes, Bytes] | None]:
    """Return the first bytes of a message as a frame has them, and its trailer, in host memory.

    None if the message is too short for both.
    """
    end = nbytes - TRAILER_BYTES
    if end < HEADER_BYTES:
        return None
    if (memory := in_gpu(buffer)) is None:
        return buffer[:HEADER_BYTES], buffer[end:nbytes]
    with reported():
        gpu = gpu_at(memory.device)
        found = yield from gpu.peek(memory[:HEADER_BYTES], memory[end:nbytes])
    return found[:HEADER_BYTES], found[HEADER_BYTES:]


def seal(buffer: Bytes, nbytes: int, call: int, left: int) -> Waits:
    """Write the trailer of a message behind its frame, of ``nbytes``."""
    if (memory := in_gpu(buffer)) is None:
        pack_trailer(buffer, nbytes, call, left)
        return
    with reported():
        gpu = gpu_at(memory.device)
        trailer = gpu.pinned.take(TRAILER_BYTES)
        pack_trailer(trailer, 0, call, left)
        yield from gpu.poke(memory[nbytes : nbytes + TRAILER_BYTES], trailer)
