"""Every OSU benchmark runs on two ranks, and its output reads as OSU's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COLLECTIVES = ("allgather", "allreduce", "alltoall", "bcast")
LATENCY = "Avg Latency(us)"
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


@pytest.mark.parametrize("name", ["latency", "bw", *COLLECTIVES])
def test_reads_as_osu(mpirun, name):
    output = mpirun(2, BENCHMARKS / f"osu_{name}.py", "-m", "4:16", "-i", 4, "-x", 1)
    titles, rows = parse(output)
    figure, baseline = (
        ("Bandwidth (MB/s)", "Native(MB/s)") if name == "bw" else (LATENCY, "Native(us)")
    )
    assert titles == ["Size", figure, "Validation", "Ratio", baseline, "Speedup"]
    assert list(rows) == [4, 8, 16]
    for value, validation, ratio, native, speedup in rows.values():
        assert validation == "Pass"
        assert float(value) > 0
        assert float(native) > 0
        assert float(speedup) > 0
        assert float(ratio) == 1, "messages of a few bytes are not compressed"


@pytest.mark.parametrize("name", COLLECTIVES)
def test_full_has_osu_columns(mpirun, name):
    output = mpirun(2, BENCHMARKS / f"osu_{name}.py", "-m", "8:8", "-i", 4, "-x", 1, "-f")
    titles, rows = parse(output)
    assert titles[1:5] == [LATENCY, "Min Latency(us)", "Max Latency(us)", "Iterations"]
    average, least, most = map(float, rows[8][:3])
    assert least <= average <= most
    assert int(rows[8][3]) == 4


@pytest.mark.parametrize("name", ["latency", "bw", *COLLECTIVES])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "e4m3"])
def test_compresses_and_validates(mpirun, name, dtype, tmp_path):
    record = tmp_path / "record.json"
    options = ("-m", "262144:262144", "-i", 2, "-x", 1, "--dtype", dtype, "--json", record)
    window = ("-W", 4) if name == "bw" else ()
    program = BENCHMARKS / f"osu_{name}.py"
    _, rows = parse(mpirun(2, program, *options, *window, "--compress", "always"))
    validation, ratio = rows[262144][1:3]
    assert validation == "Pass"
    assert float(ratio) < 0.95
    written = json.loads(record.read_text())
    assert {"commit", "machine", "mpi", "arguments"} <= written.keys()
    assert f"{written['rows'][0]['Ratio']:.3f}" == ratio


def test_baseline_raw(mpirun):
    options = ("-m", "262144:262144", "-i", 2, "--compress", "always", "--algo", "two_shot")
    titles, rows = parse(mpirun(3, BENCHMARKS / "osu_allreduce.py", *options, "--baseline", "raw"))
    assert "Raw(us)" in titles
    assert rows[262144][1] == "Pass"


def test_wrong_values_are_found(mpirun):
    with pytest.raises(
        pytest.fail.Exception, match="exited with status 1 on message size 8"
    ) as end:
        mpirun(2, "ranks_wrong_values.py", "-m", "8:16", "-i", 2)
    assert "Fail" in str(end.value)


def test_wrong_number_of_ranks(mpirun):
    with pytest.raises(pytest.fail.Exception, match="expected 2 ranks, found 3"):
        mpirun(3, BENCHMARKS / "osu_latency.py", "-m", "8:8")


@pytest.mark.parametrize("algorithm", ["mpi", "ring", "two_shot"])
def test_sums_of_any_bits_are_judged(mpirun, algorithm):
    """Random bits hold NaN, infinities, and sums that overflow."""
    options = ("-m", "65536:65536", "-i", 2, "-x", 0, "--data", "random", "--algo", algorithm)
    _, rows = parse(mpirun(2, BENCHMARKS / "osu_allreduce.py", *options, "--compress", "always"))
    assert rows[65536][1] == "Pass"
