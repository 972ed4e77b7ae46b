"""Hosts on rate-limited links: separate nodes, a limited rate, nothing left behind."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LAB = f"t{os.getpid() % 10000}"
RATE_BITS = 200e6

Netlab = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def netlab() -> Iterator[Netlab]:
    """Run the script in a lab of this test's own."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("network namespaces need root and iproute2")
    version = subprocess.run(
        [Path(sys.prefix, "bin", "mpirun"), "--version"], capture_output=True, text=True
    )
    if "HYDRA" not in version.stdout:
        pytest.skip("netlab starts ranks with MPICH's mpirun")

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in (BENCHMARKS / "netlab.sh", *arguments)],
            env={**os.environ, "LAB": LAB, "VENV": sys.prefix},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    try:
        allowed = call("up", 1, "1gbit").returncode == 0
        call("down")
        if not allowed:
            pytest.skip("this system forbids network namespaces")
        yield call
    finally:
        call("down")


def hosts_left() -> list[str]:
    """Return the names of this test's hosts that still exist."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith(LAB)]


def test_hosts_are_nodes_with_limited_links(netlab):
    program = Path(__file__).with_name("ranks_netlab.py")
    ended = netlab("once", 3, f"{RATE_BITS / 1e6:.0f}mbit", "python", program)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen["names"] == [f"{LAB}{i}" for i in range(3)]
    assert seen["node_sizes"] == [1, 1, 1]
    # The burst that a link lets through at once is under 5% of what is sent.
    assert 0.7 * RATE_BITS < seen["bits_per_second"] < 1.05 * RATE_BITS
    assert hosts_left() == []


def test_failure_is_told_and_leaves_nothing(netlab):
    assert netlab("once", 2, "1gbit", "python", "-c", "raise SystemExit(3)").returncode == 3
    assert hosts_left() == []
    ended = netlab("up", 2, "nonsense")
    assert ended.returncode != 0
    assert "nonsense" in ended.stderr
    assert hosts_left() == []


def test_the_same_hosts_come_and_go(netlab):
    """A link that outlived its removed host would be in the way of the next one of its name."""
    for _ in range(10):
        ended = netlab("once", 2, "1gbit", "true")
        assert ended.returncode == 0, ended.stderr
        links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
        assert f" {LAB}-" not in links.stdout


def test_refuses_a_second_lab_of_the_same_name(netlab):
    assert netlab("up", 1, "1gbit").returncode == 0
    again = netlab("up", 1, "1gbit")
    assert again.returncode != 0
    assert "is up already" in again.stderr
    assert hosts_left() != []
    missing = netlab("run", 2, "true")
    assert f"no host {LAB}1" in missing.stderr


def test_speedup_writes_plot_and_table(netlab, tmp_path):
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    options = ("--hosts", "2", "-m", "131072:262144", "--data", "normal", "--seconds", "0.1")
    subprocess.run(
        [sys.executable, BENCHMARKS / "speedup.py", *options, "--output", tmp_path],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    stem = tmp_path / "speedup_2x1gbit_bf16_normal"
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with stem.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = [(name, n) for name in ("Send", "Allreduce", "Alltoall") for n in (131072, 262144)]
    assert [(row["operation"], int(row["bytes"])) for row in rows] == expected
    record = json.loads(stem.with_suffix(".json").read_text())
    assert "--hosts=2 --rate=1gbit" in record["Send"]["command"]
