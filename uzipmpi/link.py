"""From which size on compression pays, by what links and codec give here.

A compressed message costs some microseconds more than a plain one, whatever it holds; what it saves
depends on the link and on the codec's speed. Both are measured once, when the first communicator is
made whose ranks are on several nodes, and all ranks agree on the result: about two transfers of
``PROBE_BYTES``, 35 ms at 1 Gbit/s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import ml_dtypes
import numpy as np
from mpi4py import MPI

from uzipmpi.algorithms.cuts import piece_bytes
from uzipmpi.kernels import codec
from uzipmpi.typing import Bytes, Tensor

__all__ = ["LEAST_BYTES", "NEVER", "break_even", "measured_break_even"]

# Where nothing was measured: ranks of one node that were told to compress.
LEAST_BYTES = 64 << 10
NEVER = 1 << 62
# More than what switches and shapers pass at once after a pause.
PROBE_BYTES = 2 << 20
# What a compressed message takes longer before its first byte is coded (docs/performance.md).
OVERHEAD = 150e-6
# Of weights, activations and gradients in bf16 (FORMAT.md's tier codec).
TYPICAL_RATIO = 0.68
# A gain that is predicted to be smaller is not worth the risk of a loss.
WORTHWHILE = 0.9


def break_even(link: float, code: float, most: int) -> int:
    """Return the smallest size from which compressed messages are predicted to be faster.

    Parameters
    ----------
    link
        Seconds that a byte takes on the wire.
    code
        Seconds that a byte of values takes to encode or to decode, whichever is longer.
    most
        Bytes of the largest chunk.

    Returns
    -------
    int
        A power of two in bytes, or ``NEVER``.
    """
    nbytes = LEAST_BYTES
    while nbytes <= 1 << 30:
        # All chunks but the first and the last are coded while others are on the wire.
        ends = 2 * code * min(piece_bytes(nbytes, most), nbytes)
        ours = OVERHEAD + ends + nbytes * max(TYPICAL_RATIO * link, code)
        if ours < WORTHWHILE * nbytes * link:
            return nbytes
        nbytes *= 2
    return NEVER


def measured_break_even(comm: MPI.Intracomm, nodes: Sequence[int], most: int) -> int:
    """Measure links and codec and return the break-even size; collective, alike on all ranks.

    Parameters
    ----------
    comm
        Communicator whose ranks are on more than one node; nothing else may be under way on it.
    nodes
        For each rank a number of its node.
    most
        Bytes of the largest chunk.
    """
    link, code = seconds_on_link(comm, nodes), seconds_of_codec()
    # The fastest link and the slowest codec: where that pays it pays everywhere.
    return break_even(comm.allreduce(link, MPI.MIN), comm.allreduce(code, MPI.MAX), most)


def seconds_on_link(comm: MPI.Intracomm, nodes: Sequence[int]) -> float:
    """Return the seconds per byte to another node while all ranks send; infinite if to the own."""
    order = sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
    place, size = order.index(comm.rank), len(order)
    shift = max(nodes.count(node) for node in set(nodes))
    dest, source = order[(place + shift) % size], order[(place - shift) % size]
    sent: Bytes = np.zeros(PROBE_BYTES, np.uint8)
    received = np.empty_like(sent)
    best = float("inf")
    for nbytes in (8, PROBE_BYTES, PROBE_BYTES):  # the first connects
        comm.Barrier()
        start = time.perf_counter()
        comm.Sendrecv(sent[:nbytes], dest, 0, received[:nbytes], source, 0)
        best = min(best, (time.perf_counter() - start) / nbytes)
    return best if nodes[dest] != nodes[comm.rank] else float("inf")


def seconds_of_codec() -> float:
    """Return the seconds per byte of the slower of encoding and decoding."""
    values = np.random.default_rng(0).standard_normal(1 << 17, np.float32)
    tensor = Tensor.of(values.astype(ml_dtypes.bfloat16))
    frame: Bytes = np.empty(codec.bound(tensor.count, tensor.dtype), np.uint8)
    decoded = Tensor(np.empty(tensor.nbytes, np.uint8), tensor.dtype)
    encoding, decoding = [], []
    for _ in range(4):
        start = time.perf_counter()
        nbytes = codec.encode(tensor, frame)
        middle = time.perf_counter()
        codec.decode(frame[:nbytes], decoded)
        encoding.append(middle - start)
        decoding.append(time.perf_counter() - middle)
    return max(min(encoding), min(decoding)) / tensor.nbytes
