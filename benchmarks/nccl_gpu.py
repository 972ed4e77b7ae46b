"""Time GPU tensors through the communicator beside NCCL, call by call, in one run.

    mpirun -np 2 python benchmarks/nccl_gpu.py --transport ipc --json FILE
    NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=0 mpirun -np 2 python benchmarks/nccl_gpu.py \\
        --transport mpi-host --chunk-mb 8 --operations window latency allreduce alltoall allgather
    NCCL_P2P_DISABLE=1 mpirun -np 2 python benchmarks/nccl_gpu.py --transport shm --floors

In the last two no GPU reaches the other's memory; the second is the stand-in for a network. Needs
a GPU for each rank and torch, whose NCCL it is. README.md defines every number printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import provenance
import torch
import torch.distributed as nccl
from mpi4py import MPI

import uzipmpi

MB = 1 << 20
WINDOW = 64  # messages that are queued before anybody waits
POOL_BYTES = 1 << 30  # buffers of a case together: several times the second-level cache
REPEATS = 7
GRAPH_CALLS = 8
LEAST_SECONDS = 0.02  # of what is timed at once
DATA = ("normal", "uniform", "random", "zeros")

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()


class Row(NamedTuple):
    """One operation on tensors of one size."""

    operation: str
    data: str
    nbytes: int
    microseconds: float
    nccl_microseconds: float

    @property
    def speedup(self) -> float:
        """NCCL's time over ours."""
        return self.nccl_microseconds / self.microseconds


def draw(data: str, count: int) -> torch.Tensor:
    """Return bfloat16 values, other ones on each rank."""
    generator = torch.Generator("cuda").manual_seed(count + rank)
    if data == "random":
        bits = torch.randint(-(1 << 15), 1 << 15, (count,), generator=generator, device="cuda")
        return bits.to(torch.int16).view(torch.bfloat16)
    values = torch.zeros(count, device="cuda")
    if data == "normal":
        values.normal_(0, 0.02, generator=generator)
    elif data == "uniform":
        values.uniform_(-1, 1, generator=generator)
    return values.to(torch.bfloat16)


