"""The codec benchmark: its table and JSON, and that it notices a codec that loses bits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import codec_throughput
import numpy as np
import pytest
from peers import Peer, open_peer

from uzipmpi.typing import Bytes, DType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_table_and_json(tmp_path: Path) -> None:
    record_file = tmp_path / "codec.json"
    names = ("tier", "raw")
    command = [sys.executable, str(BENCHMARKS / "codec_throughput.py"), "-m", "67108864"]
    command += ["-i", "1", "--data", "random", "--codec", *names, "--json", str(record_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    assert [(row[0], row[1]) for row in rows] == [("67108864", n) for n in ("memcpy", *names)]
    assert all(float(figure) > 0 for row in rows for figure in row[2:])
    record = json.loads(record_file.read_text())
    assert {"commit", "machine", "simd", "arguments"} <= set(record)
    assert [row["Codec"] for row in record["rows"]] == [row[1] for row in rows]
    assert record["rows"][1]["Ratio"] == pytest.approx(1, abs=1e-4)  # random bits


def test_a_lossy_codec_is_noticed() -> None:
    def damaged(frame: Bytes, out: Bytes) -> Bytes:
        np.copyto(out, frame)
        out[-1] ^= 1
        return out

    values = np.arange(4096, dtype=np.uint8)
    pool = codec_throughput.Pool.of(values, 2048, DType.BFLOAT16)
    sound = open_peer("memcpy", DType.BFLOAT16)
    peers = {"sound": sound, "lossy": Peer(sound.encode, damaged)}
    measured = codec_throughput.measure(peers, pool, 2, time.perf_counter)
    assert measured["sound"].lossless
    assert not measured["lossy"].lossless
    assert measured["sound"].frame_bytes == values.size


def test_floor() -> None:
    """Four exponents, equally often: two bits of eight, beside eight of sign and mantissa."""
    values = np.tile(np.array([1, 2, 4, 8], np.float32), 64).astype(DType.BFLOAT16.numpy)
    assert codec_throughput.floor_ratio(values.view(np.uint8), "bf16") == pytest.approx(10 / 16)
    assert codec_throughput.floor_ratio(np.zeros(8, np.uint8), "e5m2") == 0
