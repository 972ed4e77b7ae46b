"""What a rank does whose arguments are wrong: it tells the ranks that are in the call.

They have begun an algorithm and wait for frames of this rank. As far as its arguments still say
which algorithm that is, the rank takes part in it and fails at once: an empty message is all that
the others get, and their calls raise errors too. Where MPI itself carries out the call, or nothing
tells how large the tensors are, nobody can be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from uzipmpi import buffers, linking, selection
from uzipmpi.algorithms import operators, registry
from uzipmpi.algorithms.cuts import even_counts
from uzipmpi.handle import Endpoint
from uzipmpi.progress import in_background
from uzipmpi.selection import Facts
from uzipmpi.typing import DType, Tensor

__all__ = ["Arguments", "presumed", "refuse"]

# Stands in for a tensor of unknown size: what counts is whether frames are expected.
SOME_BYTES = 8
REDUCTIONS = ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")


class Arguments(NamedTuple):
    """What a collective was called with.

    Attributes
    ----------
    operation
        As in the registry.
    sendbuf, recvbuf
        The buffers; of a broadcast the first is the only one.
    root, op, counts
        Where the operation has them.
    vector
        Counts differ by rank.
    """

    operation: str
    sendbuf: Any
    recvbuf: Any = None
    root: int | None = None
    op: Any = None
    counts: Any = None
    vector: bool = False

    @property
    def specs(self) -> tuple[Any, ...]:
        """The buffers, in mpi4py's order."""
        return (self.sendbuf,) if self.operation == "bcast" else (self.sendbuf, self.recvbuf)

    @property
    def others(self) -> tuple[Any, ...]:
        """What follows them there."""
        counts = (self.counts,) if self.vector and self.operation == "reduce_scatter" else ()
        op = () if self.op is None else (self.op,)
        return (*counts, *op, *(() if self.root is None else (self.root,)))


def refuse(
    end: Endpoint,
    given: Arguments,
    error: Exception,
    *,
    votes: bool = False,
    tag: int | None = None,
) -> None:
    """Fail in the call that the other ranks are in, if that can be known.

    Parameters
    ----------
    end, given
        The communicator, and what the call was given.
    error
        What is wrong with that.
    votes
        The other ranks may vote about the way the values go, and this one has not.
    tag
        The first tag of the call, if this rank has taken one.
    """
    with suppress(Exception):  # the error at hand is the one to raise
        facts = presumed(end, given)
        if facts is None:
            return
        if votes and linking.linkable(end, facts):
            linking.find(end, (), votes=True)
        name = selection.choose(end, facts).algorithm
        if name == selection.PLAIN:
            return
        algorithm = registry.find(facts.operation, name)
        # In MPI's own collective too: there a word that is nobody's says it.
        context = end.context(end.handle.collective_tag() if tag is None else tag)
        stream = algorithm.run(context, *stand_ins(end, facts))
        if not algorithm.in_call_order:
            stream.fail(error)
        in_background(stream)


def presumed(end: Endpoint, given: Arguments) -> Facts | None:
    """Return what the other ranks know, as far as the arguments that are right tell it."""
    size, rank = end.handle.size, end.handle.rank
    if given.root is not None and not 0 <= given.root < size:
        return None
    send, recv = understood(given.sendbuf), understood(given.recvbuf)
    in_place = buffers.is_in_place(given.sendbuf)
    at_root = given.root == rank
    of_all: Sequence[tuple[Tensor | None, float]]
    match given.operation:
        case "allgather":
            of_all = [(recv, 1), (None if given.vector else send, size)]
        case "gather":
            of_all = [(send, 1), (recv if at_root else None, 1 / size)]
        case "scatter":
            of_all = [(recv, 1), (send if at_root else None, 1 / size)]
        case "reduce_scatter":
            shards = 1 if in_place else size
            of_all = [(send, 1), (None if given.vector and not in_place else recv, shards)]
        case _:
            of_all = [(send, 1), (recv, 1)]
    known = [(tensor, int(tensor.nbytes * scale)) for tensor, scale in of_all if tensor is not None]
    reduces = given.operation in REDUCTIONS
    per_rank_only = given.vector and given.operation in ("gather", "scatter", "alltoall")
    if not known and not per_rank_only:
        return None
    return Facts(
        given.operation,
        size,
        None if per_rank_only else known[0][1],
        end.config.min_bytes,
        known[0][0].dtype if reduces else None,
        operators.of(given.op) if reduces else None,
        given.root,
    )


def understood(spec: Any) -> Tensor | None:
    """Return the tensor that a specification names, None if that is not clear."""
    if spec is None:
        return None
    with suppress(Exception):
        return buffers.block(spec)
    return None


def stand_ins(end: Endpoint, facts: Facts) -> tuple[Any, ...]:
    """Return arguments for the algorithm; nothing of them will be sent."""
    size, at_root, op = facts.size, facts.root == end.handle.rank, facts.op
    dtype = facts.dtype or DType.BYTES
    all_ = Tensor(np.zeros(facts.nbytes or SOME_BYTES, np.uint8), dtype)
    share = Tensor(np.zeros(SOME_BYTES, np.uint8), dtype)
    shares = [share] * size
    match facts.operation:
        case "bcast":
            return all_, facts.root
        case "allgather":
            return share, shares
        case "alltoall":
            return shares, shares
        case "gather":
            return share, shares if at_root else None, facts.root
        case "scatter":
            return shares if at_root else None, share, facts.root
        case "reduce":
            return all_, all_ if at_root else None, op, facts.root
        case "reduce_scatter":
            counts = even_counts(all_.count, size)
            return all_, all_[: counts[end.handle.rank]], counts, op
    return all_, all_, op
