"""Which algorithm a call takes: one table, from facts that every rank knows.

A message is its sender's own affair, so there local facts count as well: data type, destination,
and what a sample of the values promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mpi4py import MPI

from uzipmpi import buffers
from uzipmpi.algorithms import cuts, places, registry, sendrecv
from uzipmpi.algorithms.operators import MAX, MIN, PROD, SUM, Operator
from uzipmpi.config import Config
from uzipmpi.errors import ConfigError
from uzipmpi.handle import Endpoint, compresses
from uzipmpi.head import HEAD_BYTES, starts_like_a_head
from uzipmpi.kernels import codec
from uzipmpi.staging import frames_on_gpu
from uzipmpi.typing import DType, Tensor

__all__ = ["PLAIN", "Choice", "Facts", "always_plain", "check", "choose", "compressing", "message"]

# As the name of an algorithm: leave the call to MPI.
PLAIN = "mpi"
# MPI 4 takes any count; Open MPI 5 refuses those that are no C int.
LARGE_COUNTS = MPI.Get_version() >= (4, 0)
MPI_OPERATORS = (SUM, PROD, MIN, MAX)
# A message that a sample says will shrink by less goes as it is.
WORTHWHILE_RATIO = 0.95


class Facts(NamedTuple):
    """What all ranks know about a collective.

    Attributes
    ----------
    operation
        As in the registry.
    size
        Number of ranks.
    nbytes
        Bytes of the tensor that the operation is about: what is broadcast, what each rank
        contributes to a reduction, what each receives of an allgather, sends in an alltoall,
        gather or scatter. None where a rank knows only its own.
    min_bytes
        Of the options.
    dtype
        Of a reduction; elsewhere ranks may name different types for the same bytes.
    op
        Of a reduction; None if only MPI knows it.
    root
        Where the operation has one.
    """

    operation: str
    size: int
    nbytes: int | None
    min_bytes: int
    dtype: DType | None = None
    op: Operator | None = None
    root: int | None = None

    @property
    def small(self) -> bool:
        """Whether what goes from rank to rank is not worth compressing."""
        if self.nbytes is None:
            return False
        n_messages = {"allgather": self.size, "alltoall": self.size, "gather": 1, "scatter": 1}
        # The others cut a tensor into shards, and move each shard twice.
        return self.nbytes < self.min_bytes * n_messages.get(self.operation, max(self.size // 2, 1))

    @property
    def tiny(self) -> bool:
        """Whether steps cost more than bytes."""
        return self.nbytes is not None and self.nbytes * self.size <= GATHER_BYTES


class Choice(NamedTuple):
    """An algorithm, or ``PLAIN``, and why nothing is compressed if so."""

    algorithm: str
    fallback: str = ""


class Row(NamedTuple):
    """An algorithm is chosen for an operation if the row's condition holds."""

    operation: str
    algorithm: str
    applies: Callable[[Facts], bool] = lambda facts: True


# From here on the two steps of scatter and allgather beat log2(P) steps of whole tensors.
SCATTER_BYTES = 512 * 1024
# Up to here, for all ranks together, one step in which all send all beats the two of two_shot
# (docs/performance.md).
GATHER_BYTES = 256 * 1024

TABLE = (
    Row("allreduce", "gathered", lambda facts: facts.small and facts.tiny),
    Row("allreduce", "one_shot", lambda facts: facts.size == 2),
    Row("allreduce", "two_shot"),
    Row("reduce", "gathered", lambda facts: facts.small and facts.tiny),
    Row("reduce", "two_shot"),
    Row("reduce_scatter", "gathered", lambda facts: facts.small and facts.tiny),
    Row("reduce_scatter", "direct"),
    Row("allgather", "direct"),
    Row("alltoall", "pairwise"),
    Row("bcast", "binomial", lambda facts: facts.size == 2 or (facts.nbytes or 0) < SCATTER_BYTES),
    Row("bcast", "scatter_allgather"),
    Row("gather", "linear"),
    Row("scatter", "linear"),
    Row("scan", "direct"),
    Row("exscan", "direct"),
)
# Prefix reductions are MPI's wherever it can add the type: there is nothing to choose.
PREFIX = ("scan", "exscan")
OPERATIONS = tuple(dict.fromkeys(row.operation for row in TABLE if row.operation not in PREFIX))


def check(config: Config) -> Config:
    """Return the options if every algorithm that they name exists.

    Raises
    ------
    ConfigError
        If one does not.
    """
    for operation in OPERATIONS:
        name = getattr(config, operation)
        known = ("auto", PLAIN, *registry.names(operation))
        if name not in known:
            raise ConfigError(f"{operation}: expected one of {', '.join(known)}, found {name!r}")
    known = ("auto", *sendrecv.ALGORITHMS)
    if config.p2p not in known:
        raise ConfigError(f"p2p: expected one of {', '.join(known)}, found {config.p2p!r}")
    return config


def compressing(end: Endpoint) -> bool:
    """Whether anything may be compressed in this communicator."""
    return end.handle.threads and compresses(end.config, end.handle.one_node)


