"""A call of a collective: done at once, begun, or made persistent.

The choice of an algorithm depends on nothing but what all ranks know. What MPI does itself goes to
mpi4py's method of the same name.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from uzipmpi import buffers, linking, plans, selection
from uzipmpi.algorithms import call as calls
from uzipmpi.algorithms import linked, registry
from uzipmpi.algorithms.context import Context
from uzipmpi.algorithms.gpu_steps import memory_of
from uzipmpi.algorithms.stream import Stream, drive
from uzipmpi.handle import Endpoint
from uzipmpi.kernels import device
from uzipmpi.persistent import Prequest
from uzipmpi.progress import Operation, Stages
from uzipmpi.refusal import Arguments, presumed, refuse
from uzipmpi.selection import Choice, Facts
from uzipmpi.sending import codec_of
from uzipmpi.staging import Rounds, Staged, message_pool, when_complete
from uzipmpi.transports.ipc import WAYS

__all__ = ["Call", "Understand", "Work"]


def nothing() -> None:
    """Do nothing."""


class Work(NamedTuple):
    """What an algorithm of ours would be given.

    Attributes
    ----------
    facts
        What all ranks know; the choice depends on it.
    value_bytes
        Bytes that this rank gives, for the statistics.
    arguments
        Makes the algorithm's arguments from the buffers as they are then.
    finish
        Brings the result where the user wants it, after the algorithm.
    copies
        Arguments or result are copied, in no order with a user's stream.
    """

    facts: Facts
    value_bytes: int
    arguments: Callable[[], Sequence[Any]]
    finish: Callable[[], None] = nothing
    copies: bool = False


# Turns arguments into work; None if MPI should judge them.
Understand = Callable[[Endpoint, Arguments], Work | None]


class Call:
    """One call of a collective.

    Parameters
    ----------
    end
        The communicator.
    method
        Name of mpi4py's blocking method.
    given
        What it was called with.
    understand
        Says what that means for an algorithm of ours.
    """

    def __init__(
        self, end: Endpoint, method: str, given: Arguments, understand: Understand
    ) -> None:
        self._end, self._method, self._given = end, method, given
        self._understand = understand
        self._work: Work | None = None
        self._key: plans.Key = None
        self._started = time.perf_counter()

    def run(self, stream: Any = None) -> None:
        """Carry it out.

        Parameters
        ----------
        stream
            A GPU's, given by all ranks or none: the call comes after what is queued there and
            before what will be. If the ranks' GPUs are connected it is only queued, else done.
        """
        if stream is not None and self._run_again(stream):
            return
        if self._end.handle.may_link and self._run_linked(stream):
            return
        if stream is not None:
            device.Stream.of(stream).synchronize()
        choice, _ = self._join(self._method)
        if choice.algorithm == selection.PLAIN:
            return
        context, stream = self._start(choice, self._end.handle.collective_tag(), blocking=True)
        drive([stream])
        self._end_round(self._method, choice, context)

    def begin(self) -> MPI.Request:
        """Begin it, and return the request that is complete when it has ended."""
        method = f"I{self._method.lower()}"
        choice, plain = self._join(method)
        if choice.algorithm == selection.PLAIN:
            request: MPI.Request = plain
            return request
        return self._round(method, choice, self._end.handle.collective_tag())

    def persist(self, info: MPI.Info) -> MPI.Prequest:
        """Return a request of which every round carries it out."""
        method = f"{self._method}_init"
        choice = self._choose(in_call_order=False)
        if choice.algorithm == selection.PLAIN:
            request: MPI.Prequest = self._plain(method, info)
            return request
        assert self._work is not None
        self._work.arguments()  # what was packed by now is out of date when a round begins
        tag = self._end.handle.persistent_tag()
        return Prequest(lambda: self._round(method, choice, tag))

    def _run_again(self, given: Any) -> bool:
        """Queue it in a stream as it was queued before, if it was."""
        handle = self._end.handle
        if handle.ipc is None:
            return False
        specs, root, op = self._given.specs, self._given.root, self._given.op
        if not self._given.vector:
            self._key = plans.key_of_call(self._method, specs, root, op)
        known = handle.plans.find(self._key, self._end.config)
        if known is None:
            return False
        known.queue(device.Stream.of(given, handle.ipc.device))
        handle.stats[self._method].add_queued(known.value_bytes, handle.ipc.name)
        return True

    def _run_linked(self, given: Any) -> bool:
        """Carry it out from GPU to GPU if all ranks can; in a stream that was given, queue it."""
        end = self._end
        try:
            work = self._work = self._understand(end, self._given)
        except Exception as error:
            refuse(end, self._given, error, votes=given is None)
            raise
        facts = presumed(end, self._given) if work is None else work.facts
        if facts is None or not linking.linkable(end, facts, votes=given is None):
            return False
        if given is not None and work is not None and work.copies:
            device.Stream.of(given).synchronize()
        arguments = () if work is None else work.arguments()
        ipc = linking.find(end, arguments, votes=given is None)
        if ipc is None or work is None:
            return False
        if given is None:
            stream = ipc.stream_after(map(memory_of, linking.tensors_of(arguments)))
        else:
            stream = device.Stream.of(given, ipc.device)
        plan = linked.plan(
            ipc.ordered, end.config, facts.operation, arguments, facts.op, facts.root
        )
        plan.queue(stream)
        nbytes = work.value_bytes
        if given is None or work.copies:
            drive([Stream(linked.completed(stream, ipc.ordered))])
        else:
            end.handle.plans.keep(self._key, plan, nbytes)
        work.finish()
        self._count(self._method, nbytes, 0, Choice(ipc.name), transport=ipc.name)
        return True

    def _join(self, method: str) -> tuple[Choice, Any]:
        """Choose as the other ranks do. If that is MPI, let it do the call, and return its result.

        An error is of this rank alone: the others are told.
        """
        try:
            choice = self._choose()
            if choice.algorithm != selection.PLAIN:
                return choice, None
            done = self._plain(method)
        except Exception as error:
            refuse(self._end, self._given, error)
            raise
        nbytes = 0 if self._work is None else self._work.value_bytes
        self._count(method, nbytes, nbytes, choice)
        return choice, done

    def _choose(self, *, in_call_order: bool = True) -> Choice:
        if self._work is None:
            self._work = self._understand(self._end, self._given)
        if self._work is None:
            return Choice(selection.PLAIN)
        return selection.choose(self._end, self._work.facts, in_call_order=in_call_order)

    def _plain(self, method: str, *more: Any) -> Any:
        reduces = self._given.op is not None  # MPI does no arithmetic in GPU memory
        blocking = method == self._method
        staged = [
            Staged(spec, receives=spec is self._given.specs[-1], device=blocking and not reduces)
            for spec in self._given.specs
        ]
        specs = [buffers.plain(one.spec) for one in staged]
        done = getattr(self._end.mpi, method)(*specs, *self._given.others, *more)
        if not any(one.copied for one in staged):
            return done
        if not blocking:
            return Prequest(Rounds(done, staged)) if more else when_complete(done, *staged)
        for one in staged:
            one.finish()
        return done

    def _start(self, choice: Choice, tag: int, *, blocking: bool) -> tuple[Context, Stream]:
        assert self._work is not None
        end, facts = self._end, self._work.facts
        if choice.fallback:
            end = end._replace(config=dataclasses.replace(end.config, codec="raw"))
        algorithm = registry.find(facts.operation, choice.algorithm)
        word = calls.word(algorithm.code, facts.op, facts.root)
        try:
            arguments = self._work.arguments()
            pool = message_pool(end, arguments)
        except Exception as error:  # no room for a copy, say
            refuse(self._end, self._given, error, tag=tag)
            raise
        context = end.context(tag, call=word, blocking=blocking, pool=pool)
        return context, algorithm.run(context, *arguments)

    def _round(self, method: str, choice: Choice, tag: int) -> MPI.Request:
        self._started = time.perf_counter()
        context, stream = self._start(choice, tag, blocking=False)

        def stages() -> Stages:
            yield stream
            self._end_round(method, choice, context)

        return Operation().begin(stages())

    def _end_round(self, method: str, choice: Choice, context: Context) -> None:
        assert self._work is not None
        self._work.finish()
        record = context.record
        codec, transport = codec_of(context), context.pool.transport
        self._count(method, record.value_bytes, record.wire_bytes, choice, codec, transport)

    def _count(
        self,
        method: str,
        value_bytes: int,
        wire_bytes: int,
        choice: Choice,
        codec: str = "",
        transport: str = "",
    ) -> None:
        self._end.handle.stats.add(
            method,
            value_bytes,
            wire_bytes,
            time.perf_counter() - self._started,
            algorithm=choice.algorithm,
            codec=codec,
            transport=transport,
            fallback=choice.fallback,
            unseen=choice.algorithm in WAYS,
        )
