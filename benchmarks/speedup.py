"""Speed-up over plain mpi4py against message size, over rate-limited links: one plot, CSV, JSON.

sudo .venv/bin/python benchmarks/speedup.py --hosts 4 --rate 1gbit
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
NETLAB = FOLDER / "netlab.sh"


@dataclass(frozen=True)
class Operation:
    """A benchmark to run: on how many hosts, and how many OSU sizes its send buffer holds."""

    name: str
    script: str
    n_hosts: int
    sizes_per_buffer: int


def main() -> None:
    """Measure each operation and write the results."""
    options = parse()
    operations = (
        Operation("Send", "osu_latency.py", 2, 1),
        Operation("Allreduce", "osu_allreduce.py", options.hosts, 1),
        Operation("Alltoall", "osu_alltoall.py", options.hosts, options.hosts),
    )
    stem = f"speedup_{options.hosts}x{options.rate}_{options.dtype}_{options.data}"
    with Hosts(options.hosts, options.rate, options.delay) as hosts:
        records = {each.name: measure(each, hosts, options) for each in operations}
    options.output.mkdir(parents=True, exist_ok=True)
    target = options.output / stem
    write_json(target.with_suffix(".json"), records)
    write_csv(target.with_suffix(".csv"), operations, records)
    plot(target.with_suffix(".png"), operations, records, options)
    print(f"wrote {target}.png, .csv and .json")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--hosts", type=int, default=4, help="for the collectives; Send takes two of them")
    add("--rate", default="1gbit", help="of each host's link, as tc writes it")
    add("--delay", default="", help="one way, as tc writes it (default: none)")
    add("-m", "--message-size", metavar="MIN:MAX", default="1024:67108864",
        help="bytes of a rank's send buffer, doubling (default %(default)s)")  # fmt: skip
    add("--dtype", default="bf16")
    add("--data", default="minilm")
    add("--seconds", type=float, default=3.0, help="time for each size (default %(default)s)")
    add("--output", type=Path, default=FOLDER / "results")
    options = parser.parse_args()
    if options.hosts < 2:
        parser.error(f"expected at least 2 hosts, found {options.hosts}")
    return options


class Hosts:
    """Hosts on rate-limited links, removed at the end whatever happens."""

    def __init__(self, n_hosts: int, rate: str, delay: str) -> None:
        self.arguments = [str(n_hosts), rate, *([delay] if delay else [])]
        # A lab of our own: a run beside another must not meet its hosts.
        self.environment = {**os.environ, "LAB": f"s{os.getpid() % 10000}", "VENV": sys.prefix}

    def __enter__(self) -> Hosts:
        self.call("up", *self.arguments)
        return self

    def __exit__(self, *_: object) -> None:
        self.call("down")

    def call(self, *arguments: str) -> None:
        """Run a netlab command; its output is ours."""
        subprocess.run([NETLAB, *arguments], env=self.environment, check=True)


def measure(operation: Operation, hosts: Hosts, options: argparse.Namespace) -> dict[str, Any]:
    """Run a benchmark over the hosts and return its JSON record, with the command that made it."""
    low, _, high = options.message_size.rpartition(":")
    share = operation.sizes_per_buffer
    sizes = f"{max(1, int(low or 1) // share)}:{int(high) // share}"
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "record.json"
        command = ["python", str(FOLDER / operation.script), "-m", sizes, "--full",
                   "--dtype", options.dtype, "--data", options.data,
                   "--seconds", str(options.seconds), "--json", str(answer)]  # fmt: skip
        hosts.call("run", str(operation.n_hosts), *command)
        record: dict[str, Any] = json.loads(answer.read_text())
    record["hosts"] = {"n": operation.n_hosts, "rate": options.rate, "delay": options.delay}
    record["command"] = command_line(options)
    return record


def command_line(options: argparse.Namespace) -> str:
    """Return the command that measures this again, wherever it writes."""
    given = {name: value for name, value in vars(options).items() if name != "output"}
    words = (f"--{name.replace('_', '-')}={value}" for name, value in given.items())
    return shlex.join(["python", "benchmarks/speedup.py", *words])


def write_json(path: Path, records: dict[str, Any]) -> None:
    path.write_text(json.dumps(records, indent=1) + "\n")


def write_csv(
    path: Path, operations: tuple[Operation, ...], records: dict[str, dict[str, Any]]
) -> None:
    """Write one line per operation and size."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("operation", "bytes", "latency_us", "native_us", "speedup", "ratio"))
        for operation in operations:
            for row in records[operation.name]["rows"]:
                times = (f"{row[title]:.2f}" for title in ("Avg Latency(us)", "Native(us)"))
                fractions = (f"{row[title]:.4f}" for title in ("Speedup", "Ratio"))
                n_bytes = row["Size"] * operation.sizes_per_buffer
                table.writerow((operation.name, n_bytes, *times, *fractions))


def plot(
    path: Path,
    operations: tuple[Operation, ...],
    records: dict[str, dict[str, Any]],
    options: argparse.Namespace,
) -> None:
    """Draw speed-up against bytes, one curve per operation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for operation in operations:
        rows = records[operation.name]["rows"]
        sizes = [row["Size"] * operation.sizes_per_buffer for row in rows]
        label = f"{operation.name}, {operation.n_hosts} hosts"
        axes.plot(sizes, [row["Speedup"] for row in rows], marker="o", label=label)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n_bytes, _: binary_size(n_bytes)))
    axes.set_xlabel("bytes in a rank's send buffer")
    axes.set_ylabel("time of plain mpi4py / time of uzipmpi")
    axes.set_title(f"{options.dtype}, {options.data}, links of {options.rate}")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def binary_size(n_bytes: float) -> str:
    """Write a size as 4K or 64M."""
    for unit in ("", "K", "M"):
        if n_bytes < 1024:
            return f"{n_bytes:g}{unit}"
        n_bytes /= 1024
    return f"{n_bytes:g}G"


if __name__ == "__main__":
    main()
