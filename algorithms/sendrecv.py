"""Point to point: a tensor is sent whole, split, or in chunks.

``whole``: one frame; the least overhead. ``split``: one frame, whose fixed part leaves while the
rest is still being coded. Both need scratch as large as the tensor on either side.
``chunked``: a stream of frames; scratch of a few chunks, and decoding overlaps as well. ``ipc``: no
frames, but kernels of connected GPUs (``linked_message.py``); nobody asks for it by name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from uzipmpi.algorithms import linked_message
from uzipmpi.algorithms.channel import Inbox
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import LARGEST_ITEM, LEAST_GPU_BYTES, cut, piece_bytes, step_bytes
from uzipmpi.algorithms.split import SplitInbox, SplitOutbox, split_incoming, split_outgoing
from uzipmpi.algorithms.stream import Stream, receiving, sending
from uzipmpi.errors import ConfigError, FormatError
from uzipmpi.typing import Tensor

__all__ = ["ALGORITHMS", "IPC", "Parts", "discard", "incoming", "outgoing"]

ALGORITHMS = ("whole", "split", "chunked")
IPC = "ipc"


@dataclass(frozen=True)
class Parts:
    """What the receiver must know about how a tensor was cut.

    Parameters
    ----------
    algorithm
        One of ``ALGORITHMS``, or ``IPC``.
    chunk_bytes
        Bytes of values in a frame (``whole``, ``chunked``), or of a slice of the frame (``split``).
    fixed_stop
        Where the fixed part of the frame ends (``split``), else 0.

    Raises
    ------
    FormatError
        If the numbers make no sense.
    """

    algorithm: str
    chunk_bytes: int
    fixed_stop: int = 0

    def __post_init__(self) -> None:
        if self.algorithm not in (known := (*ALGORITHMS, IPC)):
            raise FormatError(f"expected one of {', '.join(known)}, found {self.algorithm!r}")
        if self.chunk_bytes < LARGEST_ITEM or self.chunk_bytes % LARGEST_ITEM:
            raise FormatError(f"expected chunks of a multiple of 8 bytes, found {self.chunk_bytes}")
        if (self.algorithm == "split") != (self.fixed_stop > 0) or self.fixed_stop < 0:
            expected = "a fixed part" if self.algorithm == "split" else "no fixed part"
            raise FormatError(
                f"{self.algorithm}: expected {expected}, found one of {self.fixed_stop} bytes"
            )


def outgoing(
    context: Context, tensor: Tensor, dest: int, tag: int, algorithm: str
) -> tuple[Parts, Stream]:
    """Return how the tensor is cut, which the receiver must be told, and the stream that sends it.

    Raises
    ------
    ConfigError
        If the algorithm is unknown.
    """
    if algorithm == IPC:
        stream = linked_message.outgoing(context, tensor, dest, tag)
        return Parts(algorithm, whole_bytes(tensor.nbytes)), stream
    if algorithm == "split" and not tensor.on_device:
        slices = SplitOutbox(context, tensor, dest, tag)
        parts = Parts(algorithm, context.chunk_bytes, slices.fixed_stop)
        return parts, split_outgoing(slices)
    if algorithm == "whole":
        parts = Parts(algorithm, min(whole_bytes(tensor.nbytes), most_bytes(context, tensor)))
    elif algorithm in ("chunked", "split"):
        parts = Parts("chunked", chunk_bytes(context, tensor))
    else:
        known = ", ".join(ALGORITHMS)
        raise ConfigError(f"p2p: expected one of {known}, found {algorithm!r}")
    pieces = cut(tensor, parts.chunk_bytes)
    return parts, sending(cut_as(context, parts), pieces, [dest], tag)


def incoming(context: Context, tensor: Tensor, source: int, tag: int, parts: Parts) -> Stream:
    """Return the stream that receives a tensor cut as ``parts`` says.

    Raises
    ------
    FormatError
        If a tensor of this size cannot have been cut so.
    """
    if parts.algorithm == IPC:
        return linked_message.incoming(context, tensor, source, tag)
    context = cut_as(context, parts)
    if parts.algorithm == "split":
        inbox = SplitInbox(context, tensor.nbytes, source, tag, parts.fixed_stop)
        return split_incoming(inbox, tensor)
    return receiving(context, cut(tensor, parts.chunk_bytes), source, tag)


def discard(context: Context, nbytes: int, source: int, tag: int, parts: Parts) -> Stream:
    """Return the stream that receives a tensor and drops it, so that its sender can end."""
    if parts.algorithm == IPC:
        return linked_message.discard(context, source, tag)
    context = cut_as(context, parts)
    if parts.algorithm == "split":
        slices = SplitInbox(context, nbytes, source, tag, parts.fixed_stop)
        return Stream(slices.drain())
    inbox = Inbox(context, source, tag, -(-nbytes // parts.chunk_bytes))
    return Stream(inbox.drain())


def cut_as(context: Context, parts: Parts) -> Context:
    """Return the context with the sender's chunk size."""
    return dataclasses.replace(context, chunk_bytes=parts.chunk_bytes)


def chunk_bytes(context: Context, tensor: Tensor) -> int:
    """Return the size of the chunks of a tensor."""
    if not tensor.on_device:
        return piece_bytes(tensor.nbytes, step_bytes(context.config.chunk_bytes))
    most = min(step_bytes(context.config.gpu_chunk_bytes), most_bytes(context, tensor))
    return piece_bytes(tensor.nbytes, most, LEAST_GPU_BYTES)


def most_bytes(context: Context, tensor: Tensor) -> int:
    """Return how large a chunk may be: two of a GPU's are under way at a time."""
    if not tensor.on_device:
        return whole_bytes(tensor.nbytes)
    return step_bytes(context.config.max_staging_bytes // 3)


def whole_bytes(nbytes: int) -> int:
    """Return the chunk size that makes one chunk of a tensor."""
    return max(-(-nbytes // LARGEST_ITEM) * LARGEST_ITEM, LARGEST_ITEM)
