"""Runs a benchmark with buffers on the emulated GPU: ranks_osu.py MODULE NAME OPTIONS."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import emulated_module

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

emulated_module.install(Path(sys.argv[1]))
program = BENCHMARKS / f"{sys.argv[2]}.py"
sys.argv = [str(program), *sys.argv[3:]]
sys.path.insert(0, str(BENCHMARKS))
runpy.run_path(str(program), run_name="__main__")
