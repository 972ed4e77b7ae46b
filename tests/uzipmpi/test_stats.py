"""Statistics: sums, the ratio, the table."""

from __future__ import annotations

import json

import pytest

from uzipmpi import summary
from uzipmpi.stats import Stats


def test_sums() -> None:
    stats = Stats()
    stats["Send"].add_plain(100)
    stats.add("Send", 1000, 600, 0.5, algorithm="chunked", codec="tier")
    stats.add("Send", 1000, 1000, 0.25, algorithm="plain", fallback="incompressible")
    sent = stats.as_dict()["Send"]
    assert sent == {
        "calls": 3,
        "value_bytes": 2100,
        "wire_bytes": 1700,
        "unseen_bytes": 0,
        "ratio": pytest.approx(1700 / 2100),
        "seconds": 0.75,
        "algorithms": {"chunked": 1, "plain": 1},
        "codecs": {"tier": 1},
        "transports": {},
        "fallbacks": {"incompressible": 1},
    }
    assert json.loads(json.dumps(stats.as_dict())) == stats.as_dict()


def test_nothing_sent() -> None:
    stats = Stats()
    assert stats["Recv"].ratio == 1
    assert stats.as_dict() == {}
    assert repr(stats).startswith("operation")


def test_table() -> None:
    stats = Stats()
    stats.add("Allreduce", 3 << 20, 2 << 20, 1.0, algorithm="ring", codec="ans")
    stats.add("Bcast", 5 << 30, 5 << 30, 1.0, algorithm="mpi", fallback="one rank")
    header, allreduce, bcast, reason = repr(stats).splitlines()
    assert header.split() == [
        "operation",
        "calls",
        "bytes",
        "on",
        "the",
        "wire",
        "ratio",
        "seconds",
        "algorithm",
        "codec",
        "transport",
    ]
    assert allreduce.split() == [
        "Allreduce",
        "1",
        "3.0",
        "MiB",
        "2.0",
        "MiB",
        "0.667",
        "1.000",
        "ring",
        "ans",
        "-",
    ]
    assert bcast.split()[2:4] == ["5.0", "GiB"]
    assert reason == "Bcast: 1 not compressed: one rank"


def test_what_only_kernels_know() -> None:
    """Values that kernels send count as values, and as nothing that is known to have travelled."""
    stats = Stats()
    stats.transport = "ipc, as it happens"
    stats["Send"].add_queued(1 << 20, "ipc")
    stats.add("Allreduce", 1 << 20, 0, 1.0, algorithm="ipc", transport="ipc", unseen=True)
    stats.add("Allreduce", 1000, 600, 1.0, algorithm="ring", transport="mpi-host")
    assert stats["Send"].value_bytes == 1 << 20
    assert stats["Send"].wire_bytes == 0
    assert stats["Allreduce"].ratio == pytest.approx(0.6)
    _, send, allreduce, transport = repr(stats).splitlines()
    assert send.split() == ["Send", "1", "1.0", "MiB", "unknown", "-", "0.000", "ipc", "-", "ipc"]
    assert "600 B + unknown  0.600" in allreduce
    assert allreduce.endswith("ipc, mpi-host")
    assert transport == "GPU buffers: ipc, as it happens"
    total = Stats()
    total.absorb(Stats.of(json.loads(json.dumps(stats.sums()))))
    assert total["Send"].unseen_bytes == 1 << 20
    assert "unknown" in summary.table(total, size=1, missing=set())


def test_reset_keeps_the_objects() -> None:
    stats = Stats()
    sent = stats["Send"]
    sent.add_plain(8)
    stats.reset()
    assert sent.calls == 0
    sent.add_plain(8)
    assert stats.as_dict()["Send"]["calls"] == 1


def one_rank() -> Stats:
    stats = Stats()
    stats.plain_reason = "smaller than min_bytes"
    stats["Send"].add_plain(100)
    stats["Recv"].add_plain(100)
    stats.add("Send", 1 << 20, 700_000, 0.5, algorithm="chunked", codec="tier")
    stats.add("Send", 1 << 20, 1 << 20, 0.5, algorithm="plain", fallback="incompressible")
    return stats


def test_sums_over_ranks() -> None:
    total = Stats()
    for _ in range(3):
        total.absorb(Stats.of(json.loads(json.dumps(one_rank().sums()))))
    assert total["Send"].calls == 9
    assert total["Send"].seconds == 3
    assert total["Send"].fallbacks == {"incompressible": 3}
    assert total.as_dict()["Send"]["wire_bytes"] == 3 * (100 + 700_000 + (1 << 20))


def test_table_over_ranks() -> None:
    told = one_rank().told()
    assert told["Send"].fallbacks == {"smaller than min_bytes": 1, "incompressible": 1}
    assert told["Recv"].fallbacks == {}
    text = summary.table(told, size=4, missing={3, 1})
    title, header, recv, send = text.splitlines()
    assert title == "uzipmpi: 2 of 4 ranks; nothing from rank 1, 3"
    assert header.startswith("operation  calls  bytes")
    assert recv.split() == ["Recv", "1", "100", "B", "100", "B", "0.0%"]
    assert send.split()[:8] == ["Send", "3", "2.0", "MiB", "1.7", "MiB", "16.6%", "1"]
    assert send.endswith("1 incompressible, 1 smaller than min_bytes")