def choose(end: Endpoint, facts: Facts, *, in_call_order: bool = True) -> Choice:
    """Choose the algorithm of a collective; the same on all ranks.

    Parameters
    ----------
    end
        The communicator.
    facts
        What all ranks know of the call.
    in_call_order
        All ranks begin it in the same order among their calls, so it may use MPI's collectives.
    """
    reason = _why_plain(end, facts)
    if reason and _mpi_can(facts):
        return Choice(PLAIN, reason)
    name = getattr(end.config, facts.operation, "auto")
    if (
        name in ("auto", PLAIN)
        or (reason and facts.tiny)
        or (not in_call_order and registry.find(facts.operation, name).in_call_order)
    ):
        name = next(
            row.algorithm
            for row in TABLE
            if row.operation == facts.operation
            and row.applies(facts)
            and _serves(row, facts, in_call_order=in_call_order)
        )
    return Choice(name, reason)


def message(end: Endpoint, tensor: Tensor, dest: int) -> Choice:
    """Choose how a message goes; an empty algorithm means as it is."""
    if not end.handle.framed:
        return Choice("", "no message is compressed between these ranks")
    if _goes_by_ipc(end, tensor, dest):
        return Choice(sendrecv.IPC)
    reason = _why_plain_message(end, tensor, dest)
    if reason and not _like_a_head(tensor):
        return Choice("", reason)
    if end.config.p2p != "auto":
        return Choice(end.config.p2p, reason)
    # MPI itself moves memory of GPUs piece by piece, large messages best.
    if tensor.on_device and frames_on_gpu(end) and not end.config.sets_chunk_bytes:
        return Choice("whole", reason)
    # A message in one piece overlaps nothing, but costs the least Python.
    pieces = min(end.config.chunk_bytes, 2 * cuts.LEAST_BYTES)
    return Choice("chunked" if tensor.nbytes > pieces else "whole", reason)


def _goes_by_ipc(end: Endpoint, tensor: Tensor, dest: int) -> bool:
    """Whether a message goes by kernels of the two ranks' GPUs."""
    ipc, config = end.handle.ipc, end.config
    return (
        ipc is not None
        and config.transport == ipc.name
        and config.p2p == "auto"
        and config.compress != "never"
        and not config.verify
        and dest != end.handle.rank
        and tensor.nbytes >= HEAD_BYTES
        and tensor.device == ipc.device
    )


def _like_a_head(tensor: Tensor) -> bool:
    """Whether a plain message of these values would be taken for a head."""
    return tensor.nbytes == HEAD_BYTES and starts_like_a_head(places.on_host(tensor).memory)


def _why_plain(end: Endpoint, facts: Facts) -> str:
    """Return why a collective is not compressed; nothing if it is."""
    config = end.config
    reasons = {
        "not every rank has MPI_THREAD_MULTIPLE": not end.handle.threads,
        "compress is never": config.compress == "never",
        "one rank": facts.size == 1,
        "all ranks on one node": config.compress == "auto" and end.handle.one_node,
        "MPI was asked for": getattr(config, facts.operation, "auto") == PLAIN,
        "prefix reductions are MPI's": facts.operation in PREFIX,
        "smaller than min_bytes": facts.small,
        "not floating point": facts.dtype is DType.BYTES,
        "an operator that only MPI knows": facts.dtype is not None and facts.op is None,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _mpi_can(facts: Facts) -> bool:
    """Whether MPI itself gives the right result."""
    if facts.op is not None and facts.op not in MPI_OPERATORS:
        return False
    if facts.nbytes is not None and facts.nbytes > buffers.INT_MAX and not LARGE_COUNTS:
        return facts.dtype is not None and (facts.op is None or facts.dtype is DType.BYTES)
    if facts.dtype is None or facts.op is None or facts.dtype is DType.BYTES:
        return True
    return buffers.datatype(facts.dtype).is_predefined


def _serves(row: Row, facts: Facts, *, in_call_order: bool) -> bool:
    algorithm = registry.find(row.operation, row.algorithm)
    commutes = facts.op is None or facts.op.commutative
    return (commutes or algorithm.rank_order) and (in_call_order or not algorithm.in_call_order)


def always_plain(end: Endpoint, tensor: Tensor, dest: int) -> str:
    """Return why no message of this type and size is compressed; nothing if one may be."""
    config, nodes = end.config, end.handle.nodes
    if tensor.dtype is DType.BYTES:
        return "not floating point"
    if tensor.nbytes < config.min_bytes:
        return "smaller than min_bytes"
    if tensor.nbytes < HEAD_BYTES:
        return "smaller than a head"  # which would leave bytes behind the values
    if config.compress == "never":
        return "compress is never"
    if config.compress == "auto" and nodes[dest] == nodes[end.handle.rank]:
        return "both ranks on one node"
    return ""


def _why_plain_message(end: Endpoint, tensor: Tensor, dest: int) -> str:
    """Return why a message is not compressed; nothing if it is."""
    reason = always_plain(end, tensor, dest)
    if tensor.on_device:  # its encoder looks at a sample itself
        return reason
    if not reason and end.config.codec != "raw" and codec.predict(tensor) > WORTHWHILE_RATIO:
        return "incompressible"
    return reason
