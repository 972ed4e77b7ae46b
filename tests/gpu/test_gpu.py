"""Arrays in GPU memory, where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from samples import FLOATS, PATTERNS, TILE, tensor_of

import uzipmpi
from uzipmpi.kernels import codec, gpu
from uzipmpi.typing import DType, Tensor

try:
    import cupy

    from uzipmpi.kernels import _gpu  # noqa: F401

    cupy.cuda.runtime.getDeviceCount()
except Exception as error:  # whatever a machine without a GPU says
    pytest.skip(f"no GPU, CuPy or GPU half here: {error}", allow_module_level=True)


def on_device(tensor: Tensor) -> Any:
    """Return the bytes of a tensor in GPU memory."""
    return cupy.asarray(tensor.memory)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("pattern", sorted(PATTERNS))
@pytest.mark.parametrize("name", ["tier", "ans"])
def test_frames_pass_between_cpu_and_gpu(name: str, pattern: str, dtype: DType) -> None:
    tensor = tensor_of(pattern, dtype, 70 * TILE + 77, seed=8)
    frame = cupy.empty(codec.bound(tensor.count, dtype), np.uint8)
    gpu.encode(on_device(tensor), frame, dtype=dtype, codec=name)
    host = cupy.asnumpy(frame)
    out = Tensor(np.empty_like(tensor.memory), dtype)
    codec.decode(host[: codec.info(host).frame_bytes], out)
    assert (out.memory == tensor.memory).all()

    size = codec.encode(tensor, host, codec=name)
    values, status = cupy.empty(tensor.nbytes, np.uint8), cupy.zeros(1, np.uint32)
    gpu.decode(cupy.asarray(host[:size]), values, status, dtype=dtype)
    assert int(status[0]) == 0
    assert (cupy.asnumpy(values) == tensor.memory).all()


@pytest.mark.parametrize("name", ["tier", "ans"])
@pytest.mark.parametrize("dtype", [DType.FLOAT8_E5M2, DType.BFLOAT16], ids=lambda one: one.name)
def test_more_values_than_a_word_counts(dtype: DType, name: str) -> None:
    count = (1 << 32) + 5 * TILE + 7
    nbytes = count * dtype.itemsize
    if cupy.cuda.runtime.memGetInfo()[0] < 5 * nbytes:
        pytest.skip("too little memory")
    some = on_device(tensor_of("normal", dtype, 10_000 * TILE, seed=10))
    values = cupy.empty(nbytes, np.uint8)
    for start in range(0, nbytes, some.size):
        part = values[start : start + some.size]
        part[:] = some[: part.size]
    frame = cupy.empty(codec.bound(count, dtype), np.uint8)
    gpu.encode(values, frame, dtype=dtype, codec=name)
    info = codec.info(cupy.asnumpy(frame[:64]))
    assert info.count == count
    assert info.frame_bytes < 0.9 * nbytes
    out, status = cupy.empty_like(values), cupy.zeros(1, np.uint32)
    gpu.decode(frame[: info.frame_bytes], out, status, dtype=dtype)
    assert int(status[0]) == 0
    for start in range(0, nbytes, some.size):
        part = out[start : start + some.size]
        assert (part == some[: part.size]).all()


def milliseconds(call: Callable[[], None], check: Callable[[], None]) -> float:
    """Return the least of five times that a call takes, each result of which is checked."""
    times = []
    for _ in range(5):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop))
        check()
    return min(times)


@pytest.mark.parametrize("call", ["encode", "encode_ans", "decode", "fold", "fold_encode"])
def test_fewer_blocks_take_longer_and_give_the_same(call: str) -> None:
    """A cap that a launch ignored would show in its time alone."""
    dtype = DType.BFLOAT16
    values = on_device(tensor_of("normal", dtype, 16_000 * TILE, seed=9))
    room = cupy.empty(codec.bound(values.size // 2, dtype), np.uint8)
    gpu.encode(values, room, dtype=dtype)
    frame = room[: codec.info(cupy.asnumpy(room[:64])).frame_bytes].copy()
    out, status = cupy.empty_like(values), cupy.zeros(1, np.uint32)
    calls: dict[str, Callable[[int], None]] = {
        "encode": lambda most: gpu.encode(values, room, dtype=dtype, max_blocks=most),
        "encode_ans": lambda most: gpu.encode(
            values, room, dtype=dtype, codec="ans", max_blocks=most
        ),
        "decode": lambda most: gpu.decode(frame, out, status, dtype=dtype, max_blocks=most),
        "fold": lambda most: gpu.decode_reduce(
            "max", [frame, frame], out, status, dtype=dtype, max_blocks=most
        ),
        "fold_encode": lambda most: gpu.decode_reduce_encode(
            "max",
            [frame, frame],
            room,
            status,
            count=values.size // 2,
            dtype=dtype,
            out=out,
            max_blocks=most,
        ),
    }

    def check() -> None:
        if call.startswith(("encode", "fold_encode")):
            size = codec.info(cupy.asnumpy(room[:64])).frame_bytes
            gpu.decode(room[:size], out, status, dtype=dtype)
        assert (out == values).all()

    few = milliseconds(lambda: calls[call](4), check)
    assert few > 4 * milliseconds(lambda: calls[call](0), check)
    assert int(status[0]) == 0


@pytest.mark.parametrize("call", ["tier", "ans", "fold_encode", "fold_encode_keep"])
def test_a_frame_that_has_no_room_takes_little_longer(call: str) -> None:
    """All blocks make it raw: one would need a hundred times as long."""
    dtype, count = DType.BFLOAT16, 32_000 * TILE
    values = cupy.random.default_rng(5).integers(0, 256, 2 * count, np.uint8)
    values[1::2] &= 0xBF  # no values that are no numbers: folds may change them
    room, like = (cupy.empty(codec.bound(count, dtype), np.uint8) for _ in range(2))
    gpu.encode(on_device(tensor_of("normal", dtype, 100 * TILE, seed=3)), like, dtype=dtype)
    status, out = cupy.zeros(1, np.uint32), cupy.empty_like(values)

    def make_frame() -> None:
        if not call.startswith("fold"):
            gpu.encode(values, room, dtype=dtype, codec=call)
            return
        gpu.decode_reduce_encode(
            "max",
            [values],
            room,
            status,
            count=count,
            dtype=dtype,
            plain=[0],
            like=like,
            out=out if call.endswith("keep") else None,
        )

    def check() -> None:
        assert codec.info(cupy.asnumpy(room[:64])).codec == "raw"
        assert (room[64:] == values).all()

    raw = milliseconds(lambda: gpu.encode(values, room, dtype=dtype, codec="raw"), check)
    assert milliseconds(make_frame, check) < 12 * raw
    assert int(status[0]) == 0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("options", [{}, {"codec": "ans"}, {"verify": True}, {"codec": "raw"}])
def test_compress_and_decompress(dtype: Any, options: dict[str, Any]) -> None:
    values = cupy.random.default_rng(1).standard_normal(50_001).astype(dtype)[1:]
    frame = uzipmpi.compress(values, **options)
    assert isinstance(frame, cupy.ndarray)
    assert frame.nbytes < 1.001 * values.nbytes + 64
    back = uzipmpi.decompress(frame, verify=options.get("verify", False))
    assert back.dtype == values.dtype
    assert (back.view(np.uint8) == values.view(np.uint8)).all()
    assert (uzipmpi.decompress(cupy.asnumpy(frame)) == cupy.asnumpy(values)).all()


def test_a_frame_that_begins_anywhere() -> None:
    values = cupy.random.default_rng(2).standard_normal(20_000).astype(np.float32)
    room = cupy.empty(uzipmpi.compress_bound(values.size, np.float32) + 3, np.uint8)
    frame = uzipmpi.compress(values, out=room[3:])
    assert (uzipmpi.decompress(frame) == values).all()


def test_a_damaged_frame_raises() -> None:
    frame = uzipmpi.compress(cupy.random.default_rng(3).standard_normal(20_000).astype(np.float32))
    with pytest.raises(uzipmpi.FormatError, match="size"):
        uzipmpi.decompress(frame[:-16])
    frame[0] = 0
    with pytest.raises(uzipmpi.FormatError, match="magic"):
        uzipmpi.decompress(frame)


def test_a_captured_graph_codes_new_values() -> None:
    generator = cupy.random.default_rng(4)
    values, back = cupy.empty(100_000, np.float32), cupy.empty(100_000, np.float32)
    frame = cupy.empty(uzipmpi.compress_bound(values.size, np.float32), np.uint8)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        gpu.encode(values, frame)  # makes the stream's scratch
        stream.begin_capture()
        gpu.encode(values, frame)
        graph = stream.end_capture()
        for _ in range(3):
            values[:] = generator.standard_normal(values.size)
            graph.launch()
            uzipmpi.decompress(frame[: int(frame[16:24].view(np.uint64)[0])], out=back)
            assert (back == values).all()
