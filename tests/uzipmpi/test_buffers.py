"""Buffer specifications: what they name, what is left to mpi4py, and what goes to MPI."""

from __future__ import annotations

import array
from collections.abc import Iterator
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from uzipmpi import buffers
from uzipmpi.typing import DType, Tensor

F4 = np.arange(12, dtype=np.float32)
BF16 = np.arange(12).astype(ml_dtypes.bfloat16)
E5M2 = np.arange(12).astype(ml_dtypes.float8_e5m2)


class Exporter:
    """Memory behind ``__cuda_array_interface__``, as mpi4py's own tests have it, on the host."""

    def __init__(self, values: Any) -> None:
        self.__cuda_array_interface__ = values.__array_interface__


class Torch:
    """What a torch tensor on the CPU shows of itself: DLPack, and a data type with torch's name."""

    def __init__(self, values: Any, dtype: str) -> None:
        self._values, self.dtype = values, dtype

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


@pytest.mark.parametrize(
    ("spec", "dtype", "start", "stop"),
    [
        (F4, DType.FLOAT32, 0, 48),
        (F4.reshape(3, 4).T, DType.FLOAT32, 0, 48),
        (F4[2:5], DType.FLOAT32, 8, 20),
        ([F4, 3], DType.FLOAT32, 0, 12),
        ([F4, np.int64(3)], DType.FLOAT32, 0, 12),
        ([F4, (3, 2)], DType.FLOAT32, 8, 20),
        ([F4, [3, 2]], DType.FLOAT32, 8, 20),
        ((F4, MPI.FLOAT), DType.FLOAT32, 0, 48),
        ([F4, "f"], DType.FLOAT32, 0, 48),
        ([F4, 3, "f4"], DType.FLOAT32, 0, 12),
        ([F4, (3, 2), "f"], DType.FLOAT32, 8, 20),
        ([F4, (None, 2), "f"], DType.FLOAT32, 8, 48),
        ([F4, 3, 2, MPI.FLOAT], DType.FLOAT32, 8, 20),
        ([F4, 1, 2, MPI.DOUBLE], DType.FLOAT64, 16, 24),
        ([F4, MPI.BYTE], DType.BYTES, 0, 48),
        ([F4, MPI.INT], DType.BYTES, 0, 48),
        ([F4, 3, 1, "i"], DType.BYTES, 4, 16),
        ([F4, np.dtype("f4")], DType.FLOAT32, 0, 48),
        ([F4, np.dtype("i4")], DType.BYTES, 0, 48),
        ([F4, 0], DType.FLOAT32, 0, 0),
        (F4[:0], DType.FLOAT32, 0, 0),
        (F4.astype(">f4").view("f4"), DType.FLOAT32, 0, 48),
        ([None, MPI.FLOAT], DType.FLOAT32, 0, 0),
        ([None, 0, MPI.FLOAT], DType.FLOAT32, 0, 0),
        (BF16, DType.BFLOAT16, 0, 24),
        ([BF16, 3], DType.BFLOAT16, 0, 6),
        ([BF16.view("u1"), "bfloat16"], DType.BFLOAT16, 0, 24),
        ([BF16.view("u2"), 2, 1, "bfloat16"], DType.BFLOAT16, 2, 6),
        ([F4, np.dtype(ml_dtypes.bfloat16)], DType.BFLOAT16, 0, 48),
        (E5M2, DType.FLOAT8_E5M2, 0, 12),
        ([E5M2, "float8_e5m2"], DType.FLOAT8_E5M2, 0, 12),
        (array.array("d", [1, 2, 3]), DType.FLOAT64, 0, 24),
        (array.array("i", [1, 2, 3]), DType.BYTES, 0, 12),
        (bytearray(5), DType.BYTES, 0, 5),
        (memoryview(F4), DType.FLOAT32, 0, 48),
        (np.zeros(3, complex), DType.BYTES, 0, 48),
        (np.zeros(3, "f2"), DType.FLOAT16, 0, 6),
        (np.zeros((), "f8"), DType.FLOAT64, 0, 8),
        (Exporter(F4), DType.FLOAT32, 0, 48),
        ([Exporter(F4), MPI.FLOAT], DType.FLOAT32, 0, 48),
        (Torch(F4, "torch.float32"), DType.FLOAT32, 0, 48),
        (Torch(BF16.view("i2"), "torch.bfloat16"), DType.BFLOAT16, 0, 24),
    ],
    ids=lambda value: "" if isinstance(value, (int, DType)) else type(value).__name__,
)
def test_what_a_block_is(spec: Any, dtype: DType, start: int, stop: int) -> None:
    tensor = buffers.block(spec, writable=True)
    assert tensor is not None
    assert tensor.dtype is dtype
    assert tensor.nbytes == stop - start
    if stop > start and (owner := spec[0] if isinstance(spec, (list, tuple)) else spec) is F4:
        assert tensor.memory.ctypes.data == owner.ctypes.data + start


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("of", [lambda a: np.ma.masked_array(a, a > 4), np.asmatrix])
def test_subclasses_of_arrays_are_their_memory(of: Any) -> None:
    spec = of(F4.reshape(3, 4))
    for tensor in (buffers.block(spec, writable=True), Tensor.of(spec)):
        assert tensor is not None
        assert tensor.memory.ctypes.data == F4.ctypes.data
        assert tensor[5:7].array.tolist() == [5, 6]


