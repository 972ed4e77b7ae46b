"""Classes of ours that a program may find in the place of mpi4py's.

Then ``isinstance`` has to hold for mpi4py's own objects too: most requests and messages are.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

__all__ = ["StandIn"]


class StandIn(type):
    """Type of a class of which all objects of another class are instances."""

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        stands_for: type | None = None,
    ) -> StandIn:
        """Make a class; one that is derived from a stand-in stands for itself alone."""
        made = super().__new__(cls, name, bases, namespace)
        made._stands_for = stands_for
        return made

    def __init__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        stands_for: type | None = None,
    ) -> None:
        super().__init__(name, bases, namespace)

    _stands_for: type | None

    def __instancecheck__(cls, instance: object) -> bool:
        """Whether an object is of the class, or of the one it stands for."""
        return isinstance(instance, cls._stands_for or ()) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        """Whether a class derives from the class, or from the one it stands for."""
        if cls._stands_for is not None and issubclass(subclass, cls._stands_for):
            return True
        return super().__subclasscheck__(subclass)

    def __getattribute__(cls, name: str) -> Any:
        """Return an attribute; a method also serves objects of the class that this stands for."""
        own = super().__getattribute__(name)
        if name.startswith("_") or not isinstance(own, FunctionType) or not cls._stands_for:
            return own
        theirs = getattr(cls._stands_for, name)

        @functools.wraps(own)
        def method(self: object, *args: Any, **kwargs: Any) -> Any:
            ours = type.__instancecheck__(cls, self)
            return own(self, *args, **kwargs) if ours else theirs(self, *args, **kwargs)

        return method
