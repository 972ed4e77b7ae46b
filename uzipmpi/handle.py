"""What is kept with an MPI handle: its private duplicate, counters, and the agreed options."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import weakref
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from uzipmpi import link, summary
from uzipmpi.algorithms.context import TAGS_PER_CALL, TAGS_PER_MESSAGE, Context
from uzipmpi.algorithms.scratch import Buffers, scratch
from uzipmpi.config import AGREED, MEASURED, Config
from uzipmpi.cuda_aware import is_cuda_aware
from uzipmpi.errors import ConfigError
from uzipmpi.kernels import device
from uzipmpi.matching import Matching
from uzipmpi.plans import Plans
from uzipmpi.stats import Stats
from uzipmpi.transports import shared
from uzipmpi.transports.ipc import MAX_RANKS, WAYS, Ipc, connect
from uzipmpi.transports.mpi_host import MpiHost

__all__ = ["Endpoint", "Handle", "agree", "agree_among", "compresses", "keep", "of"]

logger = logging.getLogger("uzipmpi")


class Handle:
    """State of a communicator, shared by all wrappers of its MPI handle.

    Parameters
    ----------
    private
        Duplicate of the communicator that carries parts of messages and collectives.
    config
        The options of whoever wrapped the handle first; those in ``AGREED`` are alike on all ranks.
    nodes
        For each rank the lowest rank on its node.
    threads
        All ranks have ``MPI_THREAD_MULTIPLE``.
    gpus
        All ranks have the GPU half, and a GPU.
    shares
        Messages of GPU buffers stay in memory that the ranks of a node share (``shared.py``).

    Attributes
    ----------
    ipc
        The connection of the ranks' GPUs; None before they are connected.
    may_link
        Whether they may be, as far as is known: see ``linking.py``.
    """

    def __init__(
        self,
        private: MPI.Intracomm,
        config: Config,
        nodes: Sequence[int],
        threads: bool,
        gpus: bool = False,
        shares: bool = False,
    ) -> None:
        # Freed when nobody holds the state: operations under way still need it after a Free.
        weakref.finalize(self, _free, private).atexit = False
        self.private = private
        self.transport = MpiHost(private)
        self.config = config
        self.nodes = nodes
        self.threads = threads
        self.gpus = gpus
        self.rank = private.Get_rank()
        self.size = private.Get_size()
        self.one_node = len(set(nodes)) == 1
        self.stats = Stats()
        summary.enrol(self.stats)
        # Whether a message may come as a head and parts; else every message is plain MPI's.
        by_kernels = gpus and config.transport in WAYS
        self.framed = threads and (compresses(config, self.one_node) or by_kernels)
        self.ipc: Ipc | None = None
        self.plans = Plans()
        self.may_link = (
            gpus
            and threads
            and self.one_node
            and 1 < self.size <= MAX_RANKS
            and config.transport in ("auto", *WAYS)
        )
        if shares:
            near = (peer for peer, node in enumerate(nodes) if node == nodes[self.rank])
            self.transport.neighbours = frozenset(near) - {self.rank}
        self.shares = shares
        self.matching = Matching()
        # Messages use the lower half of the tags, counted per destination; collectives the third
        # quarter; the last is for persistent collectives, which keep theirs.
        self._half = (_tag_ub() + 1) // 2
        self._calls = self._half // 2 // TAGS_PER_CALL
        self._messages = [itertools.count() for _ in nodes]
        self._collectives = itertools.count()
        self._persistent = itertools.count()

    @property
    def threads_per_rank(self) -> int:
        """Usable cores divided by the ranks on this node."""
        ranks = self.nodes.count(self.nodes[self.rank])
        return max(1, len(os.sched_getaffinity(0)) // ranks)

    def message_tag(self, dest: int) -> int:
        """Return the tag of the parts of the next message to a rank, before that of the answer."""
        n_messages = self._half // TAGS_PER_MESSAGE
        return next(self._messages[dest]) % n_messages * TAGS_PER_MESSAGE

    def collective_tag(self) -> int:
        """Return the first of the tags of the next collective; the same on every rank."""
        call = next(self._collectives) % self._calls
        return self._half + call * TAGS_PER_CALL

    def persistent_tag(self) -> int:
        """Return the first of the tags of the next persistent collective; the same on every rank.

        They are used again after millions of others have been made.
        """
        call = self._calls + next(self._persistent) % self._calls
        return self._half + call * TAGS_PER_CALL

    def disconnect(self) -> None:
        """Leave the peers' GPUs, once none of them still writes to this one's; collective."""
        if self.ipc is not None:
            connection, self.ipc, self.may_link = self.ipc, None, False
            self.plans = Plans()
            connection.settle()
            self.private.Barrier()
            connection.disconnect()
            self.private.Barrier()
            connection.close()

    def heir(self, private: MPI.Intracomm, config: Config) -> Handle:
        """Return the state of a duplicate whose ranks are the same; no communication."""
        return Handle(private, config, self.nodes, self.threads, self.gpus, self.shares)


class Endpoint(NamedTuple):
    """A communicator as one wrapper sees it.

    Attributes
    ----------
    mpi
        mpi4py's own methods on the same MPI handle.
    handle
        What all wrappers of it share.
    config
        The options in force for the call.
    """

    mpi: MPI.Intracomm
    handle: Handle
    config: Config

    def context(
        self, tag: int, *, call: int = 0, blocking: bool = False, pool: Buffers = scratch
    ) -> Context:
        """Return what an algorithm is given; ``tag`` is the first that it may use."""
        return Context(
            self.handle.transport,
            self.config,
            tag,
            threads=self.config.threads or self.handle.threads_per_rank,
            gpus=self.handle.gpus,
            call=call,
            blocking=blocking,
            pool=pool,
            ipc=self.handle.ipc,
            nodes=self.handle.nodes,
        )


def compresses(config: Config, one_node: bool) -> bool:
    """Whether these options compress anything at all between these ranks."""
    return config.compress == "always" or (config.compress == "auto" and not one_node)


def of(comm: MPI.Comm) -> Handle | None:
    """Return what is kept with a communicator, None before it was first wrapped."""
    kept = comm.Get_attr(_keyval())
    return kept if isinstance(kept, Handle) else None


def keep(comm: MPI.Comm, handle: Handle) -> None:
    """Keep ``handle`` with a communicator until that is freed."""
    comm.Set_attr(_keyval(), handle)


def agree(comm: MPI.Comm, config: Config | ConfigError) -> Handle:
    """Make a communicator's state; collective.

    Parameters
    ----------
    config
        This rank's options, or what is wrong with them.

    Raises
    ------
    ConfigError
        On every rank, with the same text, if ranks disagree or one has wrong options.
    """
    private = MPI.Intracomm(comm).Dup()
    node = private.Split_type(MPI.COMM_TYPE_SHARED)
    lowest = node.bcast(private.Get_rank())
    node.Free()
    mine = config if isinstance(config, Config) else str(config)
    threads = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
    gpu = device.is_available()
    everyone = private.allgather((mine, lowest, threads, gpu, gpu and not is_cuda_aware()))
    complaint = _complaint([options for options, *_ in everyone])
    if complaint or not isinstance(config, Config):
        private.Free()
        raise ConfigError(complaint)
    nodes = [node for _, node, *_ in everyone]
    threads, gpus, staged = (all(facts) for facts in list(zip(*everyone, strict=True))[2:])
    if config.min_bytes == MEASURED:
        config = config.replace(min_bytes=_break_even(private, config, nodes, threads))
    shares = staged and config.transport in ("auto", "mpi-host")
    shares = shares and shared.reaches(private, nodes)
    handle = Handle(private, config, nodes, threads, gpus, shares)
    if config.transport in WAYS:
        _require_links(handle)
    lacking = not threads and compresses(config, handle.one_node)
    if lacking and handle.rank == 0 and handle.size > 1:
        logger.warning("not every rank has MPI_THREAD_MULTIPLE: nothing is compressed")
    keep(comm, handle)
    return handle


def _require_links(handle: Handle) -> None:
    """Connect the ranks' current GPUs; collective.

    Raises
    ------
    ConfigError
        On every rank, if that is not possible.
    """
    if handle.size == 1:
        return
    reason = ""
    if not handle.gpus:
        reason = "ranks without a GPU, or without uzipmpi's GPU half"
    elif not handle.one_node:
        reason = "ranks on several hosts"
    elif not handle.may_link:
        reason = f"{handle.size} ranks (at most {MAX_RANKS}), or less than MPI_THREAD_MULTIPLE"
    else:
        found = connect(handle.private, device.gpu_half().current_device(), handle.config)
        if isinstance(found, Ipc):
            handle.ipc = found
            return
        reason = found
    needed = {"ipc": "GPUs that reach each other", "shm": "a GPU of each rank's own on one host"}
    name = handle.config.transport
    raise ConfigError(f"transport: expected {needed[name]} for {name!r}, found {reason}")


def agree_among(comm: MPI.Comm, parent: Handle, config: Config) -> Handle:
    """Make the state of a communicator of some of a handle's ranks; collective over those.

    Who shares a node is known from the parent; the options may differ where ``comm.options`` has
    changed them on some ranks only.

    Raises
    ------
    ConfigError
        On every rank, with the same text, if ranks disagree.
    """
    private = MPI.Intracomm(comm).Dup()
    digest = zlib.crc32(repr([getattr(config, name) for name in AGREED]).encode())
    extremes = np.array([digest, -digest])
    private.Allreduce(MPI.IN_PLACE, extremes, MPI.MIN)
    if extremes.sum():
        complaint = _complaint(private.allgather(config))
        private.Free()
        raise ConfigError(complaint)
    nodes = _nodes_among(private, parent)
    handle = Handle(private, config, nodes, parent.threads, parent.gpus, parent.shares)
    keep(comm, handle)
    return handle


def _nodes_among(private: MPI.Intracomm, parent: Handle) -> list[int]:
    """Return for each rank the lowest rank on its node."""
    group, parents = private.Get_group(), parent.private.Get_group()
    ranks = group.Translate_ranks(None, parents)
    group.Free()
    parents.Free()
    lowest: dict[int, int] = {}
    return [lowest.setdefault(parent.nodes[known_as], rank) for rank, known_as in enumerate(ranks)]


def _break_even(private: MPI.Intracomm, config: Config, nodes: Sequence[int], threads: bool) -> int:
    """Return from which size on to compress; collective."""
    one_node = len(set(nodes)) == 1
    if one_node or not threads or not compresses(config, one_node):
        return link.LEAST_BYTES
    return link.measured_break_even(private, nodes, config.chunk_bytes)


def _complaint(everyone: Sequence[Config | str]) -> str:
    """Return what is wrong with the options of the ranks, in the same words on each of them."""
    wrong = [f"rank {rank}: {text}" for rank, text in enumerate(everyone) if isinstance(text, str)]
    if wrong:
        return "; ".join(wrong)
    for name in AGREED:
        values: dict[Any, list[int]] = {}
        for rank, options in enumerate(everyone):
            values.setdefault(getattr(options, name), []).append(rank)
        if len(values) > 1:
            found = "; ".join(f"{value!r} on rank {_ranks(who)}" for value, who in values.items())
            wrong.append(f"{name}: expected the same on all ranks, found {found}")
    return "; ".join(wrong)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown


def _tag_ub() -> int:
    """Return the largest tag; Open MPI 5 does not know it on what ``Split`` made."""
    value = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    assert isinstance(value, int)  # the standard says that it is there
    return value


def _free(private: MPI.Intracomm) -> None:
    if private != MPI.COMM_NULL and not MPI.Is_finalized():
        private.Free()


@functools.cache
def _keyval() -> int:
    return MPI.Comm.Create_keyval()
