"""The command line of the benchmarks, OSU's table, and the JSON record of a run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import provenance
from mpi4py import MPI

import uzipmpi

if TYPE_CHECKING:
    from case import Case
    from harness import Measured

# The widths of OSU 7.4's tables.
SIZE_WIDTH, FIELD_WIDTH, ITERATIONS_WIDTH = 10, 18, 12


def parse(case_type: type[Case]) -> argparse.Namespace:
    """Read the command line on rank 0 alone, so that help and errors appear once."""
    parser = make_parser(case_type)
    options: argparse.Namespace | None = None
    status = 0
    if MPI.COMM_WORLD.rank == 0:
        try:
            options = parser.parse_args()
        except SystemExit as end:
            status = int(end.code or 0)
    options, status = MPI.COMM_WORLD.bcast((options, status))
    if options is None:
        raise SystemExit(status)
    return options


def make_parser(case_type: type[Case]) -> argparse.ArgumentParser:
    """Return the parser: OSU's letters, then our own long options."""
    parser = argparse.ArgumentParser(description=case_type.__doc__)
    add = parser.add_argument
    add("-m", "--message-size", metavar="[MIN:]MAX", default=f"1:{case_type.max_bytes}",
        help="sizes in bytes, doubling from MIN (default %(default)s)")  # fmt: skip
    add("-i", "--iterations", type=int, help="default: as many as fit --seconds")
    add("-x", "--warmup", type=int, help="iterations before timing (default: a tenth of the time)")
    add("-f", "--full", action="store_true", help="minimum, maximum and iterations too")
    add("-c", "--validation", action=argparse.BooleanOptionalAction, default=True,
        help="check every byte received (default)")  # fmt: skip
    case_type.add_options(parser)
    add("--seconds", type=float, default=1.0, help="time for each size (default %(default)s)")
    add("--dtype", choices=datasets.DTYPES, default="bf16")
    add("--data", choices=datasets.DATASETS, default="normal", help="what the tensors hold")
    add("--codec", choices=("auto", "tier", "ans", "raw"))
    add("--algo", metavar="NAME", help="algorithm of this operation (default: automatic)")
    add("--compress", choices=("auto", "always", "never"),
        help="auto: only between nodes (default)")  # fmt: skip
    add("--baseline", choices=("mpi", "raw"), default="mpi",
        help="compare with plain MPI, or with ourselves and codec raw")  # fmt: skip
    add("--device", action="store_true", help="buffers in GPU memory")
    add("--transport", choices=("auto", "mpi-host", "mpi-device", "ipc", "shm"),
        help="how the values of GPU buffers reach a peer")  # fmt: skip
    add("--json", metavar="FILE", type=Path, help="write rows and provenance")
    return parser


def message_sizes(options: argparse.Namespace) -> Iterator[int]:
    """Yield sizes from MIN to MAX, doubling; those that hold no whole value are left out."""
    low, _, high = str(options.message_size).rpartition(":")
    size, last = max(1, int(low or 1)), int(high)
    itemsize = datasets.DTYPES[options.dtype].itemsize
    while size <= last:
        if size % itemsize == 0:
            yield size
        size *= 2


class Table:
    """Print rows as they are measured, in OSU's layout, and keep them for JSON."""

    def __init__(self, case_type: type[Case], options: argparse.Namespace) -> None:
        self.case_type = case_type
        self.options = options
        self.rows: list[dict[str, Any]] = []
        self.provenance = {
            "benchmark": Path(sys.argv[0]).stem,
            **provenance.record(),
            "mpi": MPI.Get_library_version().splitlines()[0],
            "ranks": MPI.COMM_WORLD.size,
            "arguments": {name: v for name, v in vars(options).items() if name != "json"},
        }
        self.say(f"\n# OSU MPI {case_type.title} v7.4")
        for line in case_type.remarks(options):
            self.say(line)
        chosen = {
            name: getattr(options, name) or "auto"
            for name in ("data", "codec", "algo", "compress", "baseline")
        }
        settings = ", ".join(f"{name} {value}" for name, value in chosen.items())
        self.say(f"# Measured by uzipmpi {uzipmpi.__version__} in OSU's layout: {settings}")
        self.say(f"# Datatype: {datasets.DTYPES[options.dtype].name.lower()}.")
        self.say(f"{'# Size':<{SIZE_WIDTH}}" + "".join(f"{n:>{w}}" for n, w in self.columns()))

    def columns(self) -> list[tuple[str, int]]:
        """Return the title and width of each column after the size."""
        case_type, options = self.case_type, self.options
        titles = [*(case_type.full_columns if options.full else case_type.columns)]
        if options.validation:
            titles += ["Validation"]
        titles += ["Ratio", *self.baseline_columns(), "Speedup"]
        widths = {"Iterations": ITERATIONS_WIDTH}
        return [(title, widths.get(title, FIELD_WIDTH)) for title in titles]

    def baseline_columns(self) -> dict[str, str]:
        """Return the columns of the baseline, and the figure that each one shows."""
        name = {"mpi": "Native", "raw": "Raw"}[self.options.baseline]
        compared = self.case_type.compared
        return {f"{name}({unit})": figure for unit, figure in compared.items()}

    def add(self, size: int, measured: Measured) -> None:
        """Print the row of one size, and rewrite the JSON file with it."""
        row = self.values(size, measured)
        self.rows.append(row)
        cells = (f"{self.text(title, row[title]):>{width}}" for title, width in self.columns())
        self.say(f"{size:<{SIZE_WIDTH}}" + "".join(cells))
        if self.options.json and MPI.COMM_WORLD.rank == 0:
            record = {**self.provenance, "rows": self.rows}
            self.options.json.write_text(json.dumps(record, indent=1) + "\n")

    @staticmethod
    def text(title: str, value: float | str) -> str:
        """Format a cell: OSU's columns with its two decimals, our fractions with three."""
        if not isinstance(value, float):
            return str(value)
        return f"{value:.3f}" if title in ("Ratio", "Speedup") else f"{value:.2f}"

    def values(self, size: int, measured: Measured) -> dict[str, Any]:
        """Return the values of a row by column title, with what only JSON shows."""
        unit, figure = next(iter(self.case_type.compared.items()))
        ours, plain = measured.ours[figure], measured.plain[figure]
        return {
            "Size": size,
            **measured.ours,
            "Iterations": measured.iterations,
            "Validation": {True: "Pass", False: "Fail", None: "-"}[measured.valid],
            "Ratio": measured.ratio,
            **{title: measured.plain[name] for title, name in self.baseline_columns().items()},
            "Speedup": ours / plain if unit == "MB/s" else plain / ours,
            "Quartiles(s)": measured.quartiles,
            "Algorithms": measured.algorithms,
        }

    def say(self, line: str) -> None:
        """Print on rank 0, at once: a table is watched while it grows."""
        if MPI.COMM_WORLD.rank == 0:
            print(line, flush=True)
