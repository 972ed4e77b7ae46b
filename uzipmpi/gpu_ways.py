"""How values in GPU memory go between ranks, and why so: for people."""

from __future__ import annotations

from uzipmpi.config import Config
from uzipmpi.cuda_aware import cuda_aware
from uzipmpi.errors import ConfigError
from uzipmpi.handle import Handle
from uzipmpi.staging import messages_on_gpu
from uzipmpi.transports.ipc import MAX_RANKS, WAYS

__all__ = ["by_mpi", "describe"]

REASONS = {
    "ipc": "the ranks' GPUs reach each other",
    "shm": "the ranks' GPUs reach the host's memory, but not each other, or it was asked for",
}


def describe(handle: Handle) -> str:
    """Return it for the ranks of a communicator; nothing where they have no GPUs."""
    if not handle.gpus or handle.size == 1:
        return ""
    shared = "mpi-host, through memory that ranks of a host share"
    rest = shared if handle.shares else by_mpi(handle.config)
    if handle.ipc is not None:
        reason = REASONS[handle.ipc.name]
        return f"{handle.ipc.name}, as {reason}; what kernels cannot take by {rest}"
    if handle.may_link:
        return f"ipc or shm from the first collective on whose buffers are on GPUs; else {rest}"
    return f"{rest}; no ipc or shm: {_why_not_linked(handle)}"


def by_mpi(config: Config) -> str:
    """Return how MPI takes the values, and why."""
    try:
        on_gpu = messages_on_gpu(config)
    except ConfigError as error:
        return str(error)
    if on_gpu:
        return f"mpi-device ({cuda_aware()[1]})"
    asked = config.transport == "mpi-host"
    return f"mpi-host ({'asked for' if asked else 'verify' if config.verify else cuda_aware()[1]})"


def _why_not_linked(handle: Handle) -> str:
    reasons = {
        f"transport is {handle.config.transport}": handle.config.transport not in ("auto", *WAYS),
        "ranks on several hosts": not handle.one_node,
        f"{handle.size} ranks, at most {MAX_RANKS} can": handle.size > MAX_RANKS,
        "not every rank has MPI_THREAD_MULTIPLE": not handle.threads,
    }
    tried = "it was tried in vain (the log says why at level info), or left"
    return next((reason for reason, holds in reasons.items() if holds), tried)
