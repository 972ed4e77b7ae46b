"""Every OSU benchmark runs on a few ranks, and its output reads as OSU's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LATENCY = ["Avg Latency(us)"]
FULL_LATENCY = ["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations"]
REDUCTIONS = ("allreduce", "reduce", "reduce_scatter")
MOVEMENT = ("allgather", "allgatherv", "alltoall", "alltoallv", "bcast")
ROOTED = ("gather", "gatherv", "scatter", "scatterv")
PERSISTENT = ("allreduce_persistent", "alltoall_persistent")
COLLECTIVES = (*REDUCTIONS, *MOVEMENT, *ROOTED, *PERSISTENT)
WINDOWS = {
    "bw": ["Bandwidth (MB/s)"],
    "bibw": ["Bandwidth (MB/s)"],
    "mbw_mr": ["MB/s", "Messages/s"],
    "bw_persistent": ["Bandwidth (MB/s)"],
}
PAIRS = ("latency", "bw", "bibw", "bw_persistent")
NONBLOCKING = ("iallreduce", "ibcast", "ialltoall", "iallgather")
OVERLAP = ["Overall(us)", "Compute(us)", "Pure Comm.(us)", "Overlap(%)"]
FULL_OVERLAP = [
    "Overall(us)",
    "Compute(us)",
    "Coll. Init(us)",
    "MPI_Test(us)",
    "MPI_Wait(us)",
    "Pure Comm.(us)",
    "Min Comm.(us)",
    "Max Comm.(us)",
    "Overlap(%)",
]
ALL = ("latency", *WINDOWS, *COLLECTIVES, *NONBLOCKING)
# Each has a way of its own to tell what is right.
JUDGES = (*PAIRS, "allreduce", "reduce", "reduce_scatter", "allgather", "alltoall", "bcast")
JUDGES += ("gather", "scatter", "allreduce_persistent", "ibcast")
# What mpirun puts before each piece of a line that it reads: "[0] " or "[1,0]<stdout>: ".
LABEL = re.compile(r"\[[\d,]+\](<\w+>:)? ?")


def parse(output: str) -> tuple[list[str], dict[int, list[str]]]:
    """Read a table as parsers of OSU do: by ``# Size`` and lines that begin with a number."""
    lines = LABEL.sub("", output).splitlines()
    header = next(line for line in lines if line.startswith("# Size"))
    titles = re.split(r" {2,}", header[1:].strip())
    rows = [line for line in lines if re.match(r"\d", line)]
    for line in rows:
        assert re.match(r"\d+ *$", line[:10]), f"the size ends before column 10: {line!r}"
        assert re.fullmatch(r" +\d+\.\d\d", line[10:28]), f"the figure ends at column 28: {line!r}"
    return titles, {int(line.split()[0]): line.split()[1:] for line in rows}


def short(name: str) -> tuple[object, ...]:
    """Return the options that keep windows small."""
    return ("-W", 4) if name in WINDOWS else ()


@pytest.mark.parametrize("name", ALL)
def test_reads_as_osu(mpirun, name):
    program = BENCHMARKS / f"osu_{name}.py"
    output = mpirun(2, program, "-m", "1024:4096", "-i", 4, "-x", 1, *short(name))
    titles, rows = parse(output)
    figures = WINDOWS.get(name, OVERLAP if name in NONBLOCKING else LATENCY)
    baseline = ["Native(MB/s)"] if name in WINDOWS else ["Native(us)"]
    baseline += ["Native(%)"] * (name in NONBLOCKING)
    assert titles == ["Size", *figures, "Validation", "Ratio", *baseline, "Speedup"]
    assert list(rows) == [1024, 2048, 4096]
    for row in rows.values():
        cells = dict(zip(titles[1:], row, strict=True))
        assert cells["Validation"] == "Pass"
        assert float(cells[baseline[0]]) > 0
        assert float(cells["Speedup"]) > 0
        # A few bytes are not compressed; those of a reduction are sent along with what is called.
        assert float(cells["Ratio"]) > 1 if "reduce" in name else float(cells["Ratio"]) == 1


