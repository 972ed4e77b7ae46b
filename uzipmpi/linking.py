"""Whether a call goes from GPU to GPU without MPI: what the ranks agree about.

Where the buffers of a collective are is known to each rank alone, so all that might take this way
vote first, in a small reduction of MPI's. They are connected when a vote first says yes, or, with
``transport="ipc"`` or ``"shm"``, when the communicator is made. Nobody votes where all ranks say
the same by giving the call a stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from uzipmpi.algorithms import linked
from uzipmpi.algorithms.operators import Predefined
from uzipmpi.handle import Endpoint, Handle
from uzipmpi.selection import Facts
from uzipmpi.transports import ipc
from uzipmpi.transports.ipc import Ipc
from uzipmpi.typing import DType, Tensor

__all__ = ["LEAST_BYTES", "find", "linkable", "tensors_of"]

logger = logging.getLogger("uzipmpi")

# A smaller tensor goes through host memory: its steps there cost no more than a vote.
LEAST_BYTES = 64 * 1024


def linkable(end: Endpoint, facts: Facts, *, votes: bool = True) -> bool:
    """Whether a collective may go from GPU to GPU, as far as all ranks know.

    Parameters
    ----------
    end, facts
        The communicator, and the call.
    votes
        A vote comes first, which has to pay.
    """
    if not end.handle.may_link or end.config.compress == "never":
        return False
    if facts.operation not in linked.OPERATIONS or end.config.verify:
        return False
    if getattr(end.config, facts.operation, "auto") != "auto":
        return False
    if facts.dtype is not None and (
        facts.dtype is DType.BYTES or not isinstance(facts.op, Predefined)
    ):
        return False
    return not votes or facts.nbytes is None or facts.nbytes >= LEAST_BYTES


def find(end: Endpoint, arguments: Iterable[Any], *, votes: bool) -> Ipc | None:
    """Return the connection for a call that may go from GPU to GPU; collective.

    Parameters
    ----------
    end
        The communicator.
    arguments
        This rank's tensors, or nothing if it will fail in the call.
    votes
        Ranks have not said by giving a stream that all their tensors are in GPU memory.

    Raises
    ------
    TypeError
        If they have, and this rank's are not.
    """
    handle = end.handle
    ordinal = gpu_of(arguments)
    elsewhere = handle.ipc is not None and ordinal != handle.ipc.device
    if votes:
        if not _all_say(handle, ordinal is not None and not elsewhere):
            return None
    elif ordinal is None or elsewhere:
        gpu = "one GPU" if handle.ipc is None else f"GPU {handle.ipc.device}"
        raise TypeError(f"stream: expected buffers in the memory of {gpu}, found others")
    if handle.ipc is None and handle.may_link:
        found = ipc.connect(handle.private, ordinal, handle.config)
        if isinstance(found, Ipc):
            handle.ipc = found
        else:
            handle.may_link = False
            logger.info("rank %d: no exchange between GPUs: %s", handle.rank, found)
    return handle.ipc


def tensors_of(arguments: Iterable[Any]) -> list[Tensor]:
    """Return all tensors that are not empty."""
    tensors: list[Any] = []
    for argument in arguments:
        tensors += argument if isinstance(argument, (list, tuple)) else [argument]
    return [one for one in tensors if isinstance(one, Tensor) and one.nbytes]


def gpu_of(arguments: Iterable[Any]) -> int | None:
    """Return the GPU in whose memory all tensors are that are not empty; None if there is none."""
    found = {tensor.device for tensor in tensors_of(arguments)}
    return found.pop() if len(found) == 1 else None


def _all_say(handle: Handle, yes: bool) -> bool:
    ballot = np.array([yes], np.int32)
    handle.private.Allreduce(MPI.IN_PLACE, ballot, MPI.MIN)
    return bool(ballot[0])
