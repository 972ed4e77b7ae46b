"""The codec on GPU memory in a stream of its own, on the emulated GPU, against the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import emulated_module
import numpy as np
import pytest
from samples import FLOATS, TILE, tensor_of

from uzipmpi.kernels import codec, device, device_codec, reduce
from uzipmpi.kernels.device import DeviceMemory, Stream
from uzipmpi.typing import Bytes, DType, Tensor

COUNT = 9 * TILE + 77
HEADER = 64
by_name = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)


@pytest.fixture(autouse=True)
def gpu(gpu_module: Path) -> Iterator[ModuleType]:
    """The emulated GPU half, in the place of any other."""
    with emulated_module.installed(gpu_module) as module:
        yield module


@pytest.fixture
def stream() -> Stream:
    """A stream of the second GPU, which is not the current one."""
    return Stream(1)


def on_device(memory: Bytes, stream: Stream, offset: int = 0) -> DeviceMemory:
    """Return a copy of bytes, ``offset`` bytes behind an aligned place."""
    there = device.allocate(memory.size + offset, 1)[offset:]
    stream.copy(there, memory)
    stream.synchronize()  # the bytes may be gone soon
    return there


def on_host(memory: DeviceMemory, stream: Stream) -> Bytes:
    out = device.pinned(memory.size)
    stream.copy(out, memory)
    stream.synchronize()
    return out


def status_word(stream: Stream) -> DeviceMemory:
    status = device.allocate(4, 1)
    stream.zero(status)
    return status


def status_of(status: DeviceMemory, stream: Stream) -> int:
    return int(on_host(status, stream).view(np.uint32)[0])


def cpu_frame(tensor: Tensor, codec_name: str = "tier") -> Bytes:
    frame = np.empty(codec.bound(tensor.count, tensor.dtype), np.uint8)
    return frame[: codec.encode(tensor, frame, codec=codec_name)]


@by_name
@pytest.mark.parametrize("codec_name", ["auto", "tier", "ans", "raw"])
def test_frames_are_the_cpus_to_read(dtype: DType, codec_name: str, stream: Stream) -> None:
    tensor = tensor_of("outliers", dtype, COUNT)
    values = on_device(tensor.memory, stream, offset=dtype.itemsize)
    frame = device.allocate(codec.bound(COUNT, dtype), 1)
    for _ in range(2):  # the second one finds the scratch that the first one left
        device_codec.encode(values, dtype, frame, stream, codec=codec_name, max_blocks=2)
    found = on_host(frame, stream)
    size = codec.info(found[:HEADER]).frame_bytes
    assert (size < frame.size) == (codec_name != "raw")
    out = Tensor(np.empty_like(tensor.memory), dtype)
    codec.decode(found[:size], out)
    assert (out.memory == tensor.memory).all()


@by_name
@pytest.mark.parametrize("codec_name", ["tier", "ans", "raw"])
def test_frames_of_the_cpu_are_read(dtype: DType, codec_name: str, stream: Stream) -> None:
    tensor = tensor_of("zero_heavy", dtype, COUNT)
    frame = on_device(cpu_frame(tensor, codec_name), stream)
    out = device.allocate(tensor.nbytes, 1)
    status = status_word(stream)
    device_codec.decode(frame, dtype, out, status, stream)
    assert (on_host(out, stream) == tensor.memory).all()
    assert status_of(status, stream) == 0
    device_codec.decode(frame[:-16], dtype, out, status, stream)
    assert status_of(status, stream) != 0


@by_name
@pytest.mark.parametrize("n", [1, 3, 35])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_folds_are_the_cpus(op: str, n: int, dtype: DType, stream: Stream) -> None:
    """Every third input is plain; 35 of them take three launches."""
    count = TILE + 5
    tensors = [tensor_of("normal", dtype, count, seed) for seed in range(n)]
    plain = range(0, n, 3)
    inputs = [
        on_device(tensor.memory if i in plain else cpu_frame(tensor), stream)
        for i, tensor in enumerate(tensors)
    ]
    expected = Tensor(np.empty_like(tensors[0].memory), dtype)
    reduce.fold(op, tensors, expected, divisor=n)
    status = status_word(stream)
    device_codec.fold(op, inputs, plain, inputs[0], dtype, status, stream, divisor=n)
    assert (on_host(inputs[0], stream) == expected.memory).all()
    assert status_of(status, stream) == 0


def test_folds_of_two_streams_keep_apart(stream: Stream) -> None:
    other = Stream(1)
    tensors = [tensor_of("normal", DType.FLOAT32, TILE, seed) for seed in range(20)]
    results = []
    for queue, some in ((stream, tensors), (other, tensors[::-1])):
        inputs = [on_device(tensor.memory, queue) for tensor in some]
        out, status = device.allocate(inputs[0].size, 1), status_word(queue)
        device_codec.fold("sum", inputs, range(20), out, DType.FLOAT32, status, queue)
        results.append((out, inputs))
    for (out, _), some, queue in zip(
        results, (tensors, tensors[::-1]), (stream, other), strict=True
    ):
        expected = Tensor(np.empty_like(tensors[0].memory), DType.FLOAT32)
        reduce.fold("sum", some, expected)
        assert (on_host(out, queue) == expected.memory).all()


def test_more_values_than_before_get_more_accumulators(stream: Stream) -> None:
    small = stream.accumulators(100)
    assert stream.accumulators(60) is small
    assert stream.accumulators(200).size == 200
    assert stream.scratch is stream.scratch


def test_what_is_refused(stream: Stream) -> None:
    memory, status = device.allocate(4096, 1), status_word(stream)
    with pytest.raises(ValueError, match="expected at least 4160 bytes for a frame, found 4096"):
        device_codec.encode(memory, DType.FLOAT32, memory, stream)
    with pytest.raises(ValueError, match="expected codec auto, tier, ans or raw, found zip"):
        device_codec.encode(memory[:64], DType.FLOAT32, memory, stream, codec="zip")
    with pytest.raises(RuntimeError, match="aligned to 16"):
        device_codec.decode(memory[8:], DType.FLOAT32, memory, status, stream)
    with pytest.raises(RuntimeError, match="64 bytes of a header"):
        device_codec.decode(memory[:63], DType.FLOAT32, memory, status, stream)
    with pytest.raises(ValueError, match="operators sum, prod, min, max, found 'xor'"):
        device_codec.fold("xor", [memory], [0], memory, DType.FLOAT32, status, stream)
    with pytest.raises(ValueError, match="expected 4096 bytes of values, found 4000"):
        device_codec.fold("sum", [memory[:4000]], [0], memory, DType.FLOAT32, status, stream)


def framed(memory: DeviceMemory, dtype: DType, stream: Stream) -> DeviceMemory:
    """Return the frame that is made of values."""
    room = device.allocate(codec.bound(memory.size // dtype.itemsize, dtype), 1)
    device_codec.encode(memory, dtype, room, stream, codec="tier")
    return room[: codec.info(on_host(room[:HEADER], stream)).frame_bytes]


@pytest.mark.parametrize("way", ["at once", "one by one"])
@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_a_sum_is_coded_nearly_as_well_as_if_it_had_been_looked_at(
    stream: Stream, n: int, way: str
) -> None:
    """Though nobody knows its values before."""
    dtype, count = DType.BFLOAT16, 24 * TILE
    tensors = [tensor_of("normal", dtype, count, seed=seed) for seed in range(n)]
    values = [on_device(tensor.memory, stream) for tensor in tensors]
    frames = [framed(memory, dtype, stream) for memory in values]
    status = status_word(stream)
    out = device.allocate(codec.bound(count, dtype), 1)
    result = device.allocate(count * dtype.itemsize, 1)

    def fold(inputs: list[DeviceMemory], plain: list[int], summed: int) -> DeviceMemory:
        device_codec.fold_encode(
            "sum", inputs, plain, out, count, dtype, status, stream, out=result, summed=summed
        )
        return out[: codec.info(on_host(out[:HEADER], stream)).frame_bytes]

    if way == "at once":
        size = fold(frames, [], 1).size
    else:
        partial = frames[0]
        for k in range(1, n):
            found = fold([partial, values[k]], [1], k)
            partial = on_device(on_host(found, stream), stream)
        size = partial.size
    assert status_of(status, stream) == 0
    assert size < 1.02 * framed(result, dtype, stream).size
