"""One table over all ranks when the program ends: ``UZIPMPI_STATS=1``.

Ranks may end at different times, or never, so nothing here is collective: each sends what it
counted to rank 0, which waits as long as reports come in and prints what it has.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, cast

from mpi4py import MPI

from uzipmpi.config import summary_wanted
from uzipmpi.stats import Stats, Totals, size_text

__all__ = ["enrol", "table"]

# Seconds without a report after which rank 0 takes the ranks that are missing to be gone.
PATIENCE = 10.0
POLL = 1e-3
HEADER = ("operation", "calls", "bytes", "on the wire", "saved", "left alone")

_enrolled: list[Stats] = []
_process: int | None = None
_aborting = False


def enrol(stats: Stats) -> None:
    """Add the statistics of a communicator to the table, if there is to be one."""
    global _process
    if not summary_wanted():
        return
    _enrolled.append(stats)
    if _process is None:
        _process = os.getpid()
        _watch_aborts()
        # MPI frees COMM_SELF first when it is finalised; the interpreter may end before that.
        atexit.register(_report)
        keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, value: _report())
        MPI.COMM_SELF.Set_attr(keyval, None)


def table(stats: Stats, size: int, missing: set[int]) -> str:
    """Return the table.

    Parameters
    ----------
    stats
        Sums over the ranks that reported.
    size
        Number of ranks.
    missing
        Those that did not report.
    """
    title = f"uzipmpi: {size - len(missing)} of {size} ranks"
    if missing:
        title += f"; nothing from rank {', '.join(map(str, sorted(missing)))}"
    rows = [HEADER, *(_row(name, stats[name]) for name in sorted(stats.as_dict()))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join([title, *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)])


def _row(name: str, totals: Totals) -> tuple[str, ...]:
    reasons = (f"{n} {why}" for why, n in sorted(totals.fallbacks.items()))
    return (
        name,
        str(totals.calls),
        size_text(totals.value_bytes),
        totals.wire_text,
        f"{100 * (1 - totals.ratio):.1f}%",
        ", ".join(reasons),
    )


def _report() -> None:
    """Send what this rank counted to rank 0, or gather and print it; once, while MPI still runs."""
    global _process
    if _process != os.getpid() or not MPI.Is_initialized() or MPI.Is_finalized():
        return  # reported before; or a forked child, which must not call MPI
    _process = None
    if _aborting or getattr(sys, "last_value", None) is not None:
        return
    stats = Stats()
    for one in _enrolled:
        stats.absorb(one.told())
    # Not a wrapper, and a tag that nobody uses.
    comm = MPI.Intracomm(MPI.COMM_WORLD)
    tag = cast(int, comm.Get_attr(MPI.TAG_UB))
    if comm.rank:
        _send(comm, stats, tag)
    else:
        missing = _gather(comm, stats, tag)
        print(table(stats, comm.size, missing), file=sys.stderr, flush=True)


def _send(comm: MPI.Intracomm, stats: Stats, tag: int) -> None:
    text = json.dumps(stats.sums()).encode()
    # Never freed: if rank 0 does not come in time, MPI still has it when the interpreter is gone.
    memory = MPI.Alloc_mem(len(text))
    memory[:] = text
    _wait_until(comm.Isend([memory, MPI.BYTE], 0, tag).Test)


def _gather(comm: MPI.Intracomm, stats: Stats, tag: int) -> set[int]:
    """Add what the other ranks report; return those that do not."""
    missing = set(range(1, comm.size))
    status = MPI.Status()
    while missing and _wait_until(lambda: comm.Iprobe(MPI.ANY_SOURCE, tag, status)):
        text = bytearray(status.count)
        comm.Recv([text, MPI.BYTE], status.source, tag)
        stats.absorb(Stats.of(json.loads(text)))
        missing.discard(status.source)
    return missing


def _wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(POLL)
    return met


def _watch_aborts() -> None:
    """Note when the program is going to abort: no rank may be waited for then."""
    set_abort_status = MPI._set_abort_status

    def note(status: int) -> Any:
        global _aborting
        _aborting = bool(status)
        return set_abort_status(status)

    MPI._set_abort_status = note  # what the runners of mpi4py and uzipmpi call
