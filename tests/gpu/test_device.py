"""Memory, streams and events, on the emulated GPU, whose streams do nothing before they must."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import emulated_module
import numpy as np
import pytest

from uzipmpi.kernels import device, device_pool
from uzipmpi.kernels.device import DeviceMemory, Stream
from uzipmpi.typing import Bytes

POISON = 0xA5
HOST, DEVICE, MANAGED, PINNED = range(4)


@pytest.fixture(autouse=True)
def gpu(gpu_module: Path) -> Iterator[ModuleType]:
    """The emulated GPU half, in the place of any other."""
    with emulated_module.installed(gpu_module) as module:
        yield module


def filled(nbytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def on_host(memory: DeviceMemory) -> Bytes:
    """Return what memory holds now, by a stream that waits for no other."""
    stream, out = Stream(memory.device), np.zeros(memory.size, np.uint8)
    stream.copy(out, memory)
    stream.synchronize()
    return out


def test_the_gpus_are_found(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.is_available()
    assert gpu.device_count() == 2
    device.is_available.cache_clear()
    monkeypatch.setattr(gpu, "device_count", lambda: 0)
    assert not device.is_available()


def test_without_the_gpu_half_one_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, emulated_module.NAME, None)
    device.gpu_half.cache_clear()
    device.is_available.cache_clear()
    assert not device.is_available()
    with pytest.raises(ImportError, match="UZIPMPI_GPU"):
        device.allocate(1, 0)


class TestMemory:
    def test_fresh_memory_is_poisoned_and_aligned(self, gpu: ModuleType) -> None:
        memory = device.allocate(1000, 1)
        assert (memory.size, memory.nbytes, len(memory), memory.device) == (1000, 1000, 1000, 1)
        assert memory.address % 256 == 0
        assert memory.writable
        assert (on_host(memory) == POISON).all()

    def test_places(self, gpu: ModuleType) -> None:
        memory = device.allocate(100, 1)
        assert gpu.place(memory.address) == gpu.place(memory.address + 99) == (DEVICE, 1)
        assert gpu.place(device.pinned(100, 1).ctypes.data) == (PINNED, 1)
        assert gpu.place(filled(10).ctypes.data) == (HOST, -1)
        assert gpu.place(0) == (HOST, -1)

    def test_a_slice_shares_memory(self) -> None:
        memory = device.allocate(100, 0)
        part = memory[10:-20][5:]
        assert (part.address, part.size, part.device) == (memory.address + 15, 65, 0)
        assert (memory[60:40].size, memory[200:].size, memory[:].size) == (0, 0, 100)
        with pytest.raises(ValueError, match="step 1, found step 2"):
            memory[::2]

    def test_a_slice_keeps_memory_alive(self) -> None:
        memory = device.allocate(5000, 0)
        address, part = memory.address, memory[100:200]
        del memory
        gc.collect()
        assert device.allocate(5000, 0).address != address
        del part
        gc.collect()
        assert device.allocate(5000, 0).address == address

    def test_other_libraries_take_it(self) -> None:
        memory = device.allocate(100, 0)
        interface = memory[4:].__cuda_array_interface__
        assert interface["data"] == (memory.address + 4, False)
        assert interface["shape"] == (96,)
        assert interface["typestr"] == "|u1"
        assert memory[:0].__cuda_array_interface__["data"][0] == 0

    def test_too_much_memory(self) -> None:
        kept = device.allocate(3000, 1)
        device.give_back(kept)
        assert device_pool.pools().device.kept_bytes(1) >= 3000
        with pytest.raises(RuntimeError, match=r"allocate \d+ bytes for GPU 1: out of memory"):
            device.allocate(1 << 60, 1)
        assert device_pool.pools().device.kept_bytes(1) == 0  # freed for another attempt

    def test_a_gpu_that_is_not_there(self) -> None:
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            device.allocate(100, 2)
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            Stream(2)


class TestCopies:
    @pytest.mark.parametrize("nbytes", [0, 1, 1000])
    def test_there_between_gpus_and_back(self, nbytes: int) -> None:
        values, back = filled(nbytes), device.pinned(nbytes)
        one, other = device.allocate(nbytes, 0), device.allocate(nbytes, 1)
        stream = Stream(1)
        stream.copy(one, values)
        stream.copy(other, one)
        stream.copy(back, other)
        stream.synchronize()
        assert (back == values).all()

    def test_zero(self) -> None:
        memory, stream = device.allocate(100, 0), Stream(0)
        stream.zero(memory[10:20])
        stream.zero(memory[:0])
        assert (on_host(memory) == POISON).all()
        stream.synchronize()
        expected = np.full(100, POISON)
        expected[10:20] = 0
        assert (on_host(memory) == expected).all()

    def test_what_cannot_be_copied(self) -> None:
        memory, stream = device.allocate(100, 0), Stream(0)
        with pytest.raises(ValueError, match="expected 100 bytes to copy, found 99"):
            stream.copy(memory, filled(99))
        with pytest.raises(ValueError, match="contiguous"):
            stream.copy(memory, filled(200)[::2])
        constant = filled(100)
        constant.flags.writeable = False
        with pytest.raises(ValueError, match="writable"):
            stream.copy(constant, memory)
        read_only = DeviceMemory(memory.address, 100, 0, memory, writable=False)
        with pytest.raises(ValueError, match="read-only"):
            stream.zero(read_only[:])
        stream.copy(np.empty(100, np.uint8), read_only)


class TestOrder:
    def test_a_copy_not_waited_for_is_not_there(self) -> None:
        values, memory, stream = filled(100), device.allocate(100, 0), Stream(0)
        stream.copy(memory, values)
        assert (on_host(memory) == POISON).all()
        stream.synchronize()
        assert (on_host(memory) == values).all()

    def test_an_event_is_done_after_what_is_before_it(self) -> None:
        values, memory, stream = filled(100), device.allocate(100, 0), Stream(0)
        nothing = stream.record()
        assert nothing.query()
        stream.copy(memory, values)
        first = stream.record()
        stream.zero(memory)
        second = stream.record()
        assert not first.query()
        first.synchronize()
        assert (on_host(memory) == values).all()
        assert first.query()
        rounds = 0
        while not second.query():
            rounds += 1
        assert rounds > 0
        assert not on_host(memory).any()

    @pytest.mark.parametrize("ordered", [False, True])
    @pytest.mark.parametrize("by_handle", [False, True])
    def test_events_order_streams(self, ordered: bool, by_handle: bool) -> None:
        values, memory, out = filled(100), device.allocate(100, 0), np.zeros(100, np.uint8)
        producer, between, consumer = Stream(0), Stream(1), Stream(1)
        producer.copy(memory, values)
        if ordered and by_handle:
            between.wait_for(producer.handle, 0)
            consumer.wait_for(between.handle)
        elif ordered:
            between.wait(producer.record())
            consumer.wait(between.record())
        producer.zero(memory)  # after what is waited for
        consumer.copy(out, memory)
        consumer.synchronize()
        assert (out == (values if ordered else POISON)).all()
        producer.synchronize()
        assert not on_host(memory).any()

    def test_a_stream_waits_for_itself_and_for_the_default_streams(self) -> None:
        values, memory, stream = filled(100), device.allocate(100, 0), Stream(0)
        stream.wait_for(stream.handle)
        for default in (0, 1, 2):
            stream.wait_for(default)
        stream.copy(memory, values)
        stream.wait(stream.record())
        stream.synchronize()
        assert (on_host(memory) == values).all()

    def test_the_work_of_a_stream_that_goes_is_done(self) -> None:
        values, memory, stream = filled(100), device.allocate(100, 0), Stream(0)
        stream.copy(memory, values)
        event = stream.record()
        del stream
        gc.collect()
        assert event.query()
        assert (on_host(memory) == values).all()

    def test_the_current_device_stays(self, gpu: ModuleType) -> None:
        assert gpu.current_device() == 0
        memory, stream = device.allocate(100, 1), Stream(1)
        stream.zero(memory)
        stream.record().query()
        stream.synchronize()
        assert gpu.current_device() == 0

    def test_kernels_go_to_the_device_of_their_stream_only(self, gpu: ModuleType) -> None:
        memory, stream = device.allocate(4096, 1), Stream(1)
        launch = (memory.address, 10, 3, memory.address + 1024, memory.address + 2048, "raw", -1, 0)
        for ordinal in (0, -1):
            with pytest.raises(RuntimeError, match="invalid resource handle"):
                gpu.encode(*launch, ordinal, stream.handle)
        gpu.encode(*launch, 1, stream.handle)

    def test_a_handle_of_nothing(self) -> None:
        stream = Stream(0)
        with pytest.raises(RuntimeError, match="invalid resource handle"):
            stream.wait_for(12345)

    def test_two_threads(self) -> None:
        wrong: list[int] = []

        def there_and_back(ordinal: int) -> None:
            stream = Stream(ordinal)
            for i in range(100):
                values, back = filled(3000 + i, i), device.pinned(3000 + i, ordinal)
                memory = device.allocate(values.size, ordinal)
                stream.copy(memory, values)
                event = stream.record()
                if i % 2:
                    event.synchronize()
                while not event.query():
                    pass
                stream.copy(back, memory)
                stream.synchronize()
                if (back != values).any():
                    wrong.append(i)

        threads = [threading.Thread(target=there_and_back, args=(k % 2,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestPools:
    def test_memory_is_used_again(self) -> None:
        memory = device.allocate(10_000, 0)
        address = memory.address
        device.give_back(memory[5:10])
        assert device.allocate(9_999, 1).address != address
        again = device.allocate(9_999, 0)
        assert again.address == address
        device.give_back(memory)  # given back before: it is the other's now
        assert device.allocate(9_999, 0).address != address

    def test_pinned_memory_is_used_again(self) -> None:
        memory = device.pinned(10_000)
        address, part = memory.ctypes.data, memory[100:].view(np.uint16)
        del memory
        gc.collect()
        assert device.pinned(10_000).ctypes.data != address
        device.give_back(part)
        assert device.pinned(10_000).ctypes.data == address

    def test_what_is_no_pools(self) -> None:
        with pytest.raises(
            TypeError, match="expected memory from a pool, found memory of NoneType"
        ):
            device.give_back(filled(10))
        with pytest.raises(TypeError, match="found memory of str"):
            device.give_back(DeviceMemory(0, 0, 0, "somebody"))

    def test_no_more_is_kept_than_allowed(self, gpu: ModuleType) -> None:
        pool = device_pool.Pool(gpu.allocate, gpu.release, 4096)
        taken = [pool.take(2048, 0) for _ in range(3)]
        addresses = [allocation.address for allocation in taken]
        del taken
        gc.collect()
        assert pool.kept_bytes(0) == 4096
        assert sorted(gpu.place(address)[0] for address in addresses) == [HOST, DEVICE, DEVICE]
        pool.trim(0)
        assert pool.kept_bytes(0) == 0
        assert {gpu.place(address)[0] for address in addresses} == {HOST}

    def test_a_finaliser_while_the_pool_is_busy(self, gpu: ModuleType) -> None:
        pool = device_pool.Pool(gpu.allocate, gpu.release, 4096)
        allocation = pool.take(512, 0)
        address = allocation.address
        with pool._kept(0)._lock:  # as if the collector ran amid a call of this very thread
            del allocation
            gc.collect()
        assert pool.kept_bytes(0) == 0
        other = pool.take(1024, 0)
        assert pool.kept_bytes(0) == 512
        assert pool.take(512, 0).address == address
        del other

    @pytest.mark.parametrize("nbytes", [0, 1, 512, 513, 4096, 4097, 1_000_000, 3 << 30])
    def test_sizes_are_rounded_up_a_little(self, nbytes: int) -> None:
        room = device_pool.rounded_up(nbytes)
        assert room % 512 == 0
        assert nbytes <= room <= max(nbytes * 1.25, nbytes + 512)


def test_a_process_ends_with_work_under_way(gpu_module: Path) -> None:
    program = textwrap.dedent("""
        import emulated_module
        emulated_module.install_from_environment()
        import numpy as np
        from uzipmpi.kernels import device
        stream, memory, page = device.Stream(1), device.allocate(100, 1), device.pinned(100)
        stream.scratch
        stream.copy(memory, page)
        event = stream.record()
        view = memory[10:]
        print("at the end")
    """)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={
            **os.environ,
            emulated_module.VARIABLE: str(gpu_module),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "at the end\n", "")
