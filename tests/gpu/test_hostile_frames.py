"""Damaged frames of every codec and layout under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from emulator import HERE, KERNELS

OPTIONS = ["-std=c++17", "-O1", "-g", "-Wno-unknown-pragmas", "-ffp-contract=off", f"-I{KERNELS}"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
GPU = ("encode_gpu.cu", "ans_encode_gpu.cu", "decode_gpu.cu")


def build(folder: Path) -> Path:
    """Compile both halves of the codec and the driver; return the program."""
    sources = [KERNELS / name for name in GPU]
    sources += [path for path in sorted(KERNELS.glob("*.cpp")) if path.name != "bindings.cpp"]
    sources.append(HERE / "hostile_frames.cpp")

    def compile_source(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        emulated = ["-DUZIP_EMULATION"] if source.suffix == ".cu" else []
        options = [*OPTIONS, *SANITIZE, *emulated]
        subprocess.run(["g++", *options, "-x", "c++", "-c", source, "-o", target], check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_source, sources))
    program = folder / "hostile_frames"
    subprocess.run(["g++", *SANITIZE, *objects, "-o", program, "-pthread"], check=True)
    return program


@pytest.mark.timeout(1800)
def test_both_decoders_agree_and_touch_only_what_is_theirs(tmp_path: Path) -> None:
    # Lanes are coroutines, of whose stacks the sanitizer knows nothing.
    environment = os.environ | {"ASAN_OPTIONS": "detect_stack_use_after_return=0"}
    run = subprocess.run(
        [build(tmp_path), "2"], env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "144 frames" in run.stdout
