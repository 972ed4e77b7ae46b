"""Steps of algorithms on tensors in the memory of a GPU.

Frames are made and read by the GPU and cross to page-locked host memory compressed, from where MPI
takes them; or they stay in memory of the GPU, if MPI takes them there. Kernels that make frames,
kernels that read them, copies to the host and copies from it have a stream each, so they overlap
for different frames, and no frame is made late because another has not arrived; events order them.
Nothing waits for the GPU but the caller, by a yield.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from uzipmpi.algorithms.context import Context, as_sent
from uzipmpi.algorithms.device_error import raise_reported
from uzipmpi.algorithms.frame import Frame
from uzipmpi.algorithms.gpu_staging import Staging
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.scratch import Buffers, scratch
from uzipmpi.errors import FormatError, MismatchError
from uzipmpi.kernels import codec, device, device_codec
from uzipmpi.kernels.codec import HEADER_BYTES
from uzipmpi.kernels.device_pool import rounded_up
from uzipmpi.transports.shared import SharedPool, give_back
from uzipmpi.transports.transfer import Ready, Transfer
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = ["Gpu", "gpu_at", "gpu_of", "in_gpu", "memory_of"]

Waits = Generator[Transfer | None, None, None]
T = TypeVar("T")

STATUS_BYTES = 4
# From one status word to the next: no two share a line of a cache.
STATUS_STRIDE = 64
STATUS_WORDS = 64
# What is copied before the size of a frame is known: that of the last one and a little more.
MARGIN = 1.02


class Pinned:
    """Page-locked memory of the host; it goes back to its pool when nobody refers to it."""

    transport = "mpi-host"

    def __init__(self, ordinal: int) -> None:
        self.gpu = ordinal

    def arrivals(self, near: bool) -> Pinned:
        """Return where memory for messages that come in is from."""
        return self

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of ``nbytes`` with arbitrary content."""
        try:
            return device.pinned(nbytes, self.gpu)
        except RuntimeError:  # the driver copies from and to any memory, if slower
            return np.empty(nbytes, np.uint8)

    def give(self, buffer: Bytes) -> None:
        """Give back what is a peer's; else do nothing: see the class."""
        give_back(buffer)


class OnGpu:
    """Memory of a GPU for messages, which MPI reads and writes there."""

    transport = "mpi-device"

    def __init__(self, ordinal: int) -> None:
        self.gpu = ordinal
        self._pinned = Pinned(ordinal)

    def arrivals(self, near: bool) -> OnGpu:
        """Return where memory for messages that come in is from."""
        return self

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of ``nbytes`` with arbitrary content."""
        try:
            return cast(Bytes, device.allocate(nbytes, self.gpu))
        except RuntimeError:  # messages from and to the host are the same
            return self._pinned.take(nbytes)

    def give(self, buffer: Bytes) -> None:
        """Do nothing: it goes back to its pool when nobody refers to it."""


class Shared:
    """Memory for messages that the ranks of a node share, page-locked."""

    transport = "mpi-host, shared"

    def __init__(self, ordinal: int) -> None:
        self.gpu = ordinal
        self._pool = SharedPool(ordinal)
        self._pinned = Pinned(ordinal)

    def arrivals(self, near: bool) -> Buffers:
        """Return where memory for messages that come in is from: it costs little untouched."""
        return scratch if near else self._pinned

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of ``nbytes`` with arbitrary content."""
        try:
            return self._pool.take(nbytes)
        except (OSError, RuntimeError):
            return self._pinned.take(nbytes)

    def give(self, buffer: Bytes) -> None:
        """Do nothing: it goes back to its pool when nobody refers to it."""


class Status(NamedTuple):
    """Where kernels say what is wrong with a frame: in memory of the host.

    Copied from the GPU it would wait for the frames that are on their way from there.

    Attributes
    ----------
    memory
        The word as kernels reach it.
    word
        The same as the host does.
    """

    memory: device.DeviceMemory
    word: npt.NDArray[np.uint32]


