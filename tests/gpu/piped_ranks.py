"""Ranks of one process, connected by pipes, each with a stream of its own."""

from __future__ import annotations

from typing import Any

from linked_ranks import TIMEOUT, LinkedRank, connected

from uzipmpi.kernels import pipe
from uzipmpi.typing import DType


class PipedRank(LinkedRank):
    """A rank with pipes to others, and memory on its GPU."""

    def _links(self, rank: int, size: int, staging_bytes: int) -> pipe.Pipes:
        return pipe.Pipes(self.device, rank, size, staging_bytes)

    def exchange(self, dtype: DType, **arguments: Any) -> None:
        """Queue an exchange."""
        arguments.setdefault("timeout", TIMEOUT)
        pipe.prepare(self.links, dtype, **arguments).launch(self.stream)

    def statuses(self) -> list[int]:
        """Wait for all that is queued; return why all exchanges have ended, or 0."""
        self.links.settle()
        self.stream.synchronize()
        return [self.links.ended_by]


def piped(n: int, staging_bytes: int = 0) -> list[PipedRank]:
    """Return ranks that are connected; without staging bytes with slots as small as can be."""
    return connected([PipedRank(rank, n, staging_bytes) for rank in range(n)])
