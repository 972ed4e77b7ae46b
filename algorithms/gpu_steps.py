"""Steps of algorithms on tensors in the memory of a GPU.

Frames are made and read by the GPU and cross to page-locked host memory compressed, from where MPI
takes them. Kernels, copies to the host and copies from it have a stream each, so they overlap for
different frames; events order them. Nothing waits for the GPU but the caller, by a yield.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from typing import cast

import numpy as np

from uzipmpi.algorithms.context import Context, as_sent
from uzipmpi.algorithms.operators import Operator, Predefined
from uzipmpi.errors import FormatError, MismatchError
from uzipmpi.kernels import codec, device, device_codec, reduce
from uzipmpi.kernels.codec import HEADER_BYTES
from uzipmpi.transports.transfer import Ready, Transfer
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = ["Gpu", "gpu_of"]

Waits = Generator[Transfer | None, None, None]

STATUS_BYTES = 4
# What is copied before the size of a frame is known: that of the last one and a little more.
MARGIN = 1.02


class Pinned:
    """Page-locked memory of the host; it goes back to its pool when nobody refers to it."""

    def __init__(self, ordinal: int) -> None:
        self._device = ordinal

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of ``nbytes`` with arbitrary content."""
        return device.pinned(nbytes, self._device)

    def give(self, buffer: Bytes) -> None:
        """Do nothing: see the class."""


