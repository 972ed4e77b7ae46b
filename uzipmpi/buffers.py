"""Buffer specifications, as mpi4py has them, to tensors.

What is not understood here gives ``None``: the caller hands the specification to mpi4py, which
either knows it (a derived datatype) or raises its own error.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from uzipmpi.cuda_aware import is_cuda_aware
from uzipmpi.kernels import device
from uzipmpi.kernels.exchange import is_torch, torch_place
from uzipmpi.typing import Bytes, DType, Tensor

__all__ = [
    "INT_MAX",
    "address",
    "block",
    "blocks",
    "datatype",
    "entire",
    "in_place_of",
    "is_derived",
    "is_in_place",
    "message",
    "on_device",
    "pieces",
    "place",
    "plain",
    "plain_array",
    "plain_tensor",
    "plain_w",
    "typed",
    "without_gpu_half",
]

INT_MAX = 2**31 - 1
# cuda.h: CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
CU_MEMORY_TYPE, CU_DEVICE = 2, 2
# How arrays of other libraries offer memory of a GPU.
PROTOCOLS = ("__cuda_array_interface__", "__dlpack_device__")


class Element(NamedTuple):
    """What one entry of a buffer is; ``size`` is its extent in bytes."""

    dtype: DType
    size: int


class Parts(NamedTuple):
    """The items of a specification; ``None`` is not given."""

    buffer: Any
    counts: Any
    displs: Any
    type: Any


def block(spec: Any, *, writable: bool = False, n_blocks: int = 1) -> Tensor | None:
    """Return the memory that a block specification names, without a copy.

    Parameters
    ----------
    spec
        ``buf``, ``[buf, count]``, ``[buf, (count, displ)]``, ``[buf, TYPE]``,
        ``[buf, count, TYPE]``, ``[buf, (count, displ), TYPE]`` or ``[buf, count, displ, TYPE]``.
    writable
        The buffer receives.
    n_blocks
        How often the count applies, one block after the other; an inferred count is that of all.

    Raises
    ------
    ValueError
        If the buffer is smaller than the count says.
    """
    if type(spec) is np.ndarray and n_blocks == 1 and (dtype := _named(spec.dtype)):
        memory = _memory(spec, writable)
        return None if memory is None else Tensor(memory, dtype)
    if n_blocks == 1 and (whole := _whole(spec)) is not None:
        usable = whole.memory.writable or not writable
        return Tensor(cast(Bytes, whole.memory), whole.dtype) if usable else None
    parts = _split(spec, (list, tuple))
    entries = parts and _entries(parts, writable)
    if not parts or not entries:
        return None
    memory, element = entries
    displ = 0 if parts.displs is None else operator.index(parts.displs)
    if parts.counts is None:
        available = memory.size - displ * element.size
        if available % (element.size * n_blocks):
            return None
        count = available // element.size
    else:
        count = operator.index(parts.counts) * n_blocks
    if count < 0 or not 0 <= displ * element.size <= memory.size:
        return None
    return _cut(memory, element, count, displ)


def blocks(spec: Any, n: int, *, writable: bool = False) -> list[Tensor] | None:
    """Return the ``n`` pieces of memory that a vector specification names, one for each rank.

    Parameters
    ----------
    spec
        ``buf``, ``[buf, counts]``, ``[buf, (counts, displs)]``, ``[buf, TYPE]``,
        ``[buf, counts, TYPE]``, ``[buf, (counts, displs), TYPE]`` or ``[buf, counts, displs,
        TYPE]``.
    n
        Number of ranks.
    writable
        The buffer receives.

    Raises
    ------
    ValueError
        If the buffer is smaller than counts and displacements say.
    """
    parts = _split(spec, tuple)
    entries = parts and _entries(parts, writable)
    if not parts or not entries:
        return None
    memory, element = entries
    if parts.counts is None and memory.size % element.size:
        return None
    counts = _counts(parts.counts, memory.size // element.size, n)
    displs = _displacements(parts.displs, counts)
    if len(counts) != n or len(displs) != n:
        return None
    return [_cut(memory, element, *place) for place in zip(counts, displs, strict=True)]


def plain(spec: Any) -> Any:
    """Return the specification in words that MPI knows: bf16 and fp8 get a datatype of ours."""
    if on_device(spec):
        return _if_aware(spec)
    is_list = isinstance(spec, (list, tuple))
    if not is_list and type(spec) is np.ndarray:
        if (integer := _integers().get(spec.dtype.num)) is not None:
            return spec.view(integer)
        if spec.dtype.isbuiltin == 1:
            return spec
    extra = _extra()
    items = list(spec) if is_list and len(spec) else [spec]
    buffer = items[0]
    kind = _kind(buffer)
    if kind in extra and isinstance(buffer, np.ndarray) and (view := _flat(buffer)) is not None:
        items[0] = view
    if len(items) > 1 and isinstance(items[-1], (str, np.dtype)):
        element = _element(items[-1])
        # mpi4py has no "float32".
        if element and (element.dtype is not DType.BYTES or isinstance(items[-1], np.dtype)):
            items[-1] = datatype(element.dtype, items[-1])
    elif kind in extra and (len(items) == 1 or not isinstance(items[-1], MPI.Datatype)):
        items.append(datatype(kind))
    else:
        return spec
    return items


def plain_w(spec: Any) -> Any:
    """Return what :func:`plain` does for a specification with a list of datatypes at its end."""
    if on_device(spec):
        return _if_aware(spec)
    if not isinstance(spec, (list, tuple)) or len(spec) < 2:
        return spec
    items = list(spec)
    if _kind(items[0]) in _extra() and isinstance(items[0], np.ndarray):
        view = _flat(items[0])
        items[0] = items[0] if view is None else view
    if isinstance(items[-1], (list, tuple)):
        items[-1] = [_plain_type(kind) for kind in items[-1]]
    return items


def _plain_type(kind: Any) -> Any:
    element = _element(kind) if isinstance(kind, (str, np.dtype)) else None
    return datatype(element.dtype, kind) if element and element.dtype in _extra() else kind


def message(spec: Any) -> Any:
    """Return what :func:`plain` does for a single message, whose count may pass a C ``int``."""
    buffer = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    if isinstance(buffer, np.ndarray) and buffer.nbytes > INT_MAX:
        tensor = block(spec)
        if tensor is not None and tensor.nbytes > INT_MAX:
            return plain_tensor(tensor)
    return plain(spec)


def plain_array(array: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Return what mpi4py and memoryview take for an array's numbers, fast.

    That is the array itself, or integers if NumPy lends no buffer of the type (bf16, fp8). None
    for other types, and for arrays that have to be looked at more closely.
    """
    dtype = array.dtype
    if (integer := _integers().get(dtype.num)) is not None:
        return array.view(integer)
    plain = dtype.isbuiltin == 1 and dtype.kind in "fiub" and dtype.itemsize <= 8
    return array if plain else None