class Gpu:
    """The streams of one GPU, and what is queued on them.

    Parameters
    ----------
    ordinal
        The GPU's number.

    Attributes
    ----------
    ordinal
        The same.
    pinned
        Memory of the host that the GPU copies to and from while the caller goes on.
    messages, shared
        Memory for messages: of the GPU, and of the host, which ranks of a node share.
    encoding, decoding, down, up
        Its streams: for kernels that make frames, for those that read them, for copies to the host,
        for copies from it.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.pinned = Pinned(ordinal)
        self.messages = OnGpu(ordinal)
        self.shared = Shared(ordinal)
        self.encoding = device.Stream(ordinal)
        self.decoding = device.Stream(ordinal)
        self.down = device.Stream(ordinal)
        self.up = device.Stream(ordinal)
        self._staging = Staging()
        self._statuses: deque[Status] = deque()
        self._ratio = 1.0

    def room(self, nbytes: int) -> Bytes:
        """Return memory of the GPU with arbitrary content."""
        return cast(Bytes, device.allocate(nbytes, self.ordinal))

    def encode(
        self, context: Context, tensor: Tensor, out: Bytes
    ) -> Generator[Transfer | None, None, int]:
        """Write the frame of a tensor to ``out``; return its size in bytes.

        Raises
        ------
        mpi4py.MPI.Exception
            If the driver fails, here and in all steps.
        """
        if context.config.verify:  # the checksum is the host's work
            return (yield from self.within(context, [], self._encode_on_host(context, tensor, out)))
        sizes = self.frame_room(tensor, out)
        return (yield from self.within(context, sizes, self._encode(context, tensor, out)))

    def _encode_on_host(
        self, context: Context, tensor: Tensor, out: Bytes
    ) -> Generator[Transfer | None, None, int]:
        staged = yield from self.read(context, tensor)
        return context.encode(staged, out)

    def _encode(
        self, context: Context, tensor: Tensor, out: Bytes
    ) -> Generator[Transfer | None, None, int]:
        frame = self.frame_for(tensor, out)
        self.after(context, tensor, self.encoding)
        name = "raw" if tensor.dtype is DType.BYTES else context.config.codec
        most = context.config.max_sms
        values = memory_of(tensor)
        device_codec.encode(values, tensor.dtype, frame, self.encoding, codec=name, max_blocks=most)
        return (yield from self.bring_down(context, self.encoding, frame, tensor.nbytes, out))

    def frame_room(self, tensor: Tensor, out: Bytes) -> list[int]:
        """Return the sizes of what :meth:`frame_for` allocates."""
        return [] if in_gpu(out) else [codec.bound(tensor.count, tensor.dtype)]

    def frame_for(self, tensor: Tensor, out: Bytes) -> device.DeviceMemory:
        """Return memory of the GPU for a frame that is to be in ``out``: that itself if it is."""
        bound = codec.bound(tensor.count, tensor.dtype)
        return in_gpu(out[:bound]) or device.allocate(bound, self.ordinal)

    def bring_down(
        self,
        context: Context,
        kernels: device.Stream,
        frame: device.DeviceMemory,
        value_bytes: int,
        out: Bytes,
    ) -> Generator[Transfer | None, None, int]:
        """Bring a frame that kernels make to ``out``; return its size, 0 if none was made."""
        self.down.wait(kernels.record())
        if in_gpu(out):
            header = yield from self.peek(frame[:HEADER_BYTES])
            if not header[0]:
                return 0
            context.record.count(header)
            return codec.info(header).frame_bytes
        copied = min(HEADER_BYTES + int(self._ratio * MARGIN * value_bytes), frame.size)
        self.down.copy(out[:copied], frame[:copied])
        yield from self.done(self.down)
        if not out[0]:  # the magic number's
            return 0
        nbytes = codec.info(out[:HEADER_BYTES]).frame_bytes
        self._ratio = min(nbytes / frame.size, 1.0)
        if nbytes > copied:
            self.down.copy(out[copied:nbytes], frame[copied:nbytes])
            yield from self.done(self.down)
        context.record.count(out)
        return nbytes

    def peek(self, *parts: device.DeviceMemory) -> Generator[Transfer | None, None, Bytes]:
        """Return a few bytes, one part after the other."""
        found = self.pinned.take(sum(part.size for part in parts))
        start = 0
        for part in parts:
            self.down.copy(found[start : start + part.size], part)
            start += part.size
        yield from self.done(self.down)
        return found

    def poke(self, place: device.DeviceMemory, content: Bytes) -> Waits:
        """Write a few bytes, and wait until they are there."""
        self.up.copy(place, content)
        yield from self.done(self.up)

    def decode(self, context: Context, frame: Frame, tensor: Tensor) -> Waits:
        """Write the values of a frame to a tensor.

        Raises
        ------
        FormatError
            If the frame is damaged.
        MismatchError
            If it holds another tensor than the one expected.
        """
        here = in_gpu(frame.buffer) is not None
        too_large = not here and frame.nbytes > context.config.max_staging_bytes
        if context.config.verify or too_large:
            return self.within(context, [], self._decode_on_host(context, frame, tensor))
        sizes = [] if here else [frame.nbytes]
        return self.within(context, sizes, self._decode(context, frame, tensor))

    def _decode_on_host(self, context: Context, frame: Frame, tensor: Tensor) -> Waits:
        staged = Tensor(self.pinned.take(tensor.nbytes), tensor.dtype)
        context.decode(frame.memory, staged)
        yield from self.write(context, staged, tensor)

    def _decode(self, context: Context, frame: Frame, tensor: Tensor) -> Waits:
        place = as_sent(frame.header, tensor)
        check(frame, place)
        arrived = self.bring_up(frame)
        status = self.status()
        self.after(context, tensor, self.decoding)
        device_codec.decode(
            arrived,
            place.dtype,
            memory_of(tensor),
            status.memory,
            self.decoding,
            max_blocks=context.config.max_sms,
        )
        yield from self.judge(status)

    def bring_up(self, frame: Frame) -> device.DeviceMemory:
        """Return memory of the GPU in which kernels will find a frame."""
        if (memory := in_gpu(frame.memory)) is not None:
            return memory
        arrived = device.allocate(frame.nbytes, self.ordinal)
        self.up.copy(arrived, frame.memory)
        self.decoding.wait(self.up.record())
        return arrived

    def status(self) -> Status:
        """Return a status word, which is zero."""
        with suppress(IndexError):
            return self._statuses.pop()
        page = device.pinned(STATUS_STRIDE * STATUS_WORDS, self.ordinal)
        page[:] = 0
        for start in range(0, page.size, STATUS_STRIDE):
            word = page[start : start + STATUS_BYTES]
            memory = device.DeviceMemory(word.ctypes.data, STATUS_BYTES, self.ordinal, page)
            self._statuses.append(Status(memory, word.view(np.uint32)))
        return self._statuses.pop()

    def judge(self, status: Status) -> Waits:
        """Wait for the kernels that read frames, and raise what they say of them.

        Raises
        ------
        FormatError
            If one is damaged.
        """
        yield from self.done(self.decoding)
        self.verdict(status)

    def verdict(self, status: Status) -> None:
        """Raise what kernels that have ended say of frames."""
        found = int(status.word[0])
        status.word[0] = 0
        self._statuses.append(status)
        if complaint := device_codec.complaint(found):
            raise FormatError(f"malformed frame: {complaint}")

    def fold_on_host(
        self,
        context: Context,
        op: Operator,
        inputs: Sequence[Tensor],
        out: Tensor,
        divisor: int | None,
    ) -> Waits:
        """Combine tensors in any places there."""
        return self.within(context, [], self._fold_on_host(context, op, inputs, out, divisor))

    def _fold_on_host(
        self,
        context: Context,
        op: Operator,
        inputs: Sequence[Tensor],
        out: Tensor,
        divisor: int | None,
    ) -> Waits:
        staged = []
        for tensor in inputs:
            staged.append((yield from self.read(context, tensor)) if tensor.on_device else tensor)
        result = Tensor(self.pinned.take(out.nbytes), out.dtype) if out.on_device else out
        op.fold(staged, result, divisor)
        if out.on_device:
            yield from self.write(context, result, out)

    def move(self, context: Context, source: Tensor, destination: Tensor) -> Waits:
        """Copy between any two places."""
        return self.within(context, [], self._move(context, source, destination))

    def _move(self, context: Context, source: Tensor, destination: Tensor) -> Waits:
        for tensor in (source, destination):
            self.after(context, tensor, self.decoding)
        self.decoding.copy(destination.memory, source.memory)
        yield from self.done(self.decoding)

    def copy(self, source: Tensor, destination: Tensor) -> None:
        """Copy between any two places, and wait."""
        for tensor in (source, destination):
            wait_for_owner(tensor, self.decoding)
        self.decoding.copy(destination.memory, source.memory)
        self.decoding.synchronize()

    def await_owner(self, tensor: Tensor) -> None:
        """Wait until what a tensor's owner has queued is done: others may read or write it then."""
        wait_for_owner(tensor, self.decoding)
        self.decoding.synchronize()

    def read(self, context: Context, tensor: Tensor) -> Generator[Transfer | None, None, Tensor]:
        """Return a tensor in host memory of the same values."""
        staged = Tensor(self.pinned.take(tensor.nbytes), tensor.dtype)
        self.after(context, tensor, self.down)
        self.down.copy(staged.memory, tensor.memory)
        yield from self.done(self.down)
        return staged

    def write(self, context: Context, staged: Tensor, tensor: Tensor) -> Waits:
        """Copy values from the host."""
        self.after(context, tensor, self.up)
        self.up.copy(tensor.memory, staged.memory)
        yield from self.done(self.up)

    def after(self, context: Context, tensor: Tensor, stream: device.Stream) -> None:
        """Order a stream after what a tensor's owner had queued when the call first used it.

        Between steps of a call there is nothing else to order: who uses what a step has made waits
        for the step.
        """
        if tensor.on_device:
            producer = memory_of(tensor).producer
            if producer is not None and (producer, stream.handle) not in context.ordered:
                context.ordered.add((producer, stream.handle))
                stream.wait_for(producer)

    def done(self, stream: device.Stream) -> Waits:
        """Wait for all that is queued on a stream."""
        event = stream.record()
        try:
            yield Ready(event)
        except BaseException:
            self._settle()  # it still uses memory that somebody else may get next
            raise

    def within(
        self,
        context: Context,
        sizes: Sequence[int],
        steps: Generator[Transfer | None, None, T],
    ) -> Generator[Transfer | None, None, T]:
        """Take steps once there is room for memory of these sizes.

        Raises
        ------
        mpi4py.MPI.Exception
            If the driver fails.
        """
        claim = self._staging.claim(sum(map(rounded_up, sizes)), context.config.max_staging_bytes)
        try:
            if not claim.query():
                yield Ready(claim)
            return (yield from steps)
        except BaseException as error:
            self._settle()
            if isinstance(error, RuntimeError):
                raise_reported(error)
            raise
        finally:
            claim.release()

    def _settle(self) -> None:
        """Wait for all that is queued, if it will ever be done."""
        with suppress(RuntimeError):
            for stream in (self.up, self.decoding, self.encoding, self.down):
                stream.synchronize()


