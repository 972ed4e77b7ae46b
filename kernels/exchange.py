"""Arrays of other libraries in GPU memory: what their exchange protocols say about them.

Two are read, without any library: the CUDA Array Interface (CuPy, Numba, torch) and DLPack
(https://dmlc.github.io/dlpack, also JAX). A library that says in the former which stream its work
is in is asked no further; one that doesn't, or whose data type the former lacks, is asked for a
DLPack capsule, which makes it say so.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from uzipmpi.typing import DType

__all__ = ["Exported", "dlpack_device", "export", "interface_of", "is_torch", "torch_place"]

GPU = {2: "CUDA", 10: "ROCm", 13: "managed CUDA"}
"""DLPack's device types (``DLDeviceType``) whose memory is a GPU's."""
_ROCM = 10
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_DTYPES = {
    (2, 16): DType.FLOAT16,
    (2, 32): DType.FLOAT32,
    (2, 64): DType.FLOAT64,
    (4, 16): DType.BFLOAT16,
    (10, 8): DType.FLOAT8_E4M3FN,
    (12, 8): DType.FLOAT8_E5M2,
}
"""Data types by DLPack's type code (``DLDataTypeCode``) and bits."""


class Exported(NamedTuple):
    """A C-contiguous array as its library describes it.

    Attributes
    ----------
    address, nbytes
        Its memory; the address may be 0 where there are no bytes.
    dtype
        What the values are; ``BYTES`` for all but the six floats.
    shape
        Values along each dimension.
    device
        Ordinal of the GPU, None where the protocol does not say it.
    writable
        Whether the library lets others write to it.
    producer
        Raw handle of the stream in which the library's work on the array is queued; None if there
        is nothing to wait for.
    owner
        What keeps the memory alive.
    """

    address: int
    nbytes: int
    dtype: DType
    shape: tuple[int, ...]
    device: int | None
    writable: bool
    producer: int | None
    owner: object


def dlpack_device(array: object) -> int | None:
    """Return the GPU that DLPack says an array is on; None for any other object."""
    ask = getattr(array, "__dlpack_device__", None)
    if ask is None:
        return None
    kind, ordinal = ask()
    return int(ordinal) if kind in GPU else None


def interface_of(array: object) -> dict[str, Any] | None:
    """Return the CUDA Array Interface; None if the array, or its data type, has none."""
    try:
        return array.__cuda_array_interface__  # type: ignore[attr-defined, no-any-return]
    except (AttributeError, TypeError):  # torch: types that NumPy lacks
        return None


def export(array: object, stream: int | None = None) -> Exported:
    """Ask an array of another library where and what it is.

    Parameters
    ----------
    array
        An object with ``__cuda_array_interface__`` or ``__dlpack__``.
    stream
        Raw handle of a stream that goes to DLPack: a library that is asked by it makes the stream
        wait for the array. None: its work is ordered before the default stream, which is then the
        producer.

    Raises
    ------
    TypeError
        If the object is no array in GPU memory.
    ValueError
        If it is not C-contiguous, or masked.
    """
    if (tensor := _from_torch(array)) is not None:
        return tensor
    interface = interface_of(array)
    on_gpu = dlpack_device(array) is not None
    # Before version 3 it had no stream.
    if interface is not None and (interface.get("version", 0) >= 3 or not on_gpu):
        return _from_interface(array, interface)
    if not on_gpu:
        raise TypeError(f"expected an array in GPU memory, found {type(array).__name__}")
    exported = _from_dlpack(array, stream)
    if interface is not None and interface["data"][1]:
        return exported._replace(writable=False)
    return exported


def is_torch(array: object) -> bool:
    """Return whether an object is a plain tensor of torch, which a program has imported."""
    torch = sys.modules.get("torch")
    return torch is not None and type(array) is torch.Tensor


def torch_place(array: Any) -> tuple[Any, ...]:
    """Return all of a tensor of torch on which its :func:`export` depends, but for the stream."""
    return (
        array.data_ptr(),
        array.numel(),
        array.dtype,
        array.get_device(),
        array.is_contiguous(),
        array.requires_grad,
        array.layout,
    )