class Buffers:
    """What is sent and received: as many pairs as make the next one cold."""

    def __init__(self, data: str, nbytes: int) -> None:
        slots = max(2, min(WINDOW, POOL_BYTES // (2 * nbytes)))
        one = draw(data, nbytes // 2)
        self.sent = [one.clone() for _ in range(slots)]
        self.received = [torch.empty_like(one) for _ in range(slots)]
        self.large = [torch.empty(one.numel() * size, dtype=one.dtype, device="cuda")]
        self._turn = 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a pair."""
        self._turn = (self._turn + 1) % len(self.sent)
        return self.sent[self._turn], self.received[self._turn]


Call = Callable[[Buffers], None]


def calls_in(operation: str, buffers: Buffers) -> int:
    """Return how many messages one call of an operation stands for, one after the other."""
    return {"latency": 2, "window": len(buffers.sent)}.get(operation, 1)


def ours(comm: uzipmpi.Comm) -> dict[str, Call]:
    """Return each operation by the communicator, in the order of torch's stream."""
    peer, here = 1 - rank, torch.cuda.current_stream

    def bandwidth(buffers: Buffers) -> None:
        sent, received = buffers.next()
        if rank == 0:
            comm.Send(sent, 1, 0, stream=here())
        else:
            comm.Recv(received, 0, 0, stream=here())

    def window(buffers: Buffers) -> None:
        requests = []
        for sent, received in (buffers.next() for _ in buffers.sent):
            requests.append(comm.Isend(sent, 1) if rank == 0 else comm.Irecv(received, 0))
        uzipmpi.waitall(requests)

    def latency(buffers: Buffers) -> None:
        sent, received = buffers.next()
        for turn in (0, 1):
            if rank == turn:
                comm.Send(sent, peer, 0, stream=here())
            else:
                comm.Recv(received, peer, 0, stream=here())

    def allreduce(buffers: Buffers) -> None:
        comm.Allreduce(*buffers.next(), stream=here())

    def allreduce_in_place(buffers: Buffers) -> None:
        comm.Allreduce(MPI.IN_PLACE, buffers.next()[1], stream=here())

    def alltoall(buffers: Buffers) -> None:
        comm.Alltoall(*buffers.next(), stream=here())

    def allgather(buffers: Buffers) -> None:
        comm.Allgather(buffers.next()[0], buffers.large[0], stream=here())

    def reduce_scatter(buffers: Buffers) -> None:
        sent, received = buffers.next()
        comm.Reduce_scatter_block(sent, received[: sent.numel() // size], stream=here())

    def bcast(buffers: Buffers) -> None:
        comm.Bcast(buffers.next()[0], 0, stream=here())

    calls = (bandwidth, window, latency, allreduce, allreduce_in_place)
    calls += (alltoall, allgather, reduce_scatter, bcast)
    return {function.__name__: function for function in calls}


def theirs() -> dict[str, Call]:
    """Return each operation by NCCL."""
    peer = 1 - rank

    def bandwidth(buffers: Buffers) -> None:
        sent, received = buffers.next()
        if rank == 0:
            nccl.send(sent, 1)
        else:
            nccl.recv(received, 0)

    def window(buffers: Buffers) -> None:
        for _ in buffers.sent:
            bandwidth(buffers)

    def latency(buffers: Buffers) -> None:
        sent, received = buffers.next()
        for turn in (0, 1):
            if rank == turn:
                nccl.send(sent, peer)
            else:
                nccl.recv(received, peer)

    def allreduce(buffers: Buffers) -> None:  # NCCL through torch reduces in place
        nccl.all_reduce(buffers.next()[1])

    def alltoall(buffers: Buffers) -> None:
        sent, received = buffers.next()
        nccl.all_to_all_single(received, sent)

    def allgather(buffers: Buffers) -> None:
        nccl.all_gather_into_tensor(buffers.large[0], buffers.next()[0])

    def reduce_scatter(buffers: Buffers) -> None:
        sent, received = buffers.next()
        nccl.reduce_scatter_tensor(received[: sent.numel() // size], sent)

    def bcast(buffers: Buffers) -> None:
        nccl.broadcast(buffers.next()[0], 0)

    calls = (bandwidth, window, latency, allreduce, alltoall, allgather, reduce_scatter, bcast)
    return {
        "allreduce_in_place": allreduce,
        **{function.__name__: function for function in calls},
    }


def floors() -> dict[str, float]:
    """Return what copy engines move between GPU and host, GB/s of each copy that runs at a time."""
    nbytes, turns = 64 * MB, 8
    there = [torch.empty(nbytes, dtype=torch.uint8, device="cuda") for _ in range(2)]
    here = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    copies = {
        "down": lambda: here[0].copy_(there[0], True),
        "up": lambda: there[1].copy_(here[1], True),
    }
    plans = {"0 down": ("down", ""), "0 up": ("up", ""), "0 down, 1 up": ("down", "up")}
    plans |= {"0 both": ("down up", ""), "all both": ("down up", "down up")}

    def copy(plan: tuple[str, ...]) -> Call:
        mine = plan[rank].split() if rank < len(plan) else []

        def call(_: Buffers) -> None:
            for stream, name in zip(streams, mine, strict=False):
                with torch.cuda.stream(stream):
                    copies[name]()

        return call

    buffers = Buffers("zeros", MB)
    times = {
        name: seconds(copy(plan), buffers, turns) for _ in "12" for name, plan in plans.items()
    }
    return {name: nbytes * turns / time / 1e9 for name, time in times.items()}


def seconds(call: Call, buffers: Buffers, calls: int) -> float:
    """Return the time of so many calls, on the slowest rank."""
    torch.cuda.synchronize()
    world.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call(buffers)
    torch.cuda.synchronize()
    elapsed: float = world.allreduce(time.perf_counter() - start, MPI.MAX)
    return elapsed


def measure(calls: dict[str, Call], buffers: Buffers) -> dict[str, float]:
    """Return microseconds of one call of each, taken in turns."""
    counts = {}
    for name, call in calls.items():
        seconds(call, buffers, 2)
        once = seconds(call, buffers, 2) / 2
        counts[name] = max(2, min(WINDOW, int(LEAST_SECONDS / once)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            times[name].append(seconds(call, buffers, counts[name]) / counts[name] * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def check(comm: uzipmpi.Comm, data: str, nbytes: int) -> None:
    """Stop unless what arrives and what is reduced have the bits that they should have."""
    stream = torch.cuda.current_stream()
    sent, received = Buffers(data, nbytes).next()
    wanted = torch.empty_like(sent)
    peer = 1 - rank
    nccl.batch_isend_irecv(
        [nccl.P2POp(nccl.isend, sent, peer), nccl.P2POp(nccl.irecv, wanted, peer)]
    )[-1].wait()
    comm.Sendrecv(sent, peer, 0, received, peer, 0, stream=stream)
    torch.cuda.synchronize()
    if not torch.equal(received.view(torch.int16), wanted.view(torch.int16)):
        raise SystemExit(f"{data}, {nbytes} bytes: the values that came are others")
    comm.Allreduce(sent, received, stream=stream)
    torch.cuda.synchronize()
    total = (sent.float() + wanted.float()).to(torch.bfloat16)
    same = received.view(torch.int16) == total.view(torch.int16)
    if not bool((same | (received.isnan() & total.isnan())).all()):
        raise SystemExit(f"{data}, {nbytes} bytes: the sums are others")


def captured(call: Call) -> Call:
    """Return what replays GRAPH_CALLS calls, captured on the first buffers that it is given."""
    graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def replay(buffers: Buffers) -> None:
        if id(buffers) not in graphs:
            graphs.clear()  # one graph at a time: their buffers are large
            call(buffers)
            torch.cuda.synchronize()
            graph = graphs[id(buffers)] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="relaxed"):
                for _ in range(GRAPH_CALLS):
                    call(buffers)
        graphs[id(buffers)].replay()

    return replay


def rows(comm: uzipmpi.Comm, options: argparse.Namespace) -> Iterator[Row]:
    """Measure all cases, checking each first."""
    mine, nccls = ours(comm), theirs()
    for data in options.data:
        for megabytes in options.mb:
            nbytes = int(megabytes * MB)
            check(comm, data, nbytes)
            for operation in options.operations:
                calls = {"ours": mine[operation], "nccl": nccls[operation]}
                if options.graph:
                    calls = {name: captured(call) for name, call in calls.items()}
                buffers = Buffers(data, nbytes)
                found = measure(calls, buffers)
                halves = calls_in(operation, buffers) * (GRAPH_CALLS if options.graph else 1)
                yield Row(operation, data, nbytes, found["ours"] / halves, found["nccl"] / halves)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", default="ipc")
    parser.add_argument("--codec", default="auto")
    parser.add_argument("--compress", default="always", help="never: MPI as it is")
    parser.add_argument("--chunk-mb", type=float, default=1.0)
    parser.add_argument("--p2p", default="auto")
    parser.add_argument("--max-sms", type=int, default=0)
    parser.add_argument("--data", nargs="+", choices=DATA, default=["normal"])
    parser.add_argument("--mb", nargs="+", type=float, default=[1, 4, 16, 64, 256, 1024])
    parser.add_argument("--operations", nargs="+", default=["bandwidth", "latency", "allreduce"])
    parser.add_argument("--graph", action="store_true", help="replay calls captured in a graph")
    parser.add_argument("--floors", action="store_true", help="what copies to the host reach")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
    nccl.init_process_group("nccl", rank=rank, world_size=size)
    comm = uzipmpi.Comm(
        world.Dup(),
        transport=options.transport,
        codec=options.codec,
        compress=options.compress,
        chunk_bytes=int(options.chunk_mb * MB),
        p2p=options.p2p,
        min_bytes=0,
        max_sms=options.max_sms,
        timeout=10,
    )
    found, reached = [], floors() if options.floors else {}
    if rank == 0 and reached:
        print("copies, GB/s:", ", ".join(f"{name} {rate:.1f}" for name, rate in reached.items()))
    for row in rows(comm, options):
        found.append(row)
        if rank == 0:
            speed = row.nbytes / row.microseconds / 1e3
            print(
                f"{row.operation:20}{row.data:8}{row.nbytes / MB:7g} MB {row.microseconds:9.1f} us "
                f"{speed:7.1f} GB/s, NCCL {row.nccl_microseconds:9.1f} us, {row.speedup:5.2f} x",
                flush=True,
            )
    if rank == 0 and options.json:
        nccl_version = ".".join(map(str, torch.cuda.nccl.version()))
        record = {
            **provenance.record(),
            "command": " ".join(sys.argv),
            "gpu": torch.cuda.get_device_name(),
            "nccl": nccl_version,
            "environment": {k: v for k, v in os.environ.items() if k.startswith("NCCL_")},
            "floors": reached,
            "rows": [row._asdict() for row in found],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    nccl.destroy_process_group()


if __name__ == "__main__":
    main()