def plain_tensor(tensor: Tensor) -> list[Any]:
    """Return a specification of the tensor's bytes; any size fits a C ``int`` of either MPI."""
    if tensor.nbytes <= INT_MAX:
        return [tensor.memory, tensor.nbytes, MPI.BYTE]
    return [tensor.memory, 1, _large(tensor.nbytes)]


def datatype(dtype: DType, numpy: Any = None) -> MPI.Datatype:
    """Return MPI's datatype; for bf16 and fp8, which MPI may lack, a contiguous one of bytes."""
    if dtype is DType.BYTES:
        return MPI.BYTE if numpy is None else MPI.Datatype.fromcode(np.dtype(numpy).char)
    return _datatypes()[dtype]


def pieces(spec: Any, n: int, *, vector: bool = False) -> list[Any] | None:
    """Return ``n`` block specifications, one for each rank, of one with a derived datatype."""
    parts = _split(spec, tuple if vector else (list, tuple))
    if parts is None or not isinstance(parts.type, MPI.Datatype):
        return None
    memory = None if parts.counts is not None else _memory(parts.buffer, False)
    available = 0 if memory is None else memory.size // parts.type.extent
    if vector:
        counts = _counts(parts.counts, available, n)
        displs = _displacements(parts.displs, counts)
    else:
        count = available // n if parts.counts is None else operator.index(parts.counts)
        first = 0 if parts.displs is None else operator.index(parts.displs)
        counts, displs = [count] * n, [first + rank * count for rank in range(n)]
    places = zip(counts, displs, strict=True)
    return [[parts.buffer, (count, displ), parts.type] for count, displ in places]


