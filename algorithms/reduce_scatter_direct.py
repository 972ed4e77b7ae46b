"""Reduce_scatter in one step: every rank collects its shard from all and folds it.

Each rank sends ``(P-1)/P`` of the tensor, straight to those who reduce it; the fold is in rank
order with one rounding. Scratch: per peer 4 frames and the values of one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.cuts import shards
from uzipmpi.algorithms.operators import Operator
from uzipmpi.algorithms.reduce_shard import reduce_shard
from uzipmpi.algorithms.registry import register
from uzipmpi.algorithms.stream import Stream, Together
from uzipmpi.typing import Tensor

__all__ = ["direct"]


@register("reduce_scatter", name="direct")
def direct(
    context: Context, send: Tensor, recv: Tensor, counts: Sequence[int], op: Operator
) -> Stream:
    """Reduce ``send`` over all ranks and leave shard r, of ``counts[r]`` values, on rank r.

    ``recv`` may be the memory of this rank's shard of ``send``, but of no other part of it.
    """
    return Together(reduce_shard(context, shards(send, counts), recv, op))
