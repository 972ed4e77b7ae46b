"""Completing several requests, ours and others: like mpi4py's functions, and they do our work.

MPI's own functions take our requests as well, but wait for the progress thread, and cannot say
of an error more than ``MPI.ERR_OTHER``, which mpi4py prints with a traceback.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from mpi4py import MPI

from uzipmpi.engine import Task, engine

__all__ = ["Completions", "testall", "testany", "testsome", "waitall", "waitany", "waitsome"]

STATUS_BYTES = MPI._sizeof(MPI.Status)
# A program may put a class of ours in its place.
BASE = MPI.Request

Self = TypeVar("Self")
Requests = Sequence[MPI.Request]
Statuses = list[MPI.Status] | None


class Completions:
    """The class methods of :class:`mpi4py.MPI.Request` that complete several requests.

    A list may mix requests of uzipmpi's, persistent ones, mpi4py's, and null requests. If some
    fail, all that are complete are freed; the error is ``MPI.ERR_IN_STATUS``, as MPI has it,
    or the first one that is not MPI's.
    """

    @classmethod
    def fromhandle(cls: type[Self], handle: int) -> Self:
        """Return the request of an MPI handle."""
        return cls(super().fromhandle(handle))  # type: ignore[misc, call-arg]

    @classmethod
    def fromint(cls: type[Self], arg: int, /) -> Self:
        """Return the request of an integer handle."""
        return cls(super().fromint(arg))  # type: ignore[misc, call-arg]

    @classmethod
    def f2py(cls: type[Self], arg: int) -> Self:
        """Return the request of a Fortran handle."""
        return cls(super().f2py(arg))  # type: ignore[misc, call-arg]

    @classmethod
    def Waitall(cls, requests: Requests, statuses: Statuses = None) -> Literal[True]:
        """Wait for all requests; see :meth:`mpi4py.MPI.Request.Waitall`."""
        _finish(requests, statuses)
        return BASE.Waitall(requests, statuses)

    @classmethod
    def Testall(cls, requests: Requests, statuses: Statuses = None) -> bool:
        """Return whether all are complete; see :meth:`mpi4py.MPI.Request.Testall`."""
        return _finished(requests, statuses) and BASE.Testall(requests, statuses)

    @classmethod
    def Waitany(cls, requests: Requests, status: MPI.Status | None = None) -> int:
        """Wait for one request; see :meth:`mpi4py.MPI.Request.Waitany`."""
        return waitany(requests, status)[0]

    @classmethod
    def Testany(cls, requests: Requests, status: MPI.Status | None = None) -> tuple[int, bool]:
        """Return a request that is complete; see :meth:`mpi4py.MPI.Request.Testany`."""
        return testany(requests, status)[:2]

    @classmethod
    def Waitsome(cls, requests: Requests, statuses: Statuses = None) -> list[int] | None:
        """Wait for some requests; see :meth:`mpi4py.MPI.Request.Waitsome`."""
        return waitsome(requests, statuses)[0]

    @classmethod
    def Testsome(cls, requests: Requests, statuses: Statuses = None) -> list[int] | None:
        """Return those that are complete; see :meth:`mpi4py.MPI.Request.Testsome`."""
        return testsome(requests, statuses)[0]

    @classmethod
    def waitall(cls, requests: Requests, statuses: Statuses = None) -> list[Any]:
        """Wait for all requests; see :meth:`mpi4py.MPI.Request.waitall`."""
        return waitall(requests, statuses)

    @classmethod
    def testall(
        cls, requests: Requests, statuses: Statuses = None
    ) -> tuple[bool, list[Any] | None]:
        """Return whether all are complete; see :meth:`mpi4py.MPI.Request.testall`."""
        return testall(requests, statuses)

    @classmethod
    def waitany(cls, requests: Requests, status: MPI.Status | None = None) -> tuple[int, Any]:
        """Wait for one request; see :meth:`mpi4py.MPI.Request.waitany`."""
        return waitany(requests, status)

    @classmethod
    def testany(cls, requests: Requests, status: MPI.Status | None = None) -> tuple[int, bool, Any]:
        """Return a request that is complete; see :meth:`mpi4py.MPI.Request.testany`."""
        return testany(requests, status)

    @classmethod
    def waitsome(
        cls, requests: Requests, statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait for some requests; see :meth:`mpi4py.MPI.Request.waitsome`."""
        return waitsome(requests, statuses)

    @classmethod
    def testsome(
        cls, requests: Requests, statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Return those that are complete; see :meth:`mpi4py.MPI.Request.testsome`."""
        return testsome(requests, statuses)


def waitall(requests: Requests, statuses: Statuses = None) -> list[Any]:
    """Wait for all requests, ours and others.

    Parameters
    ----------
    requests
        Any mixture of uzipmpi's, mpi4py's, persistent and null requests.
    statuses
        Is filled, and made longer if it has to be.

    Returns
    -------
    list
        The objects received by ``irecv``, None for buffers.

    Raises
    ------
    mpi4py.MPI.Exception
        ``MPI.ERR_IN_STATUS`` if some failed; each status has its error.
    Error
        The first failure that is not MPI's.
    """
    _finish(requests, statuses)
    return BASE.waitall(requests, statuses)


def testall(
    requests: Requests,
    statuses: Statuses = None,  # noqa: PT028
) -> tuple[bool, list[Any] | None]:
    """Return whether all requests are complete, and what :func:`waitall` returns if so."""
    if not _finished(requests, statuses):
        return False, None
    return BASE.testall(requests, statuses)


def waitany(requests: Requests, status: MPI.Status | None = None) -> tuple[int, Any]:
    """Wait for one request; return its place, ``MPI.UNDEFINED`` if none is active, and object."""
    if not _under_way(requests):
        return BASE.waitany(requests, status)
    found: tuple[int, bool, Any] = (MPI.UNDEFINED, False, None)

    def any_complete() -> bool:
        nonlocal found
        found = testany(requests, status)
        return found[1]

    engine.wait_until(any_complete)
    return found[0], found[2]


def testany(
    requests: Requests,
    status: MPI.Status | None = None,  # noqa: PT028
) -> tuple[int, bool, Any]:
    """Return the place of a request that is complete, whether there is one, and its object.

    Without an active request the place is ``MPI.UNDEFINED``, and the second item True.
    """
    engine.advance()
    ours = _under_way(requests)
    for place, task in ours.items():
        if task.done:
            requests[place].Wait(status)
            return place, True, None
    places = [place for place in range(len(requests)) if place not in ours]
    index, complete, item = BASE.testany([requests[place] for place in places], status)
    if index != MPI.UNDEFINED:
        return places[index], complete, item
    return index, complete and not ours, None


def waitsome(
    requests: Requests, statuses: Statuses = None
) -> tuple[list[int] | None, list[Any] | None]:
    """Wait for some requests; return the places and objects, or None if none is active."""
    if not _under_way(requests):
        return BASE.waitsome(requests, statuses)
    found: tuple[list[int] | None, list[Any] | None] = ([], [])

    def some_complete() -> bool:
        nonlocal found
        found = testsome(requests, statuses)
        return found[0] != []

    engine.wait_until(some_complete)
    return found


def testsome(
    requests: Requests,
    statuses: Statuses = None,  # noqa: PT028
) -> tuple[list[int] | None, list[Any] | None]:
    """Return the places of those that are complete, and their objects; None if none is active."""
    engine.advance()
    ours = _under_way(requests)
    if not ours:
        return BASE.testsome(requests, statuses)
    complete: dict[int, tuple[MPI.Status, Any]] = {}
    failures: list[Exception] = []
    places = [place for place in range(len(requests)) if place not in ours]
    theirs: list[MPI.Status] = []
    try:
        indices, items = BASE.testsome([requests[place] for place in places], theirs)
    except MPI.Exception as error:
        failures.append(error)
        indices, items = list(range(len(theirs))), [None] * len(theirs)
    for index, item, status in zip(indices or [], items or [], theirs, strict=False):
        complete[places[index]] = (status, item)
    for place, task in ours.items():
        if task.done:
            complete[place] = (_complete(requests[place], failures), None)
    in_order = sorted(complete)
    _store([complete[place][0] for place in in_order], statuses)
    if failures:
        raise _summary(failures)
    return in_order, [complete[place][1] for place in in_order]


def _under_way(requests: Requests) -> dict[int, Task]:
    """Return the operations of ours that requests stand for, by their place in the list."""
    operations = [getattr(request, "operation", None) for request in requests]
    return {place: task for place, task in enumerate(operations) if task is not None}


def _finish(requests: Requests, statuses: Statuses) -> None:
    """Wait for our own operations; if one failed, for all, and raise."""
    tasks = _under_way(requests).values()
    for task in tasks:
        engine.finish(task)
    if any(task.error is not None for task in tasks):
        _raise(requests, statuses)


def _finished(requests: Requests, statuses: Statuses) -> bool:
    """Return whether our own operations have ended; raise if one failed and all are complete."""
    engine.advance()
    tasks = _under_way(requests).values()
    if not all(task.done for task in tasks):
        return False
    if any(task.error is not None for task in tasks):
        others = [request for request in requests if getattr(request, "operation", None) is None]
        if not all(request.Get_status() for request in others):
            return False
        _raise(requests, statuses)
    return True


def _raise(requests: Requests, statuses: Statuses) -> None:
    """Complete all requests, of which at least one has failed."""
    failures: list[Exception] = []
    _store([_complete(request, failures) for request in requests], statuses)
    raise _summary(failures)


def _complete(request: MPI.Request, failures: list[Exception]) -> MPI.Status:
    """Complete a request; return its status, and enter what went wrong in the list."""
    status = MPI.Status()
    try:
        request.Wait(status)
    except MPI.Exception as error:
        status.Set_error(error.Get_error_code())
        failures.append(error)
    except Exception as error:
        status.Set_error(MPI.ERR_OTHER)
        failures.append(error)
    return status


def _summary(failures: Sequence[Exception]) -> Exception:
    """Return what to raise for several failures."""
    for failure in failures:
        if not isinstance(failure, MPI.Exception):
            return failure
    summary = MPI.Exception(MPI.ERR_IN_STATUS)
    summary.__cause__ = failures[0]
    return summary


def _store(outcomes: Sequence[MPI.Status], statuses: Statuses) -> None:
    """Copy statuses into those that the caller gave, as mpi4py does."""
    if statuses is None:
        return
    if isinstance(statuses, list):
        statuses.extend(MPI.Status() for _ in range(len(statuses), len(outcomes)))
    for outcome, status in zip(outcomes, statuses, strict=False):
        ctypes.memmove(MPI._addressof(status), MPI._addressof(outcome), STATUS_BYTES)