def is_derived(spec: Any) -> bool:
    """Whether a specification names a datatype that is not contiguous values of one kind."""
    kind = spec[-1] if isinstance(spec, (list, tuple)) and len(spec) > 1 else None
    return isinstance(kind, MPI.Datatype) and kind != MPI.DATATYPE_NULL and _element(kind) is None


def on_device(spec: Any) -> bool:
    """Whether a specification names memory that only a GPU can read."""
    buffer = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    if type(buffer) is np.ndarray or not any(hasattr(type(buffer), name) for name in PROTOCOLS):
        return False
    if not device.is_available():
        return _out_of_reach(buffer)
    try:
        return device.device_of(buffer) is not None
    except ValueError:
        return False  # memory of the host that is offered in this way


def _out_of_reach(buffer: Any) -> bool:
    """Whether a buffer is in GPU memory though uzipmpi was installed without its GPU half."""
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is None or (cuda := _cuda()) is None:
        return False
    kind = ctypes.c_uint(0)
    address = ctypes.c_uint64(interface["data"][0])
    known = cuda.cuPointerGetAttribute(ctypes.byref(kind), CU_MEMORY_TYPE, address) == 0
    return known and kind.value == CU_DEVICE


def _cuda() -> ctypes.CDLL | None:
    """Return CUDA's driver if something loaded it: without it no memory is a GPU's."""
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def entire(spec: Any) -> Tensor:
    """Return all memory of the buffer in a specification, of which that may name a part.

    Raises
    ------
    ValueError
        If the buffer is not contiguous.
    """
    buffer = spec[0] if isinstance(spec, (list, tuple)) else spec
    memory = _memory(buffer, False)
    if memory is None:
        raise ValueError("expected a contiguous buffer, found one that is not")
    return Tensor(memory, _kind(buffer))


def typed(spec: Any, tensor: Tensor) -> Any:
    """Return a specification of the same part of GPU memory, with a datatype of MPI's.

    Parameters
    ----------
    spec
        The specification.
    tensor
        All of its buffer.
    """
    items = [tensor.memory, *spec[1:]] if isinstance(spec, (list, tuple)) else [tensor.memory]
    if len(items) > 1 and isinstance(items[-1], (MPI.Datatype, str, np.dtype)):
        items[-1] = _plain_type(items[-1])
    else:
        buffer = spec[0] if isinstance(spec, (list, tuple)) else spec
        items.append(datatype(tensor.dtype, _numpy_kind(buffer)))
    return items


def in_place_of(spec: Any, host: Tensor) -> Any:
    """Return a specification that names the same part of a copy of its buffer."""
    buffer = spec[0] if isinstance(spec, (list, tuple)) else spec
    array = host.memory.view(_numpy_kind(buffer))
    return [array, *spec[1:]] if isinstance(spec, (list, tuple)) else array


def is_in_place(spec: Any) -> bool:
    """Whether an argument stands for MPI's "in place"."""
    return spec is None or (isinstance(spec, type(MPI.IN_PLACE)) and spec is MPI.IN_PLACE)


