"""Messages in the order of a GPU's stream, as NCCL's are.

Both sides give a stream, and the same count, type and tag; the messages of a pair of ranks meet in
the order in which they are called. Between connected GPUs they are only queued, and MPI knows
nothing of them; else the call waits for the stream and is an ordinary message.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mpi4py import MPI

from uzipmpi import buffers, plans
from uzipmpi.algorithms.linked import Plan
from uzipmpi.handle import Endpoint
from uzipmpi.kernels.device import Stream
from uzipmpi.transports.ipc import Ipc
from uzipmpi.typing import Tensor

__all__ = ["Message", "exchange"]


class Message(NamedTuple):
    """A buffer, the other rank, and the tag."""

    buf: Any
    peer: int
    tag: int


def exchange(
    end: Endpoint, stream: Any, sent: Message | None = None, received: Message | None = None
) -> bool:
    """Queue a send, a receive or both; return False if MPI has to do it, which may begin now.

    Raises
    ------
    TypeError
        If a buffer is not in the memory of the connected GPU.
    ValueError
        If a receive names no rank or no tag, or two types or tags are to travel in one call.
    """
    handle = end.handle
    ipc = handle.ipc
    if ipc is None or handle.rank in (sent and sent.peer, received and received.peer):
        Stream.of(stream).synchronize()
        return False
    key = plans.key_of_messages(sent, received)
    known = handle.plans.find(key, end.config)
    if known is None:
        if (made := _plan(end, ipc, sent, received)) is None:
            return True
        known = handle.plans.keep(key, *made)
    known.queue(Stream.of(stream, ipc.device))
    name = "Recv" if sent is None else "Send" if received is None else "Sendrecv"
    handle.stats[name].add_queued(known.value_bytes, ipc.name)
    return True


def _plan(
    end: Endpoint, ipc: Ipc, sent: Message | None, received: Message | None
) -> tuple[Plan, int] | None:
    """Return the plan of messages and the bytes of one; None if there is nothing to do."""
    source = _tensor(ipc.device, sent)
    place = _tensor(ipc.device, received, writable=True)
    first, message = (source, sent) if source is not None else (place, received)
    if first is None or message is None:
        return None
    if source is not None and place is not None and sent and received:
        alike = source.dtype is place.dtype and sent.tag == received.tag
        if not alike:
            raise ValueError("stream: expected one data type and one tag in a call, found two")
    plan = Plan(ipc.ordered, end.config, message.tag)
    plan.exchange(
        () if source is None or sent is None else ((sent.peer, source),),
        () if place is None or received is None else ((received.peer, place),),
        dtype=first.dtype,
    )
    return plan, first.nbytes


def _tensor(device: int, message: Message | None, *, writable: bool = False) -> Tensor | None:
    """Return what a message is about; None if that is nothing."""
    if message is None or message.peer == MPI.PROC_NULL:
        return None
    if writable and (message.peer == MPI.ANY_SOURCE or message.tag == MPI.ANY_TAG):
        raise ValueError("stream: expected a rank and a tag to receive from, found a wildcard")
    tensor = buffers.block(message.buf, writable=writable)
    if tensor is None or tensor.device != device:
        raise TypeError(f"stream: expected a buffer in the memory of GPU {device}, found another")
    return tensor if tensor.nbytes else None
