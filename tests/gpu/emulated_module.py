"""The extension ``uzipmpi.kernels._gpu`` for the emulated GPU: all that needs a GPU, on processors.

A program of a rank begins with ``emulated_module.install_from_environment()``; the test that starts
it gives it ``UZIPMPI_TEST_GPU``, the path that :func:`build` returned.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pybind11

import uzipmpi.kernels
from uzipmpi.kernels import device

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
VARIABLE = "UZIPMPI_TEST_GPU"
NAME = "uzipmpi.kernels._gpu"
OPTIONS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-fvisibility=hidden",  # as pybind11 wants it
    "-ffp-contract=off",
    "-Wno-unknown-pragmas",
    "-DUZIP_EMULATION",
)


def build(folder: Path, *options: str) -> Path:
    """Compile the GPU half as C++ into a module for this Python; return its path."""
    includes = [KERNELS, pybind11.get_include(), sysconfig.get_path("include")]
    command = ["g++", *OPTIONS, *options, *(f"-I{include}" for include in includes), "-x", "c++"]
    # The largest first: they take longest, and two of them keep two processors busy.
    sources = sorted(KERNELS.glob("*.cu"), key=lambda source: -source.stat().st_size)
    objects = [folder / f"{source.stem}.o" for source in sources]
    waiting = list(zip(sources, objects, strict=True))
    running: list[tuple[Path, subprocess.Popen[bytes]]] = []
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            source, target = waiting.pop(0)
            running.append((source, subprocess.Popen([*command, "-c", source, "-o", target])))
        source, job = running.pop(0)
        if job.wait() != 0:
            raise RuntimeError(f"cannot compile {source.name} for the emulated GPU")
    module = folder / f"_gpu{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(["g++", "-shared", *options, *objects, "-o", module], check=True)
    return module


def install(path: Path) -> ModuleType:
    """Make the module at ``path`` the GPU half of this process."""
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected an extension module, found {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    uzipmpi.kernels._gpu = module  # type: ignore[attr-defined]
    device.gpu_half.cache_clear()
    device.is_available.cache_clear()
    return module


def install_from_environment() -> None:
    """Install the module that the test names, if it names one."""
    if path := os.environ.get(VARIABLE):
        install(Path(path))