def address(memory: Any) -> int:
    """Return where memory begins, of the host or of a GPU."""
    start: int = memory.ctypes.data if isinstance(memory, np.ndarray) else memory.address
    return start


def place(spec: Any) -> tuple[Any, ...] | None:
    """Return what tells a whole array of floats in GPU memory from all others; fast for torch's.

    None for other specifications than ``buf`` and ``[buf, "type"]``.
    """
    name = None
    if isinstance(spec, (list, tuple)):
        if len(spec) != 2 or not isinstance(spec[1], str):
            return None
        spec, name = spec
    if is_torch(spec):
        return (name, *torch_place(spec)) if spec.is_cuda else None
    if not on_device(spec) or without_gpu_half():
        return None
    try:
        memory, dtype, _ = device.DeviceArray.of(spec)
    except (TypeError, ValueError):  # whoever looks at it more closely says why
        return None
    if dtype is DType.BYTES and name is None:
        return None
    return name, dtype, memory.address, memory.size, memory.device, memory.writable


def _whole(spec: Any) -> device.DeviceArray | None:
    """Return an array of floats in GPU memory that is all of a specification; fast for torch's."""
    if isinstance(spec, (list, tuple)):
        return None
    if not is_torch(spec):
        if not on_device(spec) or without_gpu_half():
            return None
    elif not spec.is_cuda or not device.is_available():
        return None
    array = device.DeviceArray.of(spec)
    return None if array.dtype is DType.BYTES else array


def _split(spec: Any, pair: Any) -> Parts | None:
    """Name the items; ``pair`` are the types that hold a count and a displacement."""
    if not isinstance(spec, (list, tuple)):
        return None if spec is None else Parts(spec, None, None, None)
    if len(spec) == 4:
        return Parts(*spec)
    if len(spec) == 3:
        buffer, counts, kind = spec
    elif len(spec) == 2:
        buffer, counts = spec
        kind = None
        if isinstance(counts, (MPI.Datatype, str, np.dtype)):
            counts, kind = None, counts
    else:
        return None
    if not isinstance(counts, pair):
        return Parts(buffer, counts, None, kind)
    if len(counts) != 2:
        return None
    count, displ = counts
    return Parts(buffer, count, displ, kind)


def _entries(parts: Parts, writable: bool) -> tuple[Bytes, Element] | None:
    """Return a buffer's memory and its entries; None for derived types and wrong buffers."""
    if parts.buffer is None:
        memory: Bytes | None = np.empty(0, np.uint8)
    else:
        memory = _memory(parts.buffer, writable)
    if memory is None:
        return None
    if parts.type is None:
        element = Element(DType.BYTES, 1) if parts.buffer is None else _own_element(parts.buffer)
    else:
        element = _element(parts.type)
    return (memory, element) if element else None


def _cut(memory: Bytes, element: Element, count: int, displ: int) -> Tensor:
    start, stop = displ * element.size, (displ + count) * element.size
    if count < 0:
        raise ValueError(f"message: expected a count of at least 0, found {count}")
    if count and not 0 <= start <= stop <= memory.size:
        raise ValueError(
            f"message: expected a buffer of at least {stop} bytes for count {count} and "
            f"displacement {displ} of {element.size}-byte entries, found {memory.size} bytes"
        )
    return Tensor(memory[start:stop] if count else memory[:0], element.dtype)


