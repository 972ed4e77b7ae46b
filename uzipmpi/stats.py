"""What a communicator did: calls, bytes, ratio, time, and why something was not compressed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Stats", "Totals", "size_text"]


@dataclass
class Totals:
    """Sums over the calls of one operation on this rank.

    Attributes
    ----------
    calls
        Number of calls.
    plain_bytes
        Bytes of the calls that went to MPI as they were, untimed.
    coded_bytes, frame_bytes
        Bytes of values of all others, and what travelled for them.
    unseen_bytes
        Bytes of values that kernels sent from GPU to GPU: only these know what travelled for them.
    seconds
        Time spent in all but the plain ones.
    algorithms, codecs, transports, fallbacks
        How often each was used (a transport: by values in GPU memory), and why something was not
        compressed.
    """

    calls: int = 0
    plain_bytes: int = 0
    coded_bytes: int = 0
    frame_bytes: int = 0
    unseen_bytes: int = 0
    seconds: float = 0.0
    algorithms: Counter[str] = field(default_factory=Counter)
    codecs: Counter[str] = field(default_factory=Counter)
    transports: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)

    @property
    def value_bytes(self) -> int:
        """Bytes of values."""
        return self.seen_bytes + self.unseen_bytes

    @property
    def seen_bytes(self) -> int:
        """Bytes of values but for those that kernels sent."""
        return self.plain_bytes + self.coded_bytes

    @property
    def wire_bytes(self) -> int:
        """Bytes that travelled for those that no kernel sent."""
        return self.plain_bytes + self.frame_bytes

    @property
    def ratio(self) -> float:
        """Bytes on the wire over bytes of values, of what is known; 1 where nothing is."""
        return self.wire_bytes / self.seen_bytes if self.seen_bytes else 1.0

    @property
    def wire_text(self) -> str:
        """What travelled, in words."""
        parts = [size_text(self.wire_bytes)] if self.seen_bytes or not self.unseen_bytes else []
        return " + ".join([*parts, *(["unknown"] if self.unseen_bytes else [])])

    def add_plain(self, nbytes: int) -> None:
        """Count a call that went to MPI as it was, untimed."""
        self.calls += 1
        self.plain_bytes += nbytes

    def add_queued(self, nbytes: int, algorithm: str) -> None:
        """Count a call that was queued on a GPU, untimed: what travels for it is not known here."""
        self.calls += 1
        self.unseen_bytes += nbytes
        self.algorithms[algorithm] += 1
        self.transports[algorithm] += 1

    def absorb(self, other: Totals) -> None:
        """Add the sums of another communicator or rank."""
        self.calls += other.calls
        self.plain_bytes += other.plain_bytes
        self.coded_bytes += other.coded_bytes
        self.frame_bytes += other.frame_bytes
        self.unseen_bytes += other.unseen_bytes
        self.seconds += other.seconds
        self.algorithms.update(other.algorithms)
        self.codecs.update(other.codecs)
        self.transports.update(other.transports)
        self.fallbacks.update(other.fallbacks)


class Stats:
    """Statistics of a communicator on this rank, by operation.

    ``value_bytes`` are the bytes of values that this rank sent (received, for ``Recv`` and
    ``Irecv``), ``wire_bytes`` what travelled for them; a collective counts every copy that this
    rank sent, and one left to MPI the values it was given. ``seconds`` leaves out small messages.
    What goes by ``ipc`` and ``shm`` counts among the values and as ``unseen_bytes``, but not among
    the ``wire_bytes``: only kernels know what travels for it.
    """

    def __init__(self) -> None:
        # Why arrays go to MPI at once, without a closer look.
        self.plain_reason = ""
        self.transport = ""
        self._totals: dict[str, Totals] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, sums: Mapping[str, Mapping[str, Any]]) -> Stats:
        """Return the statistics that :meth:`sums` made these of."""
        stats = cls()
        for name, fields in sums.items():
            counters = {
                field: Counter(value) for field, value in fields.items() if isinstance(value, dict)
            }
            stats._totals[name] = Totals(**{**fields, **counters})
        return stats

    def __getitem__(self, operation: str) -> Totals:
        """Return the sums of an operation, named as its method."""
        try:
            return self._totals[operation]
        except KeyError:
            return self._totals.setdefault(operation, Totals())

    def add(
        self,
        operation: str,
        value_bytes: int,
        wire_bytes: int,
        seconds: float,
        *,
        algorithm: str,
        codec: str = "",
        transport: str = "",
        fallback: str = "",
        unseen: bool = False,
    ) -> None:
        """Count one call; ``fallback`` is why it was not compressed, if it was not.

        If what travelled is ``unseen``, the bytes on the wire are not counted.
        """
        totals = self[operation]
        with self._lock:
            totals.calls += 1
            if unseen:
                totals.unseen_bytes += value_bytes
            else:
                totals.coded_bytes += value_bytes
                totals.frame_bytes += wire_bytes
            totals.seconds += seconds
            totals.algorithms[algorithm] += 1
            if codec:
                totals.codecs[codec] += 1
            if transport:
                totals.transports[transport] += 1
            if fallback:
                totals.fallbacks[fallback] += 1

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            for totals in self._totals.values():
                totals.__init__()  # type: ignore[misc]  # callers hold on to the objects

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the sums as plain dictionaries, for JSON and tables of one's own."""
        return {
            name: {
                "calls": totals.calls,
                "value_bytes": totals.value_bytes,
                "wire_bytes": totals.wire_bytes,
                "unseen_bytes": totals.unseen_bytes,
                "ratio": totals.ratio,
                "seconds": totals.seconds,
                "algorithms": dict(totals.algorithms),
                "codecs": dict(totals.codecs),
                "transports": dict(totals.transports),
                "fallbacks": dict(totals.fallbacks),
            }
            for name, totals in self._totals.items()
            if totals.calls
        }

    def sums(self) -> dict[str, dict[str, Any]]:
        """Return all that was counted, for JSON; :meth:`of` takes it back."""
        return {name: vars(totals) for name, totals in self._totals.items() if totals.calls}

    def absorb(self, other: Stats) -> None:
        """Add the sums of another communicator or rank."""
        for name, totals in list(other._totals.items()):
            self[name].absorb(totals)

    def told(self) -> Stats:
        """Return a copy in which calls that were left alone at once have their reason too."""
        copy = Stats.of(self.sums())
        for name, totals in copy._totals.items():
            at_once = totals.calls - sum(totals.algorithms.values())
            if at_once and "recv" not in name.lower():  # what arrives is its sender's affair
                totals.fallbacks[self.plain_reason] += at_once
        return copy

    def __repr__(self) -> str:
        header = (
            "operation",
            "calls",
            "bytes",
            "on the wire",
            "ratio",
            "seconds",
            "algorithm",
            "codec",
            "transport",
        )
        rows = [header, *(self._row(name) for name, totals in self._totals.items() if totals.calls)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        for name, totals in self._totals.items():
            lines += [f"{name}: {n} not compressed: {why}" for why, n in totals.fallbacks.items()]
        if self.transport:
            lines.append(f"GPU buffers: {self.transport}")
        return "\n".join(lines)

    def _row(self, name: str) -> tuple[str, ...]:
        totals = self._totals[name]
        return (
            name,
            str(totals.calls),
            size_text(totals.value_bytes),
            totals.wire_text,
            f"{totals.ratio:.3f}" if totals.seen_bytes or not totals.unseen_bytes else "-",
            f"{totals.seconds:.3f}",
            ", ".join(totals.algorithms) or "plain",
            ", ".join(totals.codecs) or "-",
            ", ".join(totals.transports) or "-",
        )


def size_text(nbytes: int) -> str:
    """Return a number of bytes as people write it."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
