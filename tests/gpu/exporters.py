"""Arrays as other libraries export them, made by hand around memory of the emulated GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from uzipmpi.kernels.device import DeviceMemory

CUDA, ROCM = 2, 10
READ_ONLY = 1


class Interface:
    """An array with the CUDA Array Interface."""

    def __init__(self, memory: DeviceMemory, typestr: str, shape: Sequence[int], **entries: Any):
        self.memory = memory
        self.dtype = entries.pop("dtype", None)
        self._interface = {
            "version": 3,
            "data": (memory.address, False),
            "typestr": typestr,
            "shape": tuple(shape),
            **entries,
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code_bits_lanes", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]


class DLPack:
    """An array with DLPack; ``deleted`` counts what was exported and then given back."""

    def __init__(
        self,
        memory: DeviceMemory,
        code: int,
        bits: int,
        shape: Sequence[int],
        *,
        strides: Sequence[int] | None = None,
        offset: int = 0,
        lanes: int = 1,
        kind: int = CUDA,
        flags: int | None = 0,
        interface: dict[str, Any] | None = None,
    ) -> None:
        self.memory = memory
        self.kind = kind
        self.flags = flags  # None: a library from before version 1
        self.interface = interface
        self.streams: list[int] = []
        self.deleted = 0
        n = len(shape)
        self._tensor = _Tensor(
            memory.address,
            (kind, memory.device),
            n,
            code | bits << 8 | lanes << 16,
            (ctypes.c_int64 * n)(*shape),
            None if strides is None else (ctypes.c_int64 * n)(*strides),
            offset,
        )
        self._destructor = _Destructor(self._delete)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.interface is None:
            raise TypeError("a type that the interface lacks")
        return self.interface

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.memory.device

    def __dlpack__(self, *, stream: int, **version: Any) -> object:
        self.streams.append(stream)
        if self.flags is None:
            if version:
                raise TypeError("an unexpected keyword argument")
            self._managed: Any = _Managed(self._tensor, None, None)
            return self._capsule(b"dltensor")
        assert version == {"max_version": (1, 0)}
        self._managed = _ManagedVersioned((1, 0), None, None, self.flags, self._tensor)
        return self._capsule(b"dltensor_versioned")

    def _capsule(self, name: bytes) -> object:
        self._name = name  # the capsule does not copy it
        return _new_capsule(ctypes.addressof(self._managed), name, self._destructor)

    def _delete(self, capsule: int) -> None:
        self.deleted += 1