def wait_for_owner(tensor: Tensor, stream: device.Stream) -> None:
    """Order a stream after what a tensor's owner has queued, if it is a user's."""
    producer = memory_of(tensor).producer if tensor.on_device else None
    if producer is not None:
        stream.wait_for(producer)


def in_gpu(memory: Bytes) -> device.DeviceMemory | None:
    """Return memory as what it is in a GPU, None if it is the host's."""
    return memory if isinstance(memory, device.DeviceMemory) else None


def check(frame: Frame, expected: Tensor) -> None:
    """Look whether a frame says that it holds such a tensor.

    Raises
    ------
    FormatError
        If its header is damaged.
    MismatchError
        If it says something else.
    """
    header = codec.info(frame.header)
    if (header.dtype, header.count) != (expected.dtype, expected.count):
        raise MismatchError(
            f"expected {expected.count} values of {expected.dtype.numpy.name}, "
            f"found {header.count} of {header.dtype.numpy.name}"
        )


def gpu_of(tensor: Tensor) -> Gpu:
    """Return the GPU in whose memory a tensor is."""
    return gpu_at(memory_of(tensor).device)


@functools.cache
def gpu_at(ordinal: int) -> Gpu:
    """Return the GPU of a number."""
    return Gpu(ordinal)


def memory_of(tensor: Tensor) -> device.DeviceMemory:
    """Return the memory of a tensor in that of a GPU."""
    return cast(device.DeviceMemory, tensor.memory)
