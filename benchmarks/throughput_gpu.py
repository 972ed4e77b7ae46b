"""How calls on a GPU are timed: from cold memory, many of them in a CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import cupy
import datasets
import numpy as np

from uzipmpi.typing import Bytes, DType

__all__ = ["GpuGraph", "GpuQueue", "draw", "machine", "n_slots", "stream_on"]

MIB = 1 << 20
POOL_BYTES = 768 * MIB  # the slots of a case together: several times the second-level cache
MOST_SLOTS = 64
DRAWN_BYTES = 64 * MIB  # longer tensors repeat this many, which no sample notices

Array = Any


def n_slots(nbytes: int) -> int:
    """Return how many tensors of a size have buffers of their own."""
    return max(2, min(MOST_SLOTS, POOL_BYTES // nbytes))


@functools.cache
def draw_once(data: str, dtype: DType, nbytes: int) -> Bytes:
    """Return the bytes of a data set."""
    drawn = datasets.make(data, dtype, nbytes // dtype.itemsize, seed=1)
    return np.ascontiguousarray(drawn).reshape(-1).view(np.uint8)


def draw(data: str, dtype: DType, nbytes: int) -> Array:
    """Return the bytes of a data set in GPU memory."""
    host = draw_once(data, dtype, min(nbytes, DRAWN_BYTES))
    return cupy.tile(cupy.asarray(host), -(-nbytes // host.nbytes))[:nbytes]


class GpuGraph:
    """A call for each slot, captured in a graph of CuPy's current stream."""

    def __init__(self, call: Callable[[int], None], slots: int) -> None:
        self.stream = cupy.cuda.get_current_stream()
        self.stream.begin_capture()
        for slot in range(slots):
            call(slot)
        self.graph = self.stream.end_capture()
        self.graph.launch(self.stream)

    def seconds(self) -> float:
        """Return how long all calls take."""
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(self.stream)
        self.graph.launch(self.stream)
        stop.record(self.stream)
        stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, stop)) / 1e3


class GpuQueue:
    """The same without a graph, for calls that take long beside a launch."""

    def __init__(self, call: Callable[[int], None], slots: int) -> None:
        self.stream = cupy.cuda.get_current_stream()
        self.call, self.slots = call, slots
        self.seconds()

    def seconds(self) -> float:
        """Return how long all calls take."""
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(self.stream)
        for slot in range(self.slots):
            self.call(slot)
        stop.record(self.stream)
        stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, stop)) / 1e3


def stream_on(multiprocessors: int) -> Any:
    """Return a stream that has only some multiprocessors of the current GPU; 0: all.

    Raises
    ------
    SystemExit
        If cuda-bindings, or a driver that can divide a GPU, is missing.
    """
    if multiprocessors == 0:
        return cupy.cuda.Stream(non_blocking=True)
    try:
        from cuda.bindings import driver
    except ImportError:
        raise SystemExit("--multiprocessors: pip install cuda-bindings") from None

    def call(name: str, *arguments: Any) -> Any:
        error, *found = getattr(driver, name)(*arguments)
        if int(error):
            raise SystemExit(f"--multiprocessors: {name} failed: {error}")
        return found[0] if found else None

    device = call("cuDeviceGet", cupy.cuda.Device().id)
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    every = call("cuDeviceGetDevResource", device, kind)
    groups = call("cuDevSmResourceSplitByCount", 1, every, 0, multiprocessors)
    description = call("cuDevResourceGenerateDesc", [groups[0]], 1)
    context = call(
        "cuGreenCtxCreate",
        description,
        device,
        driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM,
    )
    flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    stream = call("cuGreenCtxStreamCreate", context, flags, 0)
    if groups[0].sm.smCount != multiprocessors:
        raise SystemExit(
            f"expected {multiprocessors} multiprocessors, found {groups[0].sm.smCount}"
        )
    return cupy.cuda.ExternalStream(int(stream))


def machine() -> dict[str, Any]:
    """Return what a record says of the GPU."""
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "gpu": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cupy": cupy.__version__,
    }