READ_ONLY = np.zeros(3, np.float32)
READ_ONLY.flags.writeable = False
LEFT_TO_MPI4PY = [
    F4[::2],
    F4[::-1],
    F4.reshape(3, 4)[:, :2],
    F4.astype(">f4"),
    READ_ONLY,
    b"bytes",
    None,
    [F4],
    [F4, 1, 2, 3, 4],
    [F4, -1],
    [F4, (1, -1)],
    [F4, (0, 13)],
    Exporter(F4.astype(">f4")),
    [F4, "no such type"],
    [F4, (1, 2, 3)],
    [F4, 1, MPI.DATATYPE_NULL],
    [F4, 2, MPI.SHORT_INT],
    [F4[:3], MPI.DOUBLE],
    [1.0, 2.0],
    3.0,
    np.zeros(3, object),
    np.zeros(3, "M8[s]"),
    [MPI.BOTTOM, 1, MPI.FLOAT],
]


@pytest.mark.parametrize("spec", LEFT_TO_MPI4PY, ids=lambda spec: str(spec)[:20])
def test_what_is_left_to_mpi4py(spec: Any) -> None:
    assert buffers.block(spec, writable=True) is None


def test_derived_datatypes_are_left_to_mpi() -> None:
    kind = MPI.FLOAT.Create_vector(2, 1, 3).Commit()
    assert buffers.block([F4, 1, kind]) is None
    assert buffers.is_derived([F4, 1, kind])
    assert not buffers.is_derived([F4, 1, MPI.FLOAT])
    assert not buffers.is_derived(F4)
    kind.Free()


@pytest.mark.parametrize("spec", [[F4, 13], [F4, (3, 10)], [F4, 7, "d"]], ids=str)
def test_a_buffer_that_is_too_small(spec: Any) -> None:
    with pytest.raises(ValueError, match=r"expected a buffer of at least (52|56) bytes.*found 48"):
        buffers.block(spec)


def test_a_negative_count_of_one_rank() -> None:
    with pytest.raises(ValueError, match="expected a count of at least 0, found -1"):
        buffers.blocks([F4, [1, -1]], 2)


def test_counts_apply_to_each_block() -> None:
    assert sizes([buffers.block([F4, 2, MPI.FLOAT], n_blocks=3)]) == [24]
    assert sizes([buffers.block(F4, n_blocks=3)]) == [48]
    assert buffers.block(F4, n_blocks=5) is None  # mpi4py: not a multiple


def sizes(tensors: Any) -> list[int]:
    return [tensor.nbytes for tensor in tensors]


@pytest.mark.parametrize(
    ("spec", "places"),
    [
        (F4, [(0, 4), (4, 4), (8, 4)]),
        (F4[:11], [(0, 4), (4, 4), (8, 3)]),
        ([F4, 2], [(0, 2), (2, 2), (4, 2)]),
        ([F4, [1, 2, 3]], [(0, 1), (1, 2), (3, 3)]),
        ([F4, (1, 2, 3), "f"], None),
        ([F4, ([1, 2, 3], [0, 4, 8])], [(0, 1), (4, 2), (8, 3)]),
        ([F4, ([1, 2, 3], None)], [(0, 1), (1, 2), (3, 3)]),
        ([F4, (2, 4)], [(0, 2), (4, 2), (8, 2)]),
        ([F4, MPI.FLOAT], [(0, 4), (4, 4), (8, 4)]),
        ([F4, np.array([1, 0, 2]), [9, 9, 0], "f"], [(9, 1), (0, 0), (0, 2)]),
        ([F4, np.array(2)], [(0, 2), (2, 2), (4, 2)]),
        ([F4, [1, 2]], None),
        ([F4, "d"], [(0, 4), (4, 4), (8, 4)]),
        ([F4[:11], "d"], None),
    ],
    ids=lambda value: "" if value is None else str(value)[-24:],
)
def test_vectors(spec: Any, places: list[tuple[int, int]] | None) -> None:
    tensors = buffers.blocks(spec, 3)
    if places is None:
        assert tensors is None
        return
    assert tensors is not None
    assert sizes(tensors) == [4 * count for _, count in places]
    for tensor, (start, count) in zip(tensors, places, strict=True):
        if count:
            assert tensor.memory.ctypes.data == F4.ctypes.data + 4 * start


