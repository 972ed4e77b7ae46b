"""Host memory in the place of GPU memory, where MPI itself is called and cannot reach that."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from uzipmpi import buffers
from uzipmpi.algorithms import places
from uzipmpi.algorithms.scratch import Buffers
from uzipmpi.config import Config
from uzipmpi.cuda_aware import cuda_aware, is_cuda_aware
from uzipmpi.errors import ConfigError
from uzipmpi.handle import Endpoint
from uzipmpi.progress import Operation, Outcome, Stages
from uzipmpi.typing import Tensor

__all__ = [
    "Rounds",
    "Staged",
    "frames_on_gpu",
    "message_pool",
    "messages_on_gpu",
    "reachable",
    "stand_in",
    "when_complete",
]


class Staged:
    """A buffer specification that MPI can use.

    Parameters
    ----------
    spec
        Any specification. One of GPU memory, all of it, is copied to the host.
    receives
        MPI writes to it.
    device
        MPI takes GPU memory in this call if it does in any.

    Attributes
    ----------
    spec
        What to give to mpi4py.
    """

    def __init__(self, spec: Any, *, receives: bool = False, device: bool = False) -> None:
        self._tensor: Tensor | None = None
        self._receives = receives
        self.spec = spec
        if not buffers.on_device(spec) or buffers.without_gpu_half():
            return
        if device and is_cuda_aware():
            self.spec = buffers.typed(spec, places.settled(buffers.entire(spec)))
        else:
            self.spec = self._staged(spec)

    @property
    def copied(self) -> bool:
        """Whether it is another than was given."""
        return self._tensor is not None

    def refresh(self) -> None:
        """Bring the values to the host as they are now."""
        if self._tensor is not None:
            places.copy(self._tensor, self._host)

    def finish(self) -> None:
        """Bring what was received to the GPU."""
        if self._tensor is not None and self._receives:
            places.copy(self._host, self._tensor)

    def _staged(self, spec: Any) -> Any:
        self._tensor = buffers.entire(spec)
        # Also where MPI writes: it may leave gaps, and nothing at all where nothing comes.
        self._host = places.on_host(self._tensor)
        return buffers.in_place_of(spec, self._host)


class Rounds:
    """Begins a round of a persistent request of MPI's on staged buffers.

    A persistent collective matches no other kind, so that on the host must be one as well.

    Parameters
    ----------
    request
        MPI's request, which is freed with this object.
    staged
        Its buffers.
    """

    def __init__(self, request: MPI.Prequest, staged: Sequence[Staged]) -> None:
        self._request, self._staged = request, staged

    def __call__(self) -> MPI.Request:
        """Begin a round; return a request that is complete when its values are on the GPU."""
        for one in self._staged:
            one.refresh()
        self._request.Start()
        return when_complete(self._request, *self._staged)

    def __del__(self) -> None:
        if not sys.is_finalizing() and not MPI.Is_finalized():
            self._request.Free()


def when_complete(request: MPI.Request, *staged: Staged) -> MPI.Request:
    """Return a request that is complete when MPI's is and the values are on the GPU."""
    received = Outcome(request)
    operation = Operation()

    def stages() -> Stages:
        yield received
        if received.status is not None:
            operation.source, operation.tag = received.status.source, received.status.tag
            operation.nbytes = max(received.status.Get_elements(MPI.BYTE), 0)
        for one in staged:
            one.finish()

    return operation.begin(stages())


def messages_on_gpu(config: Config) -> bool:
    """Whether the frames of GPU buffers stay in GPU memory, from where MPI takes them.

    Raises
    ------
    ConfigError
        If that is asked for, of an MPI that takes none.
    """
    if config.transport == "mpi-device" and not is_cuda_aware():
        raise ConfigError(
            f"transport: expected an MPI that takes GPU memory for mpi-device; {cuda_aware()[1]}"
        )
    wanted = config.transport in ("auto", "mpi-device") and not config.verify
    return wanted and is_cuda_aware()


def frames_on_gpu(end: Endpoint) -> bool:
    """Whether MPI is handed the frames of GPU buffers in GPU memory."""
    return not end.handle.transport.neighbours and messages_on_gpu(end.config)


def message_pool(end: Endpoint, arguments: Iterable[Any]) -> Buffers:
    """Return where the messages of a call come from."""
    shared = bool(end.handle.transport.neighbours)
    return places.pool(arguments, on_gpu=frames_on_gpu(end), shared=shared)


def reachable(tensor: Tensor) -> Tensor:
    """Return values where a message of MPI's can be sent from: the tensor, or a copy."""
    return places.settled(tensor) if is_cuda_aware() else places.on_host(tensor)


def stand_in(spec: Any) -> Any:
    """Return a specification on which MPI can check arguments, and no more."""
    if not buffers.on_device(spec) or buffers.without_gpu_half():
        return spec
    tensor = buffers.entire(spec)
    blank = Tensor(np.empty(tensor.nbytes, np.uint8), tensor.dtype)  # its pages are never touched
    return buffers.in_place_of(spec, blank)