class Gpu:
    """The streams of one GPU, and what is queued on them.

    Parameters
    ----------
    ordinal
        The GPU's number.

    Attributes
    ----------
    pinned
        Memory of the host that the GPU copies to and from while the caller goes on.
    """

    def __init__(self, ordinal: int) -> None:
        self._device = ordinal
        self.pinned = Pinned(ordinal)
        self._kernels = device.Stream(ordinal)
        self._down = device.Stream(ordinal)
        self._up = device.Stream(ordinal)
        self._ratio = 1.0

    def room(self, nbytes: int) -> Bytes:
        """Return memory of the GPU with arbitrary content."""
        return cast(Bytes, device.allocate(nbytes, self._device))

    def encode(
        self, context: Context, tensor: Tensor, out: Bytes
    ) -> Generator[Transfer | None, None, int]:
        """Write the frame of a tensor to ``out`` in host memory; return its size in bytes."""
        if context.config.verify:  # the checksum is the host's work
            staged = yield from self._read(tensor)
            return context.encode(staged, out)
        bound = codec.bound(tensor.count, tensor.dtype)
        frame = device.allocate(bound, self._device)
        self._after(tensor, self._kernels)
        name = "raw" if tensor.dtype is DType.BYTES else context.config.codec
        device_codec.encode(_memory(tensor), tensor.dtype, frame, self._kernels, codec=name)
        self._down.wait(self._kernels.record())
        copied = min(HEADER_BYTES + int(self._ratio * MARGIN * tensor.nbytes), bound)
        self._down.copy(out[:copied], frame[:copied])
        yield from self._done(self._down)
        nbytes = codec.info(out[:HEADER_BYTES]).frame_bytes
        self._ratio = min(nbytes / bound, 1.0)
        if nbytes > copied:
            self._down.copy(out[copied:nbytes], frame[copied:nbytes])
            yield from self._done(self._down)
        context.record.count(out)
        return nbytes

    def decode(self, context: Context, frame: Bytes, tensor: Tensor) -> Waits:
        """Write the values of a frame in host memory to a tensor.

        Raises
        ------
        FormatError
            If the frame is damaged.
        MismatchError
            If it holds another tensor than the one expected.
        """
        if context.config.verify:
            staged = Tensor(self.pinned.take(tensor.nbytes), tensor.dtype)
            context.decode(frame, staged)
            yield from self._write(staged, tensor)
            return
        place = as_sent(frame, tensor)
        header = codec.info(frame)
        if (header.dtype, header.count) != (place.dtype, place.count):
            raise MismatchError(
                f"expected {place.count} values of {place.dtype.numpy.name}, "
                f"found {header.count} of {header.dtype.numpy.name}"
            )
        arrived = device.allocate(frame.size, self._device)
        status, found = device.allocate(STATUS_BYTES, self._device), self.pinned.take(STATUS_BYTES)
        self._up.copy(arrived, frame)
        self._kernels.wait(self._up.record())
        self._after(tensor, self._kernels)
        self._kernels.zero(status)
        device_codec.decode(arrived, place.dtype, _memory(tensor), status, self._kernels)
        self._kernels.copy(found, status)
        yield from self._done(self._kernels)
        if complaint := device_codec.complaint(int(found.view(np.uint32)[0])):
            raise FormatError(f"malformed frame: {complaint}")

    def fold(
        self, op: Operator, inputs: Sequence[Tensor], out: Tensor, divisor: int | None
    ) -> Waits:
        """Combine tensors, of which one at least is in the GPU's memory."""
        here = all(tensor.on_device for tensor in (*inputs, out))
        if not here or not isinstance(op, Predefined):
            yield from self._fold_on_host(op, inputs, out, divisor)
            return
        reduce.check(inputs, out)
        for tensor in (*inputs, out):
            self._after(tensor, self._kernels)
        status = device.allocate(STATUS_BYTES, self._device)
        self._kernels.zero(status)
        device_codec.fold(
            op.kernel,
            [_memory(tensor) for tensor in inputs],
            range(len(inputs)),
            _memory(out),
            out.dtype,
            status,
            self._kernels,
            op.divisor(len(inputs), divisor),
        )
        yield from self._done(self._kernels)

    def await_owner(self, tensor: Tensor) -> None:
        """Wait until what a tensor's owner has queued is done: others may read or write it then."""
        self._after(tensor, self._kernels)
        self._kernels.synchronize()

    def copy(self, source: Tensor, destination: Tensor) -> None:
        """Copy between any two places, and wait."""
        for tensor in (source, destination):
            self._after(tensor, self._kernels)
        self._kernels.copy(destination.memory, source.memory)
        self._kernels.synchronize()

    def _fold_on_host(
        self, op: Operator, inputs: Sequence[Tensor], out: Tensor, divisor: int | None
    ) -> Waits:
        staged = []
        for tensor in inputs:
            staged.append((yield from self._read(tensor)) if tensor.on_device else tensor)
        result = Tensor(self.pinned.take(out.nbytes), out.dtype) if out.on_device else out
        op.fold(staged, result, divisor)
        if out.on_device:
            yield from self._write(result, out)

    def _read(self, tensor: Tensor) -> Generator[Transfer | None, None, Tensor]:
        """Return a tensor in host memory of the same values."""
        staged = Tensor(self.pinned.take(tensor.nbytes), tensor.dtype)
        self._after(tensor, self._down)
        self._down.wait(self._kernels.record())
        self._down.copy(staged.memory, tensor.memory)
        yield from self._done(self._down)
        return staged

    def _write(self, staged: Tensor, tensor: Tensor) -> Waits:
        self._after(tensor, self._up)
        self._up.wait(self._kernels.record())
        self._up.copy(tensor.memory, staged.memory)
        yield from self._done(self._up)

    def _after(self, tensor: Tensor, stream: device.Stream) -> None:
        """Order a stream after what the tensor's owner has queued, if it is a user's."""
        producer = _memory(tensor).producer if tensor.on_device else None
        if producer is not None:
            stream.wait_for(producer)

    def _done(self, stream: device.Stream) -> Waits:
        """Wait for all that is queued on a stream."""
        event = stream.record()
        try:
            yield Ready(event)
        except BaseException:
            event.synchronize()  # it still uses memory that somebody else may get next
            raise


def gpu_of(tensor: Tensor) -> Gpu:
    """Return the GPU in whose memory a tensor is."""
    return _gpu(_memory(tensor).device)


@functools.cache
def _gpu(ordinal: int) -> Gpu:
    return Gpu(ordinal)


def _memory(tensor: Tensor) -> device.DeviceMemory:
    return cast(device.DeviceMemory, tensor.memory)
