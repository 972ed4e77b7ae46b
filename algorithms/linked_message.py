"""Point to point between GPUs that reach each other's memory: a kernel on either side.

The receiver queues its kernel and then tells the sender, by a number, the place of the message
among those of the pair: kernels of a pair meet in that order, whatever the order of the sends was.
So no kernel of a sender ever waits for a receive that was not posted.
"""

from __future__ import annotations

import numpy as np

from uzipmpi.algorithms import places
from uzipmpi.algorithms.channel import Waits
from uzipmpi.algorithms.context import ANSWER, Context
from uzipmpi.algorithms.gpu_steps import memory_of
from uzipmpi.algorithms.linked import completed
from uzipmpi.algorithms.stream import Stream
from uzipmpi.kernels import device
from uzipmpi.transports.ipc import Ipc
from uzipmpi.typing import Bytes, Tensor

__all__ = ["discard", "incoming", "outgoing"]

REFUSED = -1


def outgoing(context: Context, tensor: Tensor, dest: int, tag: int) -> Stream:
    """Return the stream that sends a tensor in the memory of the connected GPU."""
    return Stream(_send(context, tensor, dest, tag))


def incoming(context: Context, tensor: Tensor, source: int, tag: int) -> Stream:
    """Return the stream that receives a tensor, wherever its memory is."""
    return Stream(_receive(context, tensor, source, tag))


def discard(context: Context, source: int, tag: int) -> Stream:
    """Return the stream that tells the sender to leave it."""
    return Stream(_refuse(context, source, tag))


def _send(context: Context, tensor: Tensor, dest: int, tag: int) -> Waits:
    lane = _ipc(context).outgoing[dest]
    number = np.empty(1, np.int64)
    yield context.transport.irecv(_bytes(number), dest, tag + ANSWER)
    if number[0] == REFUSED:
        return
    while lane.next != number[0]:  # another message of this pair is about to be queued
        yield None
    source = memory_of(tensor)
    try:
        if source.producer is not None:
            lane.stream.wait_for(source.producer)
        lane.send(tensor.dtype, context.config, source)
    finally:
        lane.next += 1
    yield from completed(lane.stream, lane.route)
    context.record.value_bytes += tensor.nbytes
    context.record.wire_bytes += tensor.nbytes


def _receive(context: Context, tensor: Tensor, source: int, tag: int) -> Waits:
    ipc = _ipc(context)
    lane = ipc.incoming[source]
    try:
        staged = _staged(ipc, tensor)
        with lane.lock:
            if (producer := memory_of(staged).producer) is not None:
                lane.stream.wait_for(producer)
            lane.receive(tensor.dtype, context.config, memory_of(staged))
            number = np.array([lane.next], np.int64)
            lane.next += 1
    except BaseException:
        yield from _refuse(context, source, tag)
        raise
    yield context.transport.isend(_bytes(number), source, tag + ANSWER)
    yield from completed(lane.stream, lane.route)
    if staged is not tensor:
        places.copy(staged, tensor)
    context.record.received_bytes += tensor.nbytes


def _refuse(context: Context, source: int, tag: int) -> Waits:
    yield context.transport.isend(_bytes(np.array([REFUSED], np.int64)), source, tag + ANSWER)


def _staged(ipc: Ipc, tensor: Tensor) -> Tensor:
    """Return a tensor in the memory of the connected GPU: the one given, or another as large."""
    if tensor.on_device and memory_of(tensor).device == ipc.device:
        return tensor
    room: Bytes = device.allocate(tensor.nbytes, ipc.device)  # type: ignore[assignment]
    return Tensor(room, tensor.dtype)


def _ipc(context: Context) -> Ipc:
    assert context.ipc is not None  # heads name this way only where GPUs are connected
    return context.ipc


def _bytes(number: np.ndarray) -> Bytes:
    return number.view(np.uint8)
