"""Windows of nonblocking messages between pairs of ranks, as OSU's bandwidth tests send them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from case import Array, Case, Side, same_bits
from mpi4py import MPI

import uzipmpi

__all__ = ["MESSAGE_TAG", "Window"]

MESSAGE_TAG = 100
ANSWER_TAG = 101


class Window(Case):
    """Windows from the first half of the ranks to the second, each answered with 4 bytes."""

    columns: ClassVar[tuple[str, ...]] = ("Bandwidth (MB/s)",)
    full_columns: ClassVar[tuple[str, ...]] = ("Bandwidth (MB/s)", "Iterations")
    compared: ClassVar[dict[str, str]] = {"MB/s": "Bandwidth (MB/s)"}
    operation = "Isend"
    algorithm_option = "p2p"
    max_bytes = 1 << 22
    # Messages that an iteration counts, for each in a pair's window.
    n_directions: ClassVar[int] = 1

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-W", "--window-size", type=int, default=64, help="messages in flight")
        add("--waitall", choices=("mpi", "uzipmpi"), default="mpi",
            help="whose Waitall our side calls: MPI's, as a program that changed one line does "
            "(default), or uzipmpi.Request's, which moves messages on itself")  # fmt: skip

    @property
    def n_pairs(self) -> int:
        """Pairs of ranks; with an odd number of ranks, the last one looks on."""
        return self.n // 2

    @property
    def timed_ranks(self) -> slice:
        return slice(0, self.n_pairs)

    @property
    def sends(self) -> bool:
        """Whether this rank sends windows."""
        return self.rank < self.n_pairs

    @property
    def receives(self) -> bool:
        """Whether this rank receives windows."""
        return self.n_pairs <= self.rank < 2 * self.n_pairs

    @property
    def peer(self) -> int:
        """The other rank of the pair."""
        return self.rank + self.n_pairs if self.rank < self.n_pairs else self.rank - self.n_pairs

    def buffers(self) -> tuple[Array, Array]:
        send = self.tensor(self.rank)
        # OSU's -b multiple: MPI forbids what its default does, receives that share a buffer.
        n_messages = self.options.window_size if self.receives else 0
        return send, np.empty((n_messages, send.size), send.dtype)

    def run(self, side: Side, n_iterations: int) -> float:
        answer = np.zeros(4, np.uint8)
        start = MPI.Wtime()
        for _ in range(n_iterations if self.sends or self.receives else 0):
            self.exchange(side)
            if self.sends:
                side.comm.Recv(answer, self.peer, ANSWER_TAG)
            else:
                side.comm.Send(answer, self.peer, ANSWER_TAG)
        return (MPI.Wtime() - start) / n_iterations

    def exchange(self, side: Side) -> None:
        """Send or receive one window."""
        self.wait(side, self.begin_sends(side) if self.sends else self.begin_receives(side))

    def begin_sends(self, side: Side) -> list[MPI.Request]:
        """Begin to send a window."""
        n_messages = range(self.options.window_size)
        return [side.comm.Isend(side.send, self.peer, MESSAGE_TAG) for _ in n_messages]

    def begin_receives(self, side: Side) -> list[MPI.Request]:
        """Begin to receive a window."""
        return [side.comm.Irecv(part, self.peer, MESSAGE_TAG) for part in side.recv]

    def wait(self, side: Side, requests: Sequence[MPI.Request]) -> None:
        """Wait for a window."""
        ours = isinstance(side.comm, uzipmpi.Comm) and self.options.waitall == "uzipmpi"
        (uzipmpi.Request if ours else MPI.Request).Waitall(requests)

    def is_right(self, side: Side) -> bool:
        return not self.receives or all(
            same_bits(part, self.tensor(self.peer)) for part in side.recv
        )

    def figures(self, times: Array) -> dict[str, float]:
        n_messages = self.options.window_size * self.n_pairs * self.n_directions
        bandwidth = self.size * n_messages / float(times[:, 0].mean()) / 1e6
        return {"Bandwidth (MB/s)": bandwidth}