def _counts(given: Any, available: int, n: int) -> list[int]:
    if given is None:
        return [available // n + (rank < available % n) for rank in range(n)]
    if _is_number(given):
        return [operator.index(given)] * n
    return [operator.index(count) for count in given]


def _is_number(given: Any) -> bool:
    """Whether a count stands for all ranks; an array without dimensions does."""
    return isinstance(given, (int, np.integer)) or getattr(given, "ndim", None) == 0


def _displacements(given: Any, counts: Sequence[int]) -> list[int]:
    if given is None:
        return [sum(counts[:rank]) for rank in range(len(counts))]
    if _is_number(given):
        return [operator.index(given) * rank for rank in range(len(counts))]
    return [operator.index(displ) for displ in given]


def _memory(buffer: Any, writable: bool) -> Bytes | None:
    """Return the bytes of a contiguous buffer; None where mpi4py should judge."""
    if isinstance(buffer, np.ndarray):
        if writable and not buffer.flags.writeable:
            return None
        return _flat(buffer)
    if buffer is MPI.BOTTOM:
        return None
    if on_device(buffer):
        if without_gpu_half():
            return None
        memory = device.DeviceMemory.of(buffer)
        return None if writable and not memory.writable else cast(Bytes, memory)
    try:
        view = MPI.buffer(buffer)  # any protocol that mpi4py knows
    except (BufferError, TypeError, ValueError, NotImplementedError):
        return None
    if writable and view.readonly:
        return None
    if not view.nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer(view, np.uint8)  # type: ignore[call-overload, no-any-return]


def _flat(array: np.ndarray[Any, Any]) -> Bytes | None:
    """Return the bytes of a contiguous array, C or Fortran order, in the order of memory."""
    array = np.asarray(array)  # a matrix stays two-dimensional, a masked array goes by its mask
    if not array.flags.c_contiguous:
        array = array.T
        if not array.flags.c_contiguous:
            return None
    if not array.dtype.isnative or array.dtype.hasobject:
        return None
    return array.reshape(-1).view(np.uint8)


def _kind(buffer: Any) -> DType:
    """Return what a buffer holds, by name: kinds and sizes do not tell bf16 and fp8 apart."""
    dtype = getattr(buffer, "dtype", None)
    if dtype is None:
        return DType.BYTES
    if isinstance(dtype, np.dtype):
        return _named(dtype)
    return _spelled(dtype)


@functools.lru_cache(maxsize=64)
def _named(dtype: np.dtype[Any]) -> DType:
    """Remember what a data type is: its name takes microseconds."""
    return DType.of(dtype)


@functools.lru_cache(maxsize=64)
def _spelled(dtype: object) -> DType:
    """Return what another library's data type is, by its name."""
    return DType.of(str(dtype).rpartition(".")[2])  # "torch.bfloat16"


def _own_element(buffer: Any) -> Element | None:
    """Return what the entries of a buffer are when the specification has no datatype."""
    dtype = _kind(buffer)
    if dtype is not DType.BYTES:
        return Element(dtype, dtype.itemsize)
    kind = getattr(buffer, "dtype", None)
    if kind is None and (interface := getattr(buffer, "__cuda_array_interface__", None)):
        try:
            kind = np.dtype(interface["typestr"])
        except TypeError:
            return None
        dtype = _named(kind)
        if kind.kind == "V":  # bytes to mpi4py, too
            return Element(DType.BYTES, 1)
    if isinstance(kind, np.dtype):
        known = kind.kind in "?biufc" and kind.isnative
        return Element(dtype, kind.itemsize) if known else None
    if kind is not None:  # torch and others: integers, complex
        size = getattr(kind, "itemsize", None)
        return Element(DType.BYTES, size) if isinstance(size, int) else None
    try:
        view = memoryview(buffer)
    except TypeError:
        return None
    code = view.format.lstrip("@=") if view.format else "B"
    return Element(DType.of(code) if code in ("e", "f", "d") else DType.BYTES, view.itemsize)


def _element(kind: Any) -> Element | None:
    """Return what a TYPE slot names; None for derived and unknown types."""
    if isinstance(kind, MPI.Datatype):
        dtype = _dtypes().get(kind.handle)
        if dtype is not None:
            return Element(dtype, dtype.itemsize)
        if kind == MPI.DATATYPE_NULL or not kind.is_predefined:
            return None
        size = kind.Get_size()
        return Element(DType.BYTES, size) if size == kind.Get_extent()[1] > 0 else None
    dtype = DType.of(kind)
    if dtype is not DType.BYTES:
        return Element(dtype, dtype.itemsize)
    try:
        code = kind.char if isinstance(kind, np.dtype) else kind
        return _element(MPI.Datatype.fromcode(code))
    except (KeyError, TypeError, ValueError):
        return None


@functools.cache
def _datatypes() -> dict[DType, MPI.Datatype]:
    known = {DType.FLOAT32: MPI.FLOAT, DType.FLOAT64: MPI.DOUBLE}
    if _exists(MPI.FLOAT16_T):
        known[DType.FLOAT16] = MPI.FLOAT16_T
    for dtype in DType:
        if dtype is not DType.BYTES and dtype not in known:
            made = MPI.BYTE.Create_contiguous(dtype.itemsize).Commit()
            made.Set_name(f"uzipmpi.{dtype.name}")
            known[dtype] = made
    return known


@functools.cache
def _dtypes() -> dict[int, DType]:
    known = {kind.handle: dtype for dtype, kind in _datatypes().items()}
    same = {
        DType.FLOAT32: ("REAL4",),
        DType.FLOAT64: ("REAL8",),
        DType.FLOAT16: ("REAL2",),
        DType.BFLOAT16: ("BFLOAT16_T",),
    }
    for dtype, names in same.items():
        for name in names:
            kind = getattr(MPI, name, MPI.DATATYPE_NULL)
            if _exists(kind):
                known[kind.handle] = dtype
    return known


@functools.cache
def _extra() -> frozenset[DType]:
    """Return the types that MPI, or mpi4py, does not know by name."""
    extra = {DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2}
    return frozenset(extra if _exists(MPI.FLOAT16_T) else {*extra, DType.FLOAT16})


@functools.cache
def _integers() -> dict[int, np.dtype[Any]]:
    """Return, by NumPy's number of such a type, integers of its size, which mpi4py knows."""
    return {dtype.numpy.num: np.dtype(f"u{dtype.itemsize}") for dtype in _extra()}


def _exists(kind: MPI.Datatype) -> bool:
    """Whether MPI has a type that mpi4py names.

    mpi4py's wheels for Open MPI bind such types weakly: where the library lacks one, as Open MPI 4
    lacks MPI_FLOAT16_T, its handle is 0, which is not the null handle. Other types of Open MPI's
    are there but have no size.
    """
    return kind.handle != 0 and kind != MPI.DATATYPE_NULL and kind.Get_size() > 0


@functools.lru_cache(maxsize=16)
def _large(nbytes: int) -> MPI.Datatype:
    """Return one entry of ``nbytes`` bytes."""
    return MPI.BYTE.Create_contiguous(nbytes).Commit()


def without_gpu_half() -> bool:
    """Whether GPU memory is MPI's own affair, as uzipmpi has no GPU half.

    Raises
    ------
    TypeError
        If MPI does not take it either.
    """
    if device.is_available():
        return False
    if is_cuda_aware():
        return True
    raise TypeError(
        "expected a buffer in host memory, found one in the memory of a GPU: for those install "
        "uzipmpi with UZIPMPI_GPU=cuda, or take a CUDA-aware MPI"
    )


def _if_aware(spec: Any) -> Any:
    """Return a specification of GPU memory if MPI takes that."""
    if without_gpu_half():
        return spec
    if is_cuda_aware():
        return typed(spec, entire(spec))
    raise TypeError("expected a buffer in host memory, found one in the memory of a GPU")


def _numpy_kind(buffer: Any) -> np.dtype[Any]:
    """Return NumPy's type for the entries of any array."""
    if (dtype := _kind(buffer)) is not DType.BYTES:
        return dtype.numpy
    kind = getattr(buffer, "dtype", None)
    if isinstance(kind, np.dtype):
        return kind
    if kind is None:
        return np.dtype(str(buffer.__cuda_array_interface__["typestr"]))
    return np.dtype(str(kind).rpartition(".")[2])
