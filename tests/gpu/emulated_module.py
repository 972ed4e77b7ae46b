"""The extension ``uzipmpi.kernels._gpu`` for the emulated GPU: all that needs a GPU, on processors.

A test uses it within :func:`installed`. A program of a rank begins with
``emulated_module.install_from_environment()``; the test that starts it gives it
``UZIPMPI_TEST_GPU``, the path that :func:`build` returned.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pybind11
from emulated_objects import KERNELS, compile_sources

import uzipmpi.kernels
from uzipmpi.kernels import device, device_pool

VARIABLE = "UZIPMPI_TEST_GPU"
NAME = "uzipmpi.kernels._gpu"


def build(folder: Path, *options: str) -> Path:
    """Compile the GPU half as C++ into a module for this Python; return its path."""
    bindings = KERNELS / "bindings_gpu.cu"
    sources = [source for source in KERNELS.glob("*.cu") if source != bindings]
    includes = [f"-I{path}" for path in (pybind11.get_include(), sysconfig.get_path("include"))]
    # Without the visibility pybind11's own types would be another module's as well.
    objects = compile_sources([bindings], "-fvisibility=hidden", *includes, *options)
    objects += compile_sources(sources, *options)
    module = folder / f"_gpu{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(["g++", "-shared", *options, *objects, "-o", module], check=True)
    return module


def load(path: Path) -> ModuleType:
    """Return the module at ``path``, which nobody else will find."""
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected an extension module, found {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(path: Path) -> ModuleType:
    """Make the module at ``path`` the GPU half of this process."""
    module = load(path)
    _be_gpu_half(module)
    return module


def _be_gpu_half(module: ModuleType | None) -> None:
    if module is None:
        sys.modules.pop(NAME, None)
    else:
        sys.modules[NAME] = module
        uzipmpi.kernels._gpu = module  # type: ignore[attr-defined]
    device.gpu_half.cache_clear()
    device.is_available.cache_clear()
    device_pool.pools.cache_clear()  # memory goes back to where it is from


@contextlib.contextmanager
def installed(path: Path) -> Iterator[ModuleType]:
    """Use the module at ``path`` for a while."""
    before = sys.modules.get(NAME)
    module = install(path)
    try:
        yield module
    finally:
        _be_gpu_half(before)


def install_from_environment() -> None:
    """Install the module that the test names, if it names one."""
    if path := os.environ.get(VARIABLE):
        install(Path(path))
