"""Calls in a GPU stream's order, as they were queued before: a loop makes the same ones again.

To understand what a call is given takes longer than to queue its kernels. What is kept is their
arguments, by all that these were made from: where buffers are, how many values of what type they
have. Memory that was freed and taken anew for the same is as good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from uzipmpi import buffers
from uzipmpi.algorithms import operators
from uzipmpi.algorithms.linked import Plan
from uzipmpi.config import Config
from uzipmpi.kernels.device import Stream

__all__ = ["Key", "Known", "Plans", "key_of_call", "key_of_messages"]

MOST = 1024
Key = tuple[Any, ...] | None
"""What a plan is made from; None where that cannot be told soon."""


class Known(NamedTuple):
    """A plan, and the bytes of values that its call counts."""

    plan: Plan
    value_bytes: int

    def queue(self, stream: Stream) -> None:
        """Queue the call; see :meth:`Plan.queue`."""
        self.plan.queue(stream)


class Plans:
    """The plans of a communicator; when there are too many, it begins anew."""

    def __init__(self) -> None:
        self._known: dict[Key, Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: Key, config: Config) -> Known | None:
        """Return what is known of a call under these options."""
        known = self._known.get(key)
        return known if known is not None and known.plan.config is config else None

    def keep(self, key: Key, plan: Plan, value_bytes: int) -> Known:
        """Remember a plan, unless there is no key, and return it."""
        known = Known(plan, value_bytes)
        if key is not None:
            if len(self._known) >= MOST:
                self._known = {}
            self._known[key] = known
        return known


def key_of_call(method: str, specs: Sequence[Any], root: int | None, op: Any) -> Key:
    """Return the key of a collective with the same counts for all ranks."""
    ours = None if op is None else operators.of(op)
    places = tuple(map(_place, specs))
    if None in places or (op is not None and ours is None):
        return None
    return method, root, ours, places


def key_of_messages(*messages: tuple[Any, int, int] | None) -> Key:
    """Return the key of messages: buffer, peer and tag of what is sent, and of what is received."""
    places = tuple(message and (_place(message[0]), *message[1:]) for message in messages)
    return None if any(place and place[0] is None for place in places) else places


def _place(spec: Any) -> Any:
    return "in place" if buffers.is_in_place(spec) else buffers.place(spec)