@functools.cache
def _torch_stream(torch: Any) -> Callable[[int], int]:
    """Return what tells the handle of torch's current stream on a GPU."""
    # Without making an object of it : a tenth of the time.
    fast: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return fast or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def _from_torch(array: Any) -> Exported | None:
    """Return what torch says of a plain tensor on a GPU; a capsule takes 20 microseconds."""
    if not is_torch(array) or not array.is_cuda:
        return None
    torch = sys.modules["torch"]
    if array.requires_grad or array.layout is not torch.strided or not array.is_contiguous():
        return None  # the protocols say what is wrong
    itemsize = array.element_size()
    return Exported(
        address=array.data_ptr(),
        nbytes=array.numel() * itemsize,
        dtype=_dtype_of(array.dtype, f"<f{itemsize}") if array.is_floating_point() else DType.BYTES,
        shape=tuple(array.shape),
        device=array.get_device(),
        writable=True,
        producer=_torch_stream(torch)(array.get_device()),
        owner=array,
    )


def _from_interface(array: object, interface: dict[str, Any]) -> Exported:
    if interface.get("mask") is not None:
        raise ValueError("expected an array without a mask")
    shape = tuple(int(length) for length in interface["shape"])
    order, itemsize = interface["typestr"][0], int(interface["typestr"][2:])
    strides = interface.get("strides")
    if strides is not None:
        _check_contiguous(shape, strides, itemsize)
    address, read_only = interface["data"]
    return Exported(
        address=int(address or 0),
        nbytes=_product(shape) * itemsize,
        dtype=DType.BYTES
        if order == ">"
        else _dtype_of(getattr(array, "dtype", ""), interface["typestr"]),
        shape=shape,
        device=dlpack_device(array),
        writable=not read_only,
        producer=interface.get("stream"),
        owner=array,
    )


@functools.lru_cache(maxsize=64)  # names are made anew each time
def _dtype_of(own: object, typestr: str) -> DType:
    """Return the data type by the array's own name: of bfloat16 the string has only the size."""
    name = str(own).rpartition(".")[2]  # torch.bfloat16
    dtype = DType.of(name)
    if dtype is not DType.BYTES and dtype.itemsize == int(typestr[2:]):
        return dtype
    return DType.of(typestr) if typestr[1] == "f" else DType.BYTES


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned; DLManagedTensor, which is older, begins with its tensor."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(array: Any, stream: int | None) -> Exported:
    # The default stream of CUDA is 1, since 0 could mean two; that of ROCm is 0.
    default = 0 if array.__dlpack_device__()[0] == _ROCM else 1
    consumer = default if stream is None else stream
    try:
        capsule = array.__dlpack__(stream=consumer, max_version=(1, 0))
    except TypeError:  # of a library from before version 1
        capsule = array.__dlpack__(stream=consumer)
    tensor, read_only = _parse(capsule)
    shape = tuple(tensor.shape[: tensor.ndim])
    bits = tensor.type_bits * tensor.type_lanes
    if bits % 8:
        raise ValueError(f"expected values of whole bytes, found values of {bits} bits")
    if tensor.strides:
        _check_contiguous(shape, tensor.strides[: tensor.ndim], 1)
    return Exported(
        address=(tensor.data or 0) + tensor.byte_offset,
        nbytes=_product(shape) * bits // 8,
        dtype=_DTYPES.get((tensor.type_code, bits), DType.BYTES)
        if tensor.type_lanes == 1
        else DType.BYTES,
        shape=shape,
        device=tensor.device_id,
        writable=not read_only,
        producer=default if stream is None else None,
        # A capsule that nobody consumes calls the tensor's deleter when it goes.
        owner=capsule,
    )


def _parse(capsule: object) -> tuple[_Tensor, bool]:
    """Return what a capsule holds, and whether it may only be read."""
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise ValueError(f"expected DLPack version 1, found version {managed.major}")
        return managed.tensor, bool(managed.flags & _READ_ONLY)
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer_of(capsule, b"dltensor")), False
    raise TypeError(f"expected a DLPack capsule, found {capsule!r}")


def _check_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> None:
    """Raise unless values follow each other in C order; strides are in units of ``itemsize``."""
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected and 0 not in shape:
            raise ValueError(
                f"expected a C-contiguous array, found strides {tuple(strides)} "
                f"for shape {tuple(shape)}"
            )
        expected *= length


def _product(shape: Sequence[int]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product
