"""Messages in the order of a GPU's stream, as NCCL's are.

Both sides give a stream, and the same count, type and tag; the messages of a pair of ranks meet in
the order in which they are called. Between connected GPUs they are only queued, and MPI knows
nothing of them; else the call waits for the stream and is an ordinary message.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from mpi4py import MPI

from uzipmpi import buffers
from uzipmpi.algorithms.linked import memory
from uzipmpi.handle import Endpoint
from uzipmpi.kernels.device import Stream
from uzipmpi.transports.ipc import Job
from uzipmpi.typing import DType, Tensor

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
    started = time.perf_counter()
    ipc = end.handle.ipc
    if ipc is None or end.handle.rank in (sent and sent.peer, received and received.peer):
        Stream.of(stream).synchronize()
        return False
    sends = _job(ipc.device, sent, writable=False)
    receives = _job(ipc.device, received, writable=True)
    jobs = [*sends, *receives]
    if not jobs:
        return True
    if len({(dtype, tag) for _, dtype, tag in jobs}) > 1:
        raise ValueError("stream: expected one data type and one tag in a call, found two")
    _, dtype, tag = jobs[0]
    ipc.ordered.queue(
        Stream.of(stream, ipc.device),
        dtype,
        end.config,
        sends=[job for job, *_ in sends],
        receives=[job for job, *_ in receives],
        word=tag,
    )
    nbytes = sum(tensor.nbytes for (_, tensor), *_ in sends)
    name = "Sendrecv" if sends and receives else "Send" if sends else "Recv"
    seconds = time.perf_counter() - started
    end.handle.stats.add(name, nbytes, nbytes, seconds, algorithm="ipc")
    return True


def _job(device: int, message: Message | None, *, writable: bool) -> list[tuple[Job, DType, int]]:
    if message is None or message.peer == MPI.PROC_NULL:
        return []
    if message.peer == MPI.ANY_SOURCE or message.tag == MPI.ANY_TAG:
        raise ValueError("stream: expected a rank and a tag to receive from, found a wildcard")
    tensor: Tensor | None = buffers.block(message.buf, writable=writable)
    if tensor is None or getattr(tensor.memory, "device", None) != device:
        raise TypeError(f"stream: expected a buffer in the memory of GPU {device}, found another")
    job = [((message.peer, memory(tensor)), tensor.dtype, message.tag)]
    return job if tensor.nbytes else []
