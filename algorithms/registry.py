"""The table of algorithms, filled as their modules are imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from uzipmpi.algorithms import call
from uzipmpi.algorithms.stream import Stream
from uzipmpi.errors import ConfigError

__all__ = ["Algorithm", "find", "names", "register"]

Run = TypeVar("Run", bound=Callable[..., Stream])


@dataclass(frozen=True)
class Algorithm:
    """One way to carry out an operation.

    Parameters
    ----------
    operation, name
        As ``allreduce``, ``ring``.
    run
        The function; its arguments depend on the operation only. It begins, and returns the stream
        that does the rest.
    code
        Its number, which frames carry; the same on all ranks.
    rank_order
        Whether a reduction folds in rank order, and so serves operators that do not commute.
    in_call_order
        Whether it uses MPI's own collectives, and so must begin on all ranks in the same order.
    """

    operation: str
    name: str
    run: Callable[..., Stream]
    code: int
    rank_order: bool = True
    in_call_order: bool = False


_TABLE: dict[tuple[str, str], Algorithm] = {}


def register(operation: str, name: str, **properties: Any) -> Callable[[Run], Run]:
    """Enter the decorated function in the table.

    Raises
    ------
    ValueError
        If the operation has an algorithm of this name already.
    """

    def enter(run: Run) -> Run:
        if (operation, name) in _TABLE:
            raise ValueError(f"{operation} has an algorithm named {name!r} already")
        code = call.enroll(operation, name)
        _TABLE[operation, name] = Algorithm(operation, name, run, code, **properties)
        return run

    return enter


def find(operation: str, name: str) -> Algorithm:
    """Return an algorithm.

    Raises
    ------
    ConfigError
        If the operation has none of this name.
    """
    try:
        return _TABLE[operation, name]
    except KeyError:
        known = ", ".join(names(operation)) or "none"
        raise ConfigError(
            f"{operation}: expected an algorithm among {known}, found {name!r}"
        ) from None


def names(operation: str) -> tuple[str, ...]:
    """Return the names of an operation's algorithms, in order of registration."""
    return tuple(name for known, name in _TABLE if known == operation)
