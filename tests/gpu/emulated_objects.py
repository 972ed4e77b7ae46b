"""GPU sources compiled as C++ for the emulated GPU, each once per session whoever asks for it."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
OPTIONS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-ffp-contract=off",
    "-Wno-unknown-pragmas",
    "-DUZIP_EMULATION",
    f"-I{KERNELS}",
)


def compile_sources(sources: Sequence[Path], *options: str) -> list[Path]:
    """Return the objects of sources, in any order; as many compilers run as there are cores."""
    # The largest take longest: those that begin last had better be small.
    largest_first = sorted(sources, key=lambda source: -source.stat().st_size)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda source: _compile(source, options), largest_first))


@functools.cache
def _compile(source: Path, options: tuple[str, ...]) -> Path:
    target = Path(tempfile.mkdtemp(dir=_folder()), f"{source.stem}.o")
    command = ["g++", *OPTIONS, *options, "-x", "c++", "-c", source, "-o", target]
    if subprocess.run(command).returncode != 0:
        raise RuntimeError(f"cannot compile {source.name} for the emulated GPU")
    return target


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="uzipmpi-emulated-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
