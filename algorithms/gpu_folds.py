"""Folds of frames and values in the memory of a GPU: all are decoded and combined in one launch.

The result may become a frame in the same launch. It is coded with parameters foretold from those of
an input, which costs ratio where they do not fit, never a value.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from uzipmpi.algorithms.context import ANS, CODEC_AT, FLAGS_AT, PACKED, TIER, Context
from uzipmpi.algorithms.frame import Frame, Operand
from uzipmpi.algorithms.gpu_steps import (
    Gpu,
    Status,
    Waits,
    check,
    gpu_of,
    in_gpu,
    memory_of,
)
from uzipmpi.algorithms.operators import Operator, Predefined
from uzipmpi.errors import FormatError
from uzipmpi.kernels import device, device_codec
from uzipmpi.transports.transfer import Transfer
from uzipmpi.typing import Bytes, Tensor

__all__ = ["can_fold", "fold", "fold_encode"]

# Codecs whose frames a launch makes of a result; it has no time to look which one is the best.
FORETOLD = ("auto", "tier")


def can_fold(context: Context, op: Operator, tensors: Sequence[Tensor]) -> bool:
    """Whether frames are folded as they are, with and to such tensors."""
    return (
        isinstance(op, Predefined)
        and not context.config.verify
        and all(tensor.on_device for tensor in tensors)
        and len({memory_of(tensor).device for tensor in tensors}) == 1
    )


def fold(
    context: Context,
    op: Predefined,
    inputs: Sequence[Operand],
    out: Tensor,
    divisor: int | None,
) -> Waits:
    """Fold frames anywhere and values on the GPU to ``out``, in their order.

    Raises
    ------
    FormatError
        If a frame is damaged; which one is not known.
    MismatchError
        If one holds another tensor than ``out``.
    """
    gpu = gpu_of(out)

    def steps() -> Waits:
        status = gpu.status()
        memories, _kept = _brought_up(gpu, context, inputs, out, status)
        gpu.after(context, out, gpu.decoding)
        device_codec.fold(
            op.kernel,
            memories,
            _plain(inputs),
            memory_of(out),
            out.dtype,
            status.memory,
            gpu.decoding,
            op.divisor(len(inputs), divisor),
            max_blocks=context.config.max_sms,
        )
        yield from gpu.judge(status)

    return gpu.within(context, rooms(inputs, out), steps())


def fold_encode(
    context: Context,
    op: Predefined,
    inputs: Sequence[Operand],
    like: Tensor,
    result: Tensor | None,
    out: Bytes,
    divisor: int | None,
    summed: int,
) -> Generator[Transfer | None, None, int]:
    """Fold as :func:`fold` does, and write the frame of the result to ``out``.

    Parameters
    ----------
    like
        A tensor of the result's kind, on the GPU.
    result
        Where the result goes as well; None: nowhere.
    summed
        How many tensors the sum of which one of the inputs holds already.

    Returns
    -------
    int
        The size of the frame in bytes.
    """
    gpu = gpu_of(like)
    if context.config.codec not in FORETOLD or _are_sparse(inputs):
        folded = result or Tensor(gpu.room(like.nbytes), like.dtype)
        yield from fold(context, op, inputs, folded, divisor)
        return (yield from gpu.encode(context, folded, out))

    def steps() -> Generator[Transfer | None, None, int]:
        status = gpu.status()
        memories, _kept = _brought_up(gpu, context, inputs, like, status)
        if result is not None:
            gpu.after(context, result, gpu.decoding)
        frame = gpu.frame_for(like, out)
        device_codec.fold_encode(
            op.kernel,
            memories,
            _plain(inputs),
            frame,
            like.count,
            like.dtype,
            status.memory,
            gpu.decoding,
            op.divisor(len(inputs), divisor),
            out=None if result is None else memory_of(result),
            summed=summed,
            max_blocks=context.config.max_sms,
        )
        nbytes = yield from gpu.bring_down(context, gpu.decoding, frame, like.nbytes, out)
        gpu.verdict(status)
        if not nbytes:
            raise FormatError("malformed frame: its fold became none")
        return nbytes

    sizes = [*rooms(inputs, like), *gpu.frame_room(like, out)]
    return (yield from gpu.within(context, sizes, steps()))


def rooms(inputs: Sequence[Operand], out: Tensor) -> list[int]:
    """Return the sizes of what the inputs of a fold take in the GPU's memory."""
    frames = [operand for operand in inputs if isinstance(operand, Frame)]
    return [
        *(frame.nbytes for frame in frames if in_gpu(frame.buffer) is None),
        *(out.nbytes for frame in frames if _is_ans(frame)),
    ]


def _brought_up(
    gpu: Gpu,
    context: Context,
    inputs: Sequence[Operand],
    out: Tensor,
    status: Status,
) -> tuple[list[device.DeviceMemory], list[device.DeviceMemory]]:
    """Return where the GPU finds the inputs, and what must live as long.

    Frames that no fold takes are decoded first.
    """
    memories, kept = [], []
    for operand in inputs:
        if isinstance(operand, Tensor):
            gpu.after(context, operand, gpu.decoding)
            memories.append(memory_of(operand))
            continue
        check(operand, out)
        arrived = gpu.bring_up(operand)
        if _is_ans(operand):
            values = device.allocate(out.nbytes, gpu.ordinal)
            most = context.config.max_sms
            device_codec.decode(
                arrived, out.dtype, values, status.memory, gpu.decoding, max_blocks=most
            )
            kept.append(arrived)
            arrived = values
        memories.append(arrived)
    return memories, kept


def _plain(inputs: Sequence[Operand]) -> list[int]:
    """Return which of the inputs are values when the launch begins."""
    return [
        place
        for place, operand in enumerate(inputs)
        if isinstance(operand, Tensor) or _is_ans(operand)
    ]


def _are_sparse(inputs: Sequence[Operand]) -> bool:
    """Whether the frames have a layout of which no result is foretold."""
    headers = [operand.header for operand in inputs if isinstance(operand, Frame)]
    packed = [header[FLAGS_AT] & PACKED for header in headers if header[CODEC_AT] == TIER]
    return bool(packed) and all(packed)


def _is_ans(frame: Frame) -> bool:
    return int(frame.header[CODEC_AT]) == ANS
