"""The table of algorithms, filled as their modules are imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from uzipmpi.errors import ConfigError

__all__ = ["Algorithm", "find", "names", "register"]

Run = TypeVar("Run", bound=Callable[..., None])


@dataclass(frozen=True)
class Algorithm:
    """One way to carry out an operation.

    Parameters
    ----------
    operation, name
        As ``allreduce``, ``ring``.
    run
        The function; its arguments depend on the operation only.
    rank_order
        Whether a reduction folds in rank order, and so serves operators that do not commute.
    """

    operation: str
    name: str
    run: Callable[..., None]
    rank_order: bool = True


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
        _TABLE[operation, name] = Algorithm(operation, name, run, **properties)
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
