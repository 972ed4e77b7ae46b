"""Arrays of other libraries, made by hand around memory of the emulated GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import emulated_module
import ml_dtypes
import numpy as np
import pytest
from exporters import READ_ONLY, ROCM, DLPack, Interface

from uzipmpi.kernels import device
from uzipmpi.kernels.device import DeviceArray, DeviceMemory, Stream
from uzipmpi.typing import DType


@pytest.fixture(autouse=True)
def gpu(gpu_module: Path) -> Iterator[ModuleType]:
    """The emulated GPU half, in the place of any other."""
    with emulated_module.installed(gpu_module) as module:
        yield module


@pytest.fixture
def memory() -> DeviceMemory:
    """Memory of the second GPU."""
    return device.allocate(960, 1)


@pytest.mark.parametrize(
    ("typestr", "named", "dtype"),
    [
        ("<f2", None, DType.FLOAT16),
        ("<f4", np.dtype(np.float32), DType.FLOAT32),
        ("<f8", None, DType.FLOAT64),
        (">f4", None, DType.BYTES),
        ("<f16", None, DType.BYTES),
        ("<i4", np.dtype(np.int32), DType.BYTES),
        ("|u1", None, DType.BYTES),
        ("<V2", None, DType.BYTES),
        ("<V2", np.dtype(ml_dtypes.bfloat16), DType.BFLOAT16),
        ("|V1", np.dtype(ml_dtypes.float8_e4m3fn), DType.FLOAT8_E4M3FN),
        ("|V1", "torch.float8_e5m2", DType.FLOAT8_E5M2),
        ("<V4", "torch.bfloat16", DType.BYTES),
    ],
)
def test_data_types_of_the_interface(
    memory: DeviceMemory, typestr: str, named: object, dtype: DType
) -> None:
    found = DeviceArray.of(Interface(memory, typestr, (3, 5), dtype=named))
    assert found.dtype is dtype
    assert found.shape == (3, 5)
    assert found.memory.nbytes == 15 * int(typestr[2:])
    assert (found.memory.address, found.memory.device) == (memory.address, 1)
    assert (found.memory.writable, found.memory.producer) == (True, None)


def test_entries_of_the_interface(memory: DeviceMemory) -> None:
    array = Interface(memory, "<f4", (4, 2), data=(memory.address + 8, True), stream=7)
    found = DeviceMemory.of(array)
    assert (found.address, found.size) == (memory.address + 8, 32)
    assert (found.writable, found.producer) == (False, 7)
    assert (found[4:].writable, found[4:].producer) == (False, 7)
    assert device.device_of(array) == 1
    empty = DeviceArray.of(Interface(memory, "<f4", (4, 0), data=(0, False), strides=(1, 2)))
    assert (empty.memory.size, empty.memory.device, empty.shape) == (0, 0, (4, 0))
    with pytest.raises(ValueError, match="mask"):
        DeviceMemory.of(Interface(memory, "<f4", (4,), mask=array))
    with pytest.raises(ValueError, match="a GPU can reach"):
        DeviceMemory.of(Interface(memory, "<f4", (4,), data=(np.empty(99).ctypes.data, False)))


@pytest.mark.parametrize(
    ("shape", "strides", "contiguous"),
    [
        ((3, 5), None, True),
        ((3, 5), (5, 1), True),
        ((3, 5), (1, 3), False),
        ((3, 5), (6, 1), False),
        ((1, 5), (77, 1), True),
        ((5, 1), (1, 77), True),
        ((5,), (2,), False),
        ((5,), (-1,), False),
        ((0, 5), (9, 9), True),
        ((), (), True),
    ],
)
def test_only_contiguous_arrays(
    memory: DeviceMemory, shape: tuple[int, ...], strides: tuple[int, ...], contiguous: bool
) -> None:
    in_bytes = None if strides is None else tuple(4 * stride for stride in strides)
    for array in (
        Interface(memory, "<f4", shape, strides=in_bytes),
        DLPack(memory, 2, 32, shape, strides=strides),
    ):
        if contiguous:
            assert DeviceMemory.of(array).size == 4 * int(np.prod(shape))
        else:
            with pytest.raises(ValueError, match="C-contiguous"):
                DeviceMemory.of(array)


@pytest.mark.parametrize(
    ("code", "bits", "dtype"),
    [
        (2, 16, DType.FLOAT16),
        (2, 32, DType.FLOAT32),
        (2, 64, DType.FLOAT64),
        (4, 16, DType.BFLOAT16),
        (10, 8, DType.FLOAT8_E4M3FN),
        (12, 8, DType.FLOAT8_E5M2),
        (0, 32, DType.BYTES),
        (6, 8, DType.BYTES),
        (8, 8, DType.BYTES),
    ],
)
@pytest.mark.parametrize("flags", [None, 0, READ_ONLY])
def test_dlpack(memory: DeviceMemory, code: int, bits: int, dtype: DType, flags: Any) -> None:
    array = DLPack(memory, code, bits, (3, 5), offset=16, flags=flags)
    found = DeviceArray.of(array)
    assert (found.dtype, found.shape) == (dtype, (3, 5))
    assert found.memory.address == memory.address + 16
    assert found.memory.nbytes == 15 * bits // 8
    assert found.memory.device == device.device_of(array) == 1
    assert found.memory.writable == (flags != READ_ONLY)


def test_a_capsule_lives_as_long_as_its_memory(memory: DeviceMemory) -> None:
    array = DLPack(memory, 4, 16, (8,))
    found = DeviceArray.of(array)
    part = found.memory[4:8]
    del found
    gc.collect()
    assert array.deleted == 0
    del part
    gc.collect()
    assert array.deleted == 1


@pytest.mark.parametrize("flags", [None, 0])
def test_a_library_orders_its_work_before_the_stream(memory: DeviceMemory, flags: Any) -> None:
    stream = Stream(1)
    array = DLPack(memory, 2, 32, (8,), flags=flags)
    assert DeviceMemory.of(array, stream).producer is None
    assert array.streams[-1] == stream.handle
    # Without a stream the work is before the default one, of which the caller is told.
    assert DeviceMemory.of(array).producer == array.streams[-1] == 1
    array = DLPack(memory, 2, 32, (8,), kind=ROCM, flags=flags)
    assert DeviceMemory.of(array).producer == array.streams[-1] == 0


def test_an_interface_that_names_no_stream_is_passed_over(memory: DeviceMemory) -> None:
    old = {"version": 2, "data": (memory.address, True), "typestr": "<f4", "shape": (8,)}
    array = DLPack(memory, 2, 32, (8,), interface=old)
    found = DeviceMemory.of(array, Stream(1))
    assert len(array.streams) == 1
    assert not found.writable
    new = {**old, "version": 3, "stream": 2}
    array = DLPack(memory, 2, 32, (8,), interface=new)
    assert DeviceMemory.of(array).producer == 2
    assert array.streams == []
    alone = Interface(memory, "<f4", (8,), version=2)
    assert DeviceMemory.of(alone).producer is None


def test_values_that_are_no_whole_bytes(memory: DeviceMemory) -> None:
    with pytest.raises(ValueError, match="values of 4 bits"):
        DeviceMemory.of(DLPack(memory, 0, 4, (8,)))
    assert DeviceArray.of(DLPack(memory, 2, 32, (8,), lanes=2)).memory.size == 64
    assert DeviceArray.of(DLPack(memory, 2, 32, (8,), lanes=2)).dtype is DType.BYTES


def test_our_own_memory(memory: DeviceMemory) -> None:
    assert DeviceMemory.of(memory) is memory
    assert DeviceArray.of(memory) == DeviceArray(memory, DType.BYTES, (960,))
    assert device.device_of(memory) == 1


@pytest.mark.parametrize("other", [np.zeros(3), b"bytes", None, [1.0]])
def test_what_is_not_in_gpu_memory(other: object) -> None:
    assert device.device_of(other) is None
    with pytest.raises(TypeError, match=f"GPU memory, found {type(other).__name__}"):
        DeviceMemory.of(other)
