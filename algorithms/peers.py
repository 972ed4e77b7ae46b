"""The order in which a rank turns to its peers."""

from __future__ import annotations

from uzipmpi.algorithms.context import Context

__all__ = ["others"]


def others(context: Context) -> list[int]:
    """Return all other ranks, beginning with the next: no rank is everybody's first."""
    return [(context.rank + step) % context.size for step in range(1, context.size)]
