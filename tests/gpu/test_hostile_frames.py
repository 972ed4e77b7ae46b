"""Damaged frames of every codec and layout under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from emulated_objects import KERNELS
from emulator import HERE

OPTIONS = ["-std=c++17", "-O1", "-g", "-Wno-unknown-pragmas", "-ffp-contract=off", f"-I{KERNELS}"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
DRIVERS = {"hostile_frames": "144 frames", "hostile_reduce": "36 folds"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both halves of the codec and the drivers, compiled; the programs' folder."""
    folder = tmp_path_factory.mktemp("hostile")
    sources = [*sorted(KERNELS.glob("*.cpp")), *sorted(KERNELS.glob("*.cu"))]
    sources = [source for source in sources if "bindings" not in source.name]
    sources += [HERE / f"{driver}.cpp" for driver in DRIVERS]

    def compile_source(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        emulated = ["-DUZIP_EMULATION"] if source.suffix == ".cu" else []
        options = [*OPTIONS, *SANITIZE, *emulated]
        subprocess.run(["g++", *options, "-x", "c++", "-c", source, "-o", target], check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_source, sources))
    for driver in DRIVERS:
        parts = [path for path in objects if path.stem not in DRIVERS.keys() - {driver}]
        command = ["g++", *SANITIZE, *parts, "-o", folder / driver, "-pthread"]
        subprocess.run(command, check=True)
    return folder


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("driver", DRIVERS)
def test_gpu_and_cpu_agree_and_touch_only_what_is_theirs(programs: Path, driver: str) -> None:
    # Lanes are coroutines, of whose stacks the sanitizer knows nothing.
    environment = os.environ | {"ASAN_OPTIONS": "detect_stack_use_after_return=0"}
    run = subprocess.run(
        [programs / driver, "2"], env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert DRIVERS[driver] in run.stdout
