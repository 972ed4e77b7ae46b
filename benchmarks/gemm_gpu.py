"""Time GPU tensors through the communicator, and NCCL, while matrix products run beside them.

    mpirun -np 2 python benchmarks/gemm_gpu.py --mb 16 256 --max-sms 0 48 --json FILE

Products and transfers have a stream each. Both take longer together than alone: what matters is how
long. README.md defines every number printed. Needs a GPU for each rank and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import provenance
import torch
import torch.distributed as nccl
from mpi4py import MPI
from nccl_gpu import MB, Buffers, Call, ours, rank, size, theirs, world

import uzipmpi

SIDE = 8192  # of the square matrices
PRODUCTS = 16  # at a time
REPEATS = 5


class Row(NamedTuple):
    """One operation beside products; microseconds of each, alone and together."""

    operation: str
    by: str
    max_sms: int
    nbytes: int
    call_alone: float
    call: float
    product_alone: float
    product: float


class Work:
    """Something in a stream of its own, timed by events.

    Parameters
    ----------
    call
        Queues it once.
    times
        How often it is done at a time.
    """

    def __init__(self, call: Callable[[], None], times: int) -> None:
        self.call, self.times = call, times
        self.stream = torch.cuda.Stream()
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def queue(self) -> None:
        """Queue all of it."""
        with torch.cuda.stream(self.stream):
            self.events[0].record()
            for _ in range(self.times):
                self.call()
            self.events[1].record()

    @property
    def microseconds(self) -> float:
        """Of one time, once the device is idle."""
        return self.events[0].elapsed_time(self.events[1]) * 1e3 / self.times


def timed(*works: Work) -> list[float]:
    """Return microseconds of each, on the slowest rank, when all run together."""
    found = []
    for _ in range(REPEATS + 1):
        torch.cuda.synchronize()
        world.Barrier()
        for work in works:
            work.queue()
        torch.cuda.synchronize()
        found.append([world.allreduce(work.microseconds, MPI.MAX) for work in works])
    return [statistics.median(values) for values in zip(*found[1:], strict=True)]


def products() -> Work:
    """Return products of bf16 matrices."""
    left, right, out = (torch.randn(SIDE, SIDE, device="cuda").to(torch.bfloat16) for _ in range(3))
    return Work(lambda: torch.matmul(left, right, out=out), PRODUCTS)


def beside(call: Call, buffers: Buffers, product: Work, product_alone: float) -> tuple[float, ...]:
    """Return microseconds of a call alone, beside products, and of a product beside it."""
    few = Work(lambda: call(buffers), 4)
    (once,) = timed(few)
    many = Work(lambda: call(buffers), max(4, round(PRODUCTS * product_alone / once)))
    (alone,) = timed(many)
    together, slowed = timed(many, product)
    return alone, together, slowed


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Measure all cases."""
    product = products()
    (product_alone,) = timed(product)
    for megabytes in options.mb:
        nbytes = int(megabytes * MB)
        buffers = Buffers("normal", nbytes)
        for operation in options.operations:
            for max_sms in options.max_sms:
                comm = uzipmpi.Comm(world.Dup(), transport="ipc", max_sms=max_sms, timeout=20)
                call = ours(comm)[operation]
                alone, call_time, slowed = beside(call, buffers, product, product_alone)
                yield Row(
                    operation, "ours", max_sms, nbytes, alone, call_time, product_alone, slowed
                )
                comm.Free()
            alone, call_time, slowed = beside(theirs()[operation], buffers, product, product_alone)
            yield Row(operation, "nccl", 0, nbytes, alone, call_time, product_alone, slowed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", nargs="+", type=float, default=[16, 256])
    parser.add_argument("--max-sms", nargs="+", type=int, default=[0, 48])
    parser.add_argument("--operations", nargs="+", default=["bandwidth", "allreduce"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29532"}
    nccl.init_process_group("nccl", rank=rank, world_size=size)
    found = []
    for row in rows(options):
        found.append(row)
        if rank == 0:
            print(
                f"{row.operation:12}{row.by:5}{row.max_sms or 'all':>4} SMs "
                f"{row.nbytes / MB:5g} MB {row.call_alone:8.1f} us, "
                f"beside products {row.call:8.1f}; "
                f"a product {row.product_alone:7.1f} us, beside {row.product:7.1f} "
                f"({row.product / row.product_alone - 1:+.0%})",
                flush=True,
            )
    if rank == 0 and options.json:
        record = {
            **provenance.record(),
            "command": " ".join(sys.argv),
            "gpu": torch.cuda.get_device_name(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "rows": [row._asdict() for row in found],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    nccl.destroy_process_group()


if __name__ == "__main__":
    main()