@pytest.mark.parametrize("name", ["bcast", "latency", "bw"])
def test_full_has_osu_columns(mpirun, name):
    options = ("-m", "8:8", "-i", 4, "-x", 1, "-f", *short(name))
    titles, rows = parse(mpirun(2, BENCHMARKS / f"osu_{name}.py", *options))
    expected = FULL_LATENCY if name in COLLECTIVES else [titles[1], "Iterations"]
    assert titles[1 : titles.index("Validation")] == expected
    *figures, iterations = rows[8][: len(expected)]
    assert iterations == "4"
    if len(figures) == 3:
        average, least, most = map(float, figures)
        assert least <= average <= most


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "bf16") for name in ALL),
        *((name, dtype) for name in ("latency", *REDUCTIONS) for dtype in ("fp32", "e4m3")),
    ],
)
def test_compresses_and_validates(mpirun, name, dtype, tmp_path):
    record = tmp_path / "record.json"
    options = ("-m", "262144:262144", "-i", 2, "-x", 1, "--dtype", dtype, "--json", record)
    # With three ranks, counts of a reduce_scatter differ, and one rank looks on in pairs.
    n = 2 if name in PAIRS else 3
    output = mpirun(n, BENCHMARKS / f"osu_{name}.py", *options, *short(name), "--compress=always")
    titles, rows = parse(output)
    cells = dict(zip(titles[1:], rows[262144], strict=True))
    assert cells["Validation"] == "Pass"
    assert float(cells["Ratio"]) < 0.95
    written = json.loads(record.read_text())
    assert {"commit", "machine", "mpi", "arguments"} <= written.keys()
    assert f"{written['rows'][0]['Ratio']:.3f}" == cells["Ratio"]


def test_overlap_adds_up(mpirun):
    options = ("-m", "262144:262144", "-i", 3, "-f", "-t", 3, "--compress=always")
    output = mpirun(2, BENCHMARKS / "osu_iallreduce.py", *options)
    assert "# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait" in output
    titles, rows = parse(output)
    assert titles[1 : titles.index("Validation")] == FULL_OVERLAP
    overall, compute, begin, test, wait, pure, least, most, overlap = map(float, rows[262144][:9])
    assert overall == pytest.approx(compute + begin + test + wait, abs=0.05)
    assert least <= pure <= most
    assert test > 0
    assert 0 <= overlap <= 100
    assert overlap == pytest.approx(max(0, 100 - (overall - compute) / pure * 100), abs=0.05)


def test_message_rate_counts_messages(mpirun):
    options = ("-m", "1024:1024", "-i", 2, "-W", 4)
    output = mpirun(5, BENCHMARKS / "osu_mbw_mr.py", *options)
    assert "# [ pairs: 2 ] [ window size: 4 ]" in output
    bandwidth, rate = map(float, parse(output)[1][1024][:2])
    assert rate == pytest.approx(bandwidth * 1e6 / 1024, abs=0.005 * 1e6 / 1024 + 0.01)


@pytest.mark.parametrize("name", WINDOWS)
def test_our_waitall(mpirun, name):
    options = ("-m", "262144:262144", "-i", 2, "-W", 4, "--compress=always", "--waitall=uzipmpi")
    _, rows = parse(mpirun(2, BENCHMARKS / f"osu_{name}.py", *options))
    assert "Pass" in rows[262144]


def test_baseline_raw(mpirun):
    options = ("-m", "262144:262144", "-i", 2, "--compress", "always", "--algo", "two_shot")
    titles, rows = parse(mpirun(3, BENCHMARKS / "osu_allreduce.py", *options, "--baseline", "raw"))
    assert "Raw(us)" in titles
    assert rows[262144][1] == "Pass"


@pytest.mark.parametrize("name", JUDGES)
def test_wrong_values_are_found(mpirun, name):
    with pytest.raises(
        pytest.fail.Exception, match="exited with status 1 on message size 8"
    ) as end:
        mpirun(2, "ranks_wrong_values.py", f"osu_{name}", "-m", "8:16", "-i", 2)
    assert "Fail" in str(end.value)


@pytest.mark.parametrize(
    ("name", "n", "expected"), [("latency", 3, "2 ranks"), ("mbw_mr", 1, "at least 2 ranks")]
)
def test_wrong_number_of_ranks(mpirun, name, n, expected):
    with pytest.raises(pytest.fail.Exception, match=f"expected {expected}, found {n}"):
        mpirun(n, BENCHMARKS / f"osu_{name}.py", "-m", "8:8")


@pytest.mark.parametrize("algorithm", ["mpi", "ring", "two_shot"])
def test_sums_of_any_bits_are_judged(mpirun, algorithm):
    """Random bits hold NaN, infinities, and sums that overflow."""
    options = ("-m", "65536:65536", "-i", 2, "-x", 0, "--data", "random", "--algo", algorithm)
    _, rows = parse(mpirun(2, BENCHMARKS / "osu_allreduce.py", *options, "--compress", "always"))
    assert rows[65536][1] == "Pass"