def test_mpi4py_reads_what_plain_gives_it() -> None:
    """Every specification, sent to oneself by mpi4py, brings the bytes that ``block`` names."""
    for spec in ([BF16, 3], BF16, [BF16.view("u1"), "bfloat16"], [BF16, (2, 5)], E5M2, F4, [F4, 5]):
        expected = buffers.block(spec)
        assert expected is not None
        received = bytearray(100)
        status = MPI.Status()
        MPI.COMM_SELF.Sendrecv(buffers.plain(spec), 0, recvbuf=received, source=0, status=status)
        assert status.count == expected.nbytes
        assert received[: status.count] == expected.memory.tobytes()
    assert buffers.plain(F4) is F4
    assert buffers.plain(None) is None


def test_our_datatypes() -> None:
    for dtype, size in ((DType.BFLOAT16, 2), (DType.FLOAT8_E4M3FN, 1), (DType.FLOAT8_E5M2, 1)):
        kind = buffers.datatype(dtype)
        assert (kind.size, kind.extent) == (size, size)
        assert kind.name == f"uzipmpi.{dtype.name}"
        assert buffers.datatype(dtype) is kind
    assert buffers.datatype(DType.FLOAT32) == MPI.FLOAT


def test_numpys_names_of_types() -> None:
    values = np.arange(3, dtype=np.float32)
    assert buffers.plain([values, "float32"])[1] == MPI.FLOAT
    assert buffers.plain([values, 3, "f"])[1:] == [3, MPI.FLOAT]
    assert buffers.plain([np.arange(3, dtype=np.int32), "i"])[1] == "i"


@pytest.fixture
def without_half(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """mpi4py's wheel on an MPI without half precision: the type has a handle, of nothing."""
    cached = (buffers._datatypes, buffers._dtypes, buffers._extra, buffers._integers)
    monkeypatch.setattr(MPI, "FLOAT16_T", MPI.Datatype.fromhandle(0))
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("without_half")
def test_half_precision_that_mpi_lacks() -> None:
    half = np.arange(12, dtype=np.float16)
    assert buffers.plain(half).dtype == np.uint16
    assert buffers.plain_array(half).dtype == np.uint16
    memory, kind = buffers.plain([half, "e"])
    assert memory.nbytes == half.nbytes
    assert kind.Get_size() == 2
    assert not buffers.datatype(DType.FLOAT16).is_predefined
    assert buffers.plain(F4) is F4


def test_in_place() -> None:
    assert buffers.is_in_place(None)
    assert buffers.is_in_place(MPI.IN_PLACE)
    assert not buffers.is_in_place(MPI.BOTTOM)
    assert not buffers.is_in_place(F4)


class FarArray:
    """An array in GPU memory, to a uzipmpi without a GPU half."""

    dtype = np.dtype(np.float32)
    __cuda_array_interface__: ClassVar = {
        "version": 3,
        "shape": (4,),
        "typestr": "<f4",
        "data": (1 << 40, False),
    }


@pytest.mark.parametrize("aware", [False, True])
def test_gpu_memory_without_the_gpu_half(monkeypatch: pytest.MonkeyPatch, aware: bool) -> None:
    """It is never touched: MPI takes it, or the error says what to install."""
    monkeypatch.setattr(buffers, "_out_of_reach", lambda buffer: isinstance(buffer, FarArray))
    monkeypatch.setattr(buffers, "is_cuda_aware", lambda: aware)
    monkeypatch.setattr(buffers.device, "is_available", lambda: False)
    spec = [FarArray(), MPI.FLOAT]
    assert buffers.on_device(spec)
    if aware:
        assert buffers.block(spec) is None
        assert buffers.plain(spec) is spec
        return
    for understand in (buffers.block, buffers.plain, buffers.message, buffers.plain_w):
        with pytest.raises(TypeError, match="UZIPMPI_GPU=cuda"):
            understand(spec)
